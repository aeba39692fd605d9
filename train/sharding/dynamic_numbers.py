"""What the tables of a model that grow have done, in numbers for a log."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

import torch
from torch import nn

from emberline.train.dynamic.state import DynamicTable
from emberline.train.dynamic.tables import BatchedDynamicEmbeddingTables
from emberline.train.sharding.dynamic_kernels import dynamic_tables
from emberline.train.sharding.sizes import size_text

_TIERS = ("fast_rows", "fast_bytes", "slow_bytes", "fast_reads", "slow_reads")
_SHOWN = ("size", "capacity", "admitted", "rejected", "evicted", "failed", "seen", "hits")


def dynamic_numbers(model: nn.Module, add_up: Callable[[Sequence[float]], Sequence[float]]) -> dict[str, float]:
    """For each table that grows `dynamic/TABLE/...`, over all ranks: what `DynamicCounters` has, since training began.

    `hit_rate` is the share of ids seen that had a row before their batch, from 0 to 1; `memory_bytes` counts the vectors and moments of `size`
    rows, `room_bytes` those of `capacity` rows. Of tables with a second tier also what `TierCounters` has, and `fast_share`, of the reads those
    that the fast tier served.

    Args:
        model: sharded.
        add_up: gives the sums of such numbers over all ranks, which must call it together.
    """
    own: dict[str, float] = {}
    row_bytes: dict[str, int] = {}
    for table, held in sorted(dynamic_tables(model).items()):
        counters = asdict(held.counters(table))
        tiers = asdict(held.tiers(table)) if _has_second_tier(held, table) else {}
        shown = {name: counters[name] for name in _SHOWN} | {name: tiers[name] for name in _TIERS if tiers}
        own |= {f"dynamic/{table}/{name}": number for name, number in shown.items()}
        row_bytes[table] = _row_bytes(held, table)
    if not own:
        return {}
    found = {name: float(number) for name, number in zip(own, add_up(list(own.values())), strict=True)}
    for table, size in row_bytes.items():
        seen = found[f"dynamic/{table}/seen"]
        found[f"dynamic/{table}/hit_rate"] = found[f"dynamic/{table}/hits"] / seen if seen else 0.0
        found[f"dynamic/{table}/memory_bytes"] = found[f"dynamic/{table}/size"] * size
        found[f"dynamic/{table}/room_bytes"] = found[f"dynamic/{table}/capacity"] * size
        fast, slow = (found.get(f"dynamic/{table}/{name}_reads") for name in ("fast", "slow"))
        if fast is not None and slow is not None:
            found[f"dynamic/{table}/fast_share"] = fast / (fast + slow) if fast + slow else 1.0
    return found


def _has_second_tier(held: BatchedDynamicEmbeddingTables, table: str) -> bool:
    options = _described(held, table).options
    return options.local_hbm_for_values is not None and bool(held.tiers(table).mode)


def _described(held: BatchedDynamicEmbeddingTables, table: str) -> DynamicTable:
    return next(described for described in held.described if described.name == table)


def _row_bytes(held: BatchedDynamicEmbeddingTables, table: str) -> int:
    """Of one vector and its moments."""
    dim = _described(held, table).dim
    moments = sum(1 if moment.per_row else dim for moment in held.tables.optimizer.moments)
    return dim * held.dtype.itemsize + moments * torch.float32.itemsize


def dynamic_totals(numbers: Mapping[str, float]) -> str:
    """Rows, and ids admitted and evicted, of all tables together; empty where there are none."""
    parts = ("size", "admitted", "evicted")
    totals = [sum(int(number) for name, number in numbers.items() if name.startswith("dynamic/") and name.endswith(f"/{part}")) for part in parts]
    return " ".join(f"{total:,}" for total in totals) if numbers else ""


def dynamic_lines(numbers: Mapping[str, float]) -> list[str]:
    """A sentence for each table that grows."""
    lines = []
    for table in dict.fromkeys(name.split("/")[1] for name in numbers):
        own = {name.rpartition("/")[2]: number for name, number in numbers.items() if name.startswith(f"dynamic/{table}/")}
        counts = {name: f"{int(own[name]):,}" for name in ("size", "admitted", "rejected", "evicted")}
        told = [f"{counts['size']} ids have a row, {size_text(own['memory_bytes'])} with moments; {counts['admitted']} admitted"]
        told += [f"{counts[name]} {words}" for name, words in (("evicted", "evicted"), ("rejected", "reads not admitted yet")) if own[name]]
        fast = f", {own['fast_share']:.1%} in the fast tier" if "fast_share" in own else ""
        lines.append(f"table {table}: {', '.join(told)}; {own['hit_rate']:.1%} of reads found one{fast}")
    return lines
