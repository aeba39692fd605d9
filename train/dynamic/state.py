"""What a table that grows is, on one rank, and what it tells of itself.

Letters: K keys (the ids that have a row), C ids that are counted and have none yet, d width.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from emberline.train.dynamic.options import DynamicEmbOptions


@dataclass(frozen=True)
class DynamicTable:
    """One table's part on one rank.

    Args:
        name: what first vectors depend on, beside the seed of the run and the key.
        dim: d, at least 1.
        options: what its config asks.
        max_rows: most rows on this rank, at least 1.
        counter_rows: most ids that this rank counts before they are admitted; 0 where ids are admitted at once.
    """

    name: str
    dim: int
    options: DynamicEmbOptions
    max_rows: int
    counter_rows: int = 0


@dataclass
class DynamicCounters:
    """What happened to a table on this rank, since it began. Evaluation counts nothing.

    Args:
        size: K.
        capacity: rows that it has room for now; doubled when they are full, up to the rank's bound.
        counted: C.
        seen: ids that training read, each time it did.
        hits: those of them that had a row before their batch.
        misses: the others.
        admitted: ids that got a row.
        rejected: reads of ids that were not admitted yet.
        evicted: ids whose row went to others.
        expired: ids that were not read for long.
        removed: ids that the caller took out.
        failed: ids that found no room in a full table, in calls that raised.
        dropped: ids of a loaded state for which there was no room.
        forgotten: ids that the counter of admission let go of.
    """

    size: int = 0
    capacity: int = 0
    counted: int = 0
    seen: int = 0
    hits: int = 0
    misses: int = 0
    admitted: int = 0
    rejected: int = 0
    evicted: int = 0
    expired: int = 0
    removed: int = 0
    failed: int = 0
    dropped: int = 0
    forgotten: int = 0


@dataclass(frozen=True)
class DynamicState:
    """All that one rank knows of a table, or a part of it; keys ascending, tensors of nobody else's memory.

    Args:
        keys: int64 [K].
        weights: [K, d] of the table's dtype.
        moments: the optimiser's, by its names: float32 [K, d], or [K] where one is kept for each row.
        last_steps: int64 [K], the last training step that read each.
        scores: int64 [K]; those of the lowest give way first.
        counted_keys: int64 [C], ascending.
        counts: int64 [C], how often each was read.
        default: float32 [d], what unknown ids read in evaluation.
        unadmitted: float32 [d], what ids read that are not admitted yet.
        counters: those of `DynamicCounters` that add up over time, by name.
        step: training steps so far.
    """

    keys: Tensor
    weights: Tensor
    moments: Mapping[str, Tensor]
    last_steps: Tensor
    scores: Tensor
    counted_keys: Tensor
    counts: Tensor
    default: Tensor
    unadmitted: Tensor
    counters: Mapping[str, int] = field(default_factory=dict)
    step: int = 0


def chosen_of(states: Sequence[DynamicState], rows: Tensor, counted: Tensor) -> DynamicState:
    """A part of several states of one table; whatever is not of an id is as the first state has it.

    Args:
        states: at least one, whose ids, one state's after the other's, are numbered from 0.
        rows: integers, which ids that have a row, in the order of the keys.
        counted: the same of ids that are counted.
    """

    def joined(name: str) -> Tensor:
        return torch.cat([getattr(state, name) for state in states])

    return replace(
        states[0],
        keys=joined("keys")[rows],
        weights=joined("weights")[rows],
        moments={name: torch.cat([state.moments[name] for state in states])[rows] for name in states[0].moments},
        last_steps=joined("last_steps")[rows],
        scores=joined("scores")[rows],
        counted_keys=joined("counted_keys")[counted],
        counts=joined("counts")[counted],
    )
