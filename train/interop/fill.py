"""Reading a checkpoint's tensors into a sharded model, chunk by chunk."""

import time
from collections.abc import Mapping
from typing import Self

import torch
from torch import Tensor

from emberline.train.checkpoint.shards import load_steps, table_shards
from emberline.train.interop.id_maps import IdMap, assemble_id_map
from emberline.train.interop.moments import Moments
from emberline.train.interop.parts import ID_MAPS, RAW_IDS, TABLES, embedding_parts, head_parts
from emberline.train.interop.stored import StoredTensors, rank_ends
from emberline.train.job_build import Parts
from emberline.train.job_log import ProgressBar
from emberline.train.models import RecModel
from emberline.train.zch import zch_modules


class Reading:
    """How far the reading is: a bar on a terminal, else a line now and then."""

    _SECONDS_BETWEEN_LINES = 10.0

    def __init__(self, chunks: int) -> None:
        self._bar = ProgressBar("chunks read", chunks)
        self._begin = self._told = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.close()

    def advance(self) -> None:
        """One chunk more."""
        self._bar.advance()
        now = time.monotonic()
        if now - self._told > self._SECONDS_BETWEEN_LINES:
            self._bar.tell(minutes=f"{(now - self._begin) / 60:.1f}")
            self._told = now


def fill_model(stored: StoredTensors, model: RecModel, sources: Mapping[str, str], reading: Reading) -> dict[str, IdMap]:
    """Read everything that is no moment into the sharded model; returns the id maps."""
    tables = {f"{TABLES}.{shard.table}": shard.weight for shard in table_shards(model)}
    live = {**tables, **embedding_parts(model.embedding_group), **head_parts(model.head)}
    for part, name in sources.items():
        if not part.startswith(f"{ID_MAPS}."):
            stored.fill(name, live[part].view(stored.tensors[name].info.shape), reading.advance)
    id_maps: dict[str, IdMap] = {}
    for table, module in zch_modules(model).items():
        own = {part.split(".", 2)[2]: name for part, name in sources.items() if part.startswith(f"{ID_MAPS}.{table}.")}
        buffers = {}
        for buffer, name in own.items():
            buffers[buffer] = stored.read(name, reading.advance)
        id_maps[table] = assemble_id_map(table, buffers, rank_ends(stored.tensors[own[RAW_IDS]].chunks))
        module.load_state_from_checkpoint(id_maps[table].state)
    return id_maps


def live_moments(parts: Parts) -> dict[str, dict[str, Tensor]]:
    """Table -> moment, as TorchRec calls it -> the live tensor. The first moment of every optimiser has the same name there."""
    found: dict[str, dict[str, Tensor]] = {}
    for shard in table_shards(parts.sharded):
        if shard.moments:
            first, *others = shard.moments
            found[shard.table] = {"momentum1": shard.moments[first], **{name: shard.moments[name] for name in others}}
    return found


def fill_moments(stored: StoredTensors, live: Mapping[str, Mapping[str, Tensor]], chosen: Moments, reading: Reading) -> None:
    """Read the chosen moments into the live ones."""
    for table, found in chosen.items():
        for moment, name in found.items():
            stored.fill(name, live[table][moment], reading.advance)


def go_on_counting(parts: Parts, chosen: Moments, step: int) -> None:
    """Tables whose moments were taken over have had `step` updates: Adam, for one, corrects young moments by that."""
    load_steps(
        [shard for shard in table_shards(parts.sharded) if shard.table in chosen], {f"tables/{table}/step": torch.tensor(step) for table in chosen}
    )
