"""What a job says of its plan before it trains: where its tables are, in a few lines."""

from collections import Counter
from collections.abc import Sequence

from torchrec.distributed.types import ParameterSharding, ShardingPlan

from emberline.schema import TableSpec
from emberline.text_table import columns
from emberline.train.dynamic.options import CUSTOMIZED_COMPUTE_KERNEL
from emberline.train.dynamic.sharding import DynamicEmbParameterSharding
from emberline.train.embedding.construct import OUTPUT_DTYPES
from emberline.train.sharding.dynamic_variants import Mode, mode_of
from emberline.train.sharding.report import spans
from emberline.train.sharding.sizes import size_text

_MOST_TABLES = 12
"""So many tables are listed one by one; of more, the largest."""


def plan_lines(plan: ShardingPlan, tables: Sequence[TableSpec]) -> list[str]:
    """A line for all tables, and one for each, or for each of the largest where there are many.

    Args:
        plan: what the job runs by.
        tables: of the model; the plan has all of them.
    """
    placed: dict[str, ParameterSharding] = {name: found for module in plan.plan.values() for name, found in module.items()}
    if not tables:
        return ["plan: there are no tables"]
    kinds = Counter(f"{placed[table.name].sharding_type} {_kernel(placed[table.name])}" for table in tables)
    total = sum(map(_num_bytes, tables))
    shown = sorted(tables, key=_num_bytes, reverse=True)[:_MOST_TABLES] if len(tables) > _MOST_TABLES else tables
    lines = [f"plan: {len(tables)} table{'s' * (len(tables) != 1)}, {size_text(total)} without moments: {', '.join(_count(kinds))}"]
    lines += columns([("table", "rows", "dim", "size", "sharding", "kernel", "ranks"), *(_row(table, placed[table.name]) for table in shown)])
    if len(shown) < len(tables):
        rest = total - sum(map(_num_bytes, shown))
        lines.append(f"and {len(tables) - len(shown)} smaller tables, {size_text(rest)}: `emberline plan` shows all")
    return lines


def _count(kinds: Counter[str]) -> list[str]:
    return [f"{count} {kind}" for kind, count in kinds.most_common()]


def _row(table: TableSpec, placed: ParameterSharding) -> tuple[str, ...]:
    ranks = spans(sorted(set(placed.ranks or ())))
    return (table.name, f"{table.rows:,}", str(table.dim), size_text(_num_bytes(table)), placed.sharding_type, _kernel(placed), ranks)


def _kernel(placed: ParameterSharding) -> str:
    """What holds a table; of a dynamic one with the mode that its rows are kept in."""
    growth = placed.dynamicemb_options if isinstance(placed, DynamicEmbParameterSharding) else None
    if growth is None:
        return str(placed.compute_kernel)
    mode = mode_of(growth)
    share = "" if mode is Mode.HBM_ONLY else f" {growth.cache_load_factor:g}"
    return f"{CUSTOMIZED_COMPUTE_KERNEL} {mode}{share}"


def _num_bytes(table: TableSpec) -> int:
    return table.rows * table.dim * OUTPUT_DTYPES[table.dtype].itemsize
