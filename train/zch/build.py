"""From a ZCH config to an empty id map."""

import torch

from emberline.train.features.configs import HASHED, ZchConfig
from emberline.train.zch.buckets import default_buckets
from emberline.train.zch.hashed import MAX_PROBE, HashedZchModule
from emberline.train.zch.id_map import IdMap
from emberline.train.zch.module import ZchModule
from emberline.train.zch.policies import build_policy


def build_map(table: str, rows: int, config: ZchConfig, device: torch.device) -> IdMap:
    """The map of a table of `rows`, in one piece.

    Raises:
        ConfigError: its kind does not run on the device; says why.
    """
    if config.kind == HASHED:
        return HashedZchModule(
            name=table,
            rows=rows,
            buckets=config.buckets or default_buckets(rows),
            device=device,
            routing=config.routing,
            max_probe=MAX_PROBE if config.max_probe is None else config.max_probe,
            eviction=config.eviction_policy,
        )
    assert config.interval is not None
    return ZchModule(
        name=table,
        rows=rows,
        interval=config.interval,
        policy=build_policy(config),
        device=device,
        routing=config.routing,
        history=config.history_size,
    )
