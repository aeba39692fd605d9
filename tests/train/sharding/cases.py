"""Models and clusters in a line each, for tests of plans."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from emberline.train.config import parse_config
from emberline.train.config.optimizer_configs import FusedRowWiseAdagradConfig
from emberline.train.embedding import EmbeddingGroup
from emberline.train.features import create_features
from emberline.train.optim import apply_sparse_optimizer
from emberline.train.sharding import create_sharders
from emberline.train.sharding.hardware import Hardware
from emberline.train.sharding.planner import TablePlanner, create_planner

GIB = 1 << 30


def id_feature(name: str, rows: int, dim: int = 16, constraints: str = "", more: str = "") -> str:
    asked = f"embedding_constraints {{ {constraints} }}" if constraints else ""
    rows_text = f"num_buckets: {rows}" if "zch" not in more else ""
    return f'feature_configs {{ id_feature {{ feature_name: "{name}" embedding_dim: {dim} {rows_text} {asked} {more} }} }}\n'


def zch_feature(name: str, rows: int, dim: int = 16, constraints: str = "") -> str:
    return id_feature(name, rows, dim, constraints, f"zch {{ zch_size: {rows} lfu {{}} }}")


def steps_feature(name: str, rows: int, dim: int = 16, constraints: str = "", more: str = "") -> str:
    asked = f"embedding_constraints {{ {constraints} }}" if constraints else ""
    return f'feature_configs {{ sequence_id_feature {{ feature_name: "{name}" embedding_dim: {dim} num_buckets: {rows} {asked} {more} }} }}\n'


def deep(*names: str) -> str:
    return f"feature_groups {{ group_name: 'deep' group_type: DEEP {' '.join(f'feature_names: {name!r}' for name in names)} }}\n"


def steps(*names: str) -> str:
    return f"feature_groups {{ group_name: 'steps' group_type: JAGGED_SEQUENCE {' '.join(f'feature_names: {name!r}' for name in names)} }}\n"


def group_of(text: str, device: str | None = "meta", optimizer: bool = True) -> EmbeddingGroup:
    config = parse_config(text)
    group = EmbeddingGroup(create_features(config.feature_configs), config.feature_groups, device=device)
    if optimizer:
        apply_sparse_optimizer(group.table_weights(), FusedRowWiseAdagradConfig(lr=0.1))
    return group


def gpus(world_size: int = 8, local: int | None = None, **other: Any) -> Hardware:
    sizes: Mapping[str, Any] = {"hbm": 80 * GIB, "ddr": 100 * GIB} | other
    return Hardware(device="cuda", world_size=world_size, local_world_size=local or min(8, world_size), **sizes)


def cpus(world_size: int = 2, local: int | None = None, ddr: int = 4 * GIB) -> Hardware:
    return Hardware(device="cpu", world_size=world_size, local_world_size=local or world_size, ddr=ddr)


def planner_of(model: nn.Module, hardware: Hardware, **other: Any) -> TablePlanner:
    return create_planner(model, hardware, **({"batch_size": 512} | other))


def placed(model: nn.Module, hardware: Hardware, **other: Any) -> dict[str, tuple[str, str, list[int]]]:
    """Type, kernel and ranks by table."""
    plan = planner_of(model, hardware, **other).plan(model, create_sharders())
    return {name: (own.sharding_type, own.compute_kernel, own.ranks) for tables in plan.plan.values() for name, own in tables.items()}
