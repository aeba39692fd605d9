"""The dynamic tables of a TorchEasyRec checkpoint: the files that NVIDIA's kernel wrote, of any number of ranks.

dynamicemb/<module path>/<table>_emb_keys.rank_R.world_size_W, and beside it values, scores, the optimiser's values, and counters of admission.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from emberline.errors import CheckpointError
from emberline.train.checkpoint.live_dynamic import HeldTables
from emberline.train.checkpoint.take_dynamic import fresh_moments, level_steps
from emberline.train.dynamic.nvidia.files import StoredTable, read_table
from emberline.train.dynamic.state import DynamicState, chosen_of

_KEYS = re.compile(r"(?P<table>.+)_emb_keys\.rank_(?P<rank>\d+)\.world_size_(?P<ranks>\d+)")


@dataclass(frozen=True)
class DynamicFiles:
    """What is there.

    Args:
        folder: of all tables.
        ranks: of each table, how many ranks wrote it.
    """

    folder: Path
    ranks: Mapping[str, int]

    @classmethod
    def of(cls, folder: Path) -> "DynamicFiles":
        """Look for files of keys.

        Raises:
            CheckpointError: of a table, a rank's file is missing, or there are those of several numbers of ranks.
        """
        found: dict[str, set[tuple[int, int]]] = {}
        for path in folder.rglob("*_emb_keys.rank_*.world_size_*"):
            if match := _KEYS.fullmatch(path.name):
                found.setdefault(match["table"], set()).add((int(match["rank"]), int(match["ranks"])))
        for table, parts in found.items():
            ranks = max(ranks for _, ranks in parts)
            if len(parts) != ranks or any(part[1] != ranks or part[0] >= ranks for part in parts):
                shown = ", ".join(f"rank {rank} of {count}" for rank, count in sorted(parts))
                raise CheckpointError(f"{folder}: of table {table!r} there are the ids of {shown}, not of all ranks of one number")
        return cls(folder, {table: max(ranks for _, ranks in parts) for table, parts in sorted(found.items())})

    def problems(self, tables: Sequence[str]) -> list[str]:
        """What does not fit the tables of a model that grow; a sentence for each."""
        missing = [f"{self.folder}: dynamic table {table!r} is missing" for table in tables if table not in self.ranks]
        return missing + [
            f"{self.folder}: {table}: surplus, the model has no dynamic table of that name" for table in self.ranks if table not in tables
        ]


def fill_dynamic(files: DynamicFiles, held: Mapping[str, HeldTables], step: int, *, with_moments: bool) -> list[str]:
    """Fill all tables that grow, in one process; what unknown ids read is as our config says.

    Args:
        files: of as many tables.
        held: what holds each.
        step: that the checkpoint is of.
        with_moments: whether it was trained with the same optimiser.

    Returns:
        what to tell.

    Raises:
        CheckpointError: files are missing, or do not fit together.
    """
    told = []
    for table, kernel in held.items():
        ranks, fresh = files.ranks[table], kernel.dump(table)
        described = next(one for one in kernel.described if one.name == table)
        kept = kernel.tables.optimizer.moments if with_moments else ()
        stored = StoredTable(described, kernel.dtype, tuple(kept))
        state = _joined([read_table(files.folder, stored, rank, ranks, step, 0) for rank in range(ranks)])
        moments = state.moments if with_moments else fresh_moments(kernel, table, len(state.keys))
        state = replace(state, moments=moments, default=fresh.default, unadmitted=fresh.unadmitted, counters=fresh.counters)
        dropped = kernel.load(table, state)
        lost = f"; {dropped:,} of the lowest scores found no room" if dropped else ""
        told.append(f"table {table!r}: {len(state.keys):,} ids of {ranks} rank{'s' * (ranks > 1)}, moments {'too' if with_moments else 'anew'}{lost}")
        kernel.tables.step = max(kernel.tables.step, step)
    level_steps(held)
    return told


def _joined(states: Sequence[DynamicState]) -> DynamicState:
    """What all ranks have; of an id that several have, which one of their rules may cause, the first; an id that has a row is not counted."""
    keys, counted = torch.cat([state.keys for state in states]), torch.cat([state.counted_keys for state in states])
    order, counted_order = torch.argsort(keys, stable=True), torch.argsort(counted, stable=True)
    order, counted_order = (ids[_first_of_each(values[ids])] for ids, values in ((order, keys), (counted_order, counted)))
    counted_order = counted_order[~torch.isin(counted[counted_order], keys)]
    return chosen_of(states, order, counted_order)


def _first_of_each(ascending: torch.Tensor) -> torch.Tensor:
    return torch.cat([torch.ones_like(ascending[:1], dtype=torch.bool), ascending[1:] != ascending[:-1]])
