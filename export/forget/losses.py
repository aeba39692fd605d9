"""What a version and its deltas lose with some ids: which ids of their maps, and what becomes of the rows that these owned.

    state          0: the version    1: with delta 1    2: with delta 2
    the id         owns row 7        owns row 7         went, and row 7 is another's
    row 7 before   A                 B                  C
    row 7 after    zeros             zeros              C

A row is zeros from the moment the id owns it until another id does: so every other id reads what it read, in every state, also where delta 2 did not
write row 7, because C happened to be B.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from emberline.export.forget.ledger import Ledger
from emberline.schema import TableKind, TableSpec
from emberline.serving.artifact import Artifact
from emberline.serving.deltas import find_deltas
from emberline.serving.quantized import encode_rows
from emberline.serving.rows_on_disk import rows_needed

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


@dataclass(frozen=True, eq=False)
class TableLoss:
    """What one table loses. Letters: S states, the version and each of its deltas; T rows.

    Args:
        table: its name.
        ids: int64 ascending, that go, of all states; of a static table the numbers of rows.
        counts: how many of them own a row in each state; of a static table, how many rows are to be others.
        rows: int64 [T] ascending: rows that some of them own in some state.
        before: S times [T, width]: what these rows are.
        after: the same, what they are to be.
    """

    table: str
    ids: Tensor
    counts: tuple[int, ...]
    rows: Tensor
    before: tuple[Tensor, ...]
    after: tuple[Tensor, ...]

    def zeroed(self, state: int) -> Tensor:
        """Which rows are others than before in a state: bool [T]."""
        return ~_same(self.before[state], self.after[state])

    def moved(self, state: int) -> Tensor:
        """Which rows are to be others in a state than in the one before it: bool [T]."""
        return ~_same(self.after[state - 1], self.after[state])


def open_states(root: Path, *, verify: bool) -> list[Artifact]:
    """A version, and the same with one delta more each.

    Raises:
        ArtifactError: one of them is damaged.
    """
    states = [Artifact.open(root, deltas=0, verify=verify)]
    for delta in find_deltas(root):
        states.append(states[-1].with_delta(delta, verify=verify))
    return states


def find_losses(states: Sequence[Artifact], ledger: Ledger) -> dict[str, TableLoss]:
    """What each table loses by a list; tables that lose nothing are not there."""
    schema = states[0].schema
    found = {}
    for spec in schema.tables:
        if not ledger.may_concern(schema, spec):
            continue
        if spec.kind is TableKind.STATIC:
            every = torch.arange(spec.rows)
            loss = _of_static(states, spec, every[ledger.find_gone(schema, spec, every)])
        else:
            listed = torch.unique(torch.cat(_lists(states, spec.name)))
            loss = _of_raw(states, spec, listed[ledger.find_gone(schema, spec, listed)])
        if loss is not None:
            found[spec.name] = loss
    return found


def _lists(states: Sequence[Artifact], table: str) -> list[Tensor]:
    """The ids of each state; states that share a map are told once."""
    return list({id(state.ids[table]): state.ids[table].raw_ids for state in states}.values())


def _of_raw(states: Sequence[Artifact], spec: TableSpec, ids: Tensor) -> TableLoss | None:
    if not ids.numel():
        return None
    maps = [state.ids[spec.name] for state in states]
    owned = [torch.isin(parts.raw_ids, ids) for parts in maps]
    own_rows = [parts.rows[mine] for parts, mine in zip(maps, owned, strict=True)]
    rows = torch.unique(torch.cat(own_rows))
    others = [torch.cat([parts.rows[~mine], parts.fallback_rows]) for parts, mine in zip(maps, owned, strict=True)]
    before = _read(states, spec.name, rows)
    after, dead = [], torch.zeros(rows.numel(), dtype=torch.bool)
    for state, found in enumerate(before):
        dead = (dead | torch.isin(rows, own_rows[state])) & ~torch.isin(rows, others[state])
        after.append(_zeroed(found, dead, states[state], spec))
    return TableLoss(spec.name, ids, tuple(int(mine.sum()) for mine in owned), rows, tuple(before), tuple(after))


def _of_static(states: Sequence[Artifact], spec: TableSpec, rows: Tensor) -> TableLoss | None:
    before = _read(states, spec.name, rows)
    every = torch.ones(rows.numel(), dtype=torch.bool)
    after = [_zeroed(found, every, state, spec) for found, state in zip(before, states, strict=True)]
    counts = tuple(int((~_same(*pair)).sum()) for pair in zip(before, after, strict=True))
    return TableLoss(spec.name, rows, counts, rows, tuple(before), tuple(after)) if any(counts) else None


def _read(states: Sequence[Artifact], table: str, rows: Tensor) -> list[Tensor]:
    found = []
    for state in states:
        held, at = rows_needed(state.rows[table], rows)
        found.append(held[at].clone())
    return found


def _zeroed(rows: Tensor, which: Tensor, state: Artifact, spec: TableSpec) -> Tensor:
    found = rows.clone()
    found[which] = encode_rows(torch.zeros(1, spec.dim), state.table_types[spec.name])
    return found


def _same(rows: Tensor, others: Tensor) -> Tensor:
    """Which of some rows are others' equals, to the bit: bool [T]."""
    bits = _BITS[rows.element_size()]
    return (rows.contiguous().view(bits) == others.contiguous().view(bits)).all(dim=1)
