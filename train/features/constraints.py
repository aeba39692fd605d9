"""What a config may ask of a table's placement: names of sharding types and kernels, and what cannot be together on any device."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from emberline.schema import TableKind
from emberline.train.features.configs import EmbeddingConstraints
from emberline.train.features.sentences import unknown_name

SHARDING_TYPES = ("data_parallel", "table_wise", "column_wise", "row_wise", "table_row_wise", "table_column_wise", "grid_shard")
COMPUTE_KERNELS = ("dense", "fused", "fused_uvm", "fused_uvm_caching", "key_value")


def of_table(constraints: EmbeddingConstraints | None) -> EmbeddingConstraints | None:
    """What readers of one table must agree on: all but the feature's own ids a row; None where nothing is left."""
    if constraints is None:
        return None
    shared = replace(constraints, pooling_factor=None)
    return None if shared == EmbeddingConstraints() else shared


def asked_text(asked: Mapping[str, Any]) -> str:
    """What of a table's placement is asked for, in one line: `sharding_types row_wise; ranks 0, 1`; `nothing` where it is nothing.

    Args:
        asked: by the fields' names; what is None or empty is not asked for.
    """
    parts = [f"{name} {_shown(value)}" for name, value in asked.items() if value not in (None, (), [])]
    return "; ".join(parts) or "nothing"


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else ", ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def constraint_problems(constraints: EmbeddingConstraints, kind: TableKind = TableKind.STATIC) -> list[str]:
    """One sentence for each problem, whatever the device.

    Args:
        constraints: of a table, or of all.
        kind: of the table: ZCH tables are sharded by rows in a fused kernel only; dynamic ones by hashes over all ranks, in a kernel of their own.
    """
    names = [
        *(unknown_name("sharding type", name, SHARDING_TYPES) for name in constraints.sharding_types if name not in SHARDING_TYPES),
        *(unknown_name("compute kernel", name, COMPUTE_KERNELS) for name in constraints.compute_kernels if name not in COMPUTE_KERNELS),
    ]
    return [*(names or _clashes(constraints, kind)), *_wrong_numbers(constraints)]


def _clashes(constraints: EmbeddingConstraints, kind: TableKind) -> Iterator[str]:
    """Types and kernels that leave nothing."""
    if kind is TableKind.DYNAMIC:
        yield from _dynamic_clashes(constraints)
        return
    is_zch = kind is TableKind.ZCH
    types, kernels = constraints.sharding_types, constraints.compute_kernels
    if is_zch and types and "row_wise" not in types:
        yield "sharding_types must allow row_wise, the only one that ZCH tables know"
    if is_zch and kernels == ("dense",):
        yield "compute_kernels must allow fused: ZCH tables do not know the dense kernel"
    if types == ("data_parallel",) and kernels and "dense" not in kernels:
        yield "data_parallel needs compute_kernels to allow dense"
    if not is_zch and kernels == ("dense",) and types and "data_parallel" not in types:
        yield "the dense kernel needs sharding_types to allow data_parallel"


def _dynamic_clashes(constraints: EmbeddingConstraints) -> Iterator[str]:
    """What a dynamic table can't have: it would have no effect."""
    if constraints.sharding_types and "row_wise" not in constraints.sharding_types:
        yield "sharding_types must allow row_wise, the only one that dynamic tables know"
    if constraints.compute_kernels:
        yield "compute_kernels is not for dynamic tables, which have a kernel of their own; take it out"
    if constraints.min_partition is not None:
        yield "min_partition is not for dynamic tables, whose columns stay together; take it out"
    if constraints.cache_load_factor is not None:
        yield "cache_load_factor of a dynamic table stands in its dynamicemb; put it there"
    if constraints.ranks:
        yield "ranks is not for dynamic tables, whose ids are spread over all ranks; take it out"


def _wrong_numbers(constraints: EmbeddingConstraints) -> Iterator[str]:
    partition, ratio, length, most = (
        constraints.min_partition,
        constraints.cache_load_factor,
        constraints.pooling_factor,
        constraints.max_hbm_mib,
    )
    if partition is not None and partition < 1:
        yield f"min_partition must be at least 1, found {partition}"
    if ratio is not None and not 0.0 < ratio < 1.0:
        yield f"cache_load_factor must be between 0 and 1, found {ratio}"
    if length is not None and not (math.isfinite(length) and length >= 0.0):
        yield f"pooling_factor must be a number of 0 or more, found {length}"
    if most is not None and not most > 0.0:
        yield f"max_hbm_mib must be above 0, found {most}"
    if len(set(constraints.ranks)) < len(constraints.ranks):
        yield f"ranks must be given once each, found {', '.join(map(str, constraints.ranks))}"
    if any(rank < 0 for rank in constraints.ranks):
        yield f"ranks must be 0 or more, found {', '.join(map(str, constraints.ranks))}"
