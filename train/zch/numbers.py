"""What the id maps of a model have done, in numbers for a log."""

from collections.abc import Callable, Sequence
from dataclasses import asdict

from torch import nn

from emberline.train.zch.id_map import zch_modules


def zch_numbers(model: nn.Module, add_up: Callable[[Sequence[float]], Sequence[float]]) -> dict[str, float]:
    """For each ZCH table `zch/TABLE/...`: ids seen, admitted, evicted and dropped since training began, and the rows that have an owner.

    `rows_in_use` counts them, and `occupancy` is their share of all rows but the fallback rows, from 0 to 1.

    Args:
        model: sharded or not.
        add_up: gives the sums of such numbers over all ranks.
    """
    numbers: dict[str, float] = {}
    room: dict[str, float] = {}
    for table, module in zch_modules(model).items():
        counts = {"rows_in_use": module.rows_in_use, **asdict(module.counters)}
        numbers |= {f"zch/{table}/{name}": count for name, count in counts.items()}
        room[table] = module.capacity
    if not room:
        return {}
    sums = [int(one) for one in add_up([*numbers.values(), *room.values()])]
    found: dict[str, float] = dict(zip(numbers, sums, strict=False))
    for table, rows in zip(room, sums[len(numbers) :], strict=True):
        found[f"zch/{table}/occupancy"] = found[f"zch/{table}/rows_in_use"] / rows if rows else 0.0
    return found
