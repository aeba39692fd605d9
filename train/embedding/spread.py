"""How what is known of users reaches their rows, without looking at any value: views where there is one user, gathers where there are several.

Letters: U users, B rows, L steps of the longest row, N steps of all rows, d width.

    per user [U, d]     rows          in rows [B, d]
    u0  a a             0 1 0         a a | b b | a a
    u1  b b
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from emberline.train.embedding.columns import Columns

Part = tuple[Tensor, bool]
"""A tensor, and whether it has U rows, one a user; else it has B."""


class Run(NamedTuple):
    """Neighbours of one side in a sequence.

    Args:
        keys: of their parts, in order.
        per_user: whether they have U rows.
        stream: the feature whose number of steps is theirs.
    """

    keys: tuple[str, ...]
    per_user: bool
    stream: str


@dataclass(frozen=True)
class Spread:
    """From users to rows.

    Args:
        user_keys: keys of the parts that have U rows; others have B.
        rows: int64 [B], the user of each row; None where all belong to the only one, so that copies become views.
        num_rows: B.
        places: for each user's sequence that is left without padding, by its stream: the step [N] of the users that each step of the rows is.
    """

    user_keys: frozenset[str] = frozenset()
    rows: Tensor | None = None
    num_rows: int = 0
    places: Mapping[str, Tensor] = field(default_factory=dict)

    def is_per_user(self, columns: Columns) -> bool:
        """Whether all parts have U rows, so that `join` has too."""
        return all(key in self.user_keys for key in columns.keys)

    def in_rows(self, values: Tensor, rank: int) -> Tensor:
        """[U, ...] -> [B, ...]; `rank` dimensions, since a symbolic trace cannot tell."""
        if self.rows is None:
            return values.expand(self.num_rows, *[-1] * (rank - 1))
        return values.index_select(0, self.rows)

    def parts(self, columns: Columns, values: Mapping[str, Tensor]) -> list[Part]:
        """The columns' parts, in order."""
        return [(values[key], key in self.user_keys) for key in columns.keys]

    def join(self, parts: Sequence[Part], rank: int = 2) -> Tensor:
        """The parts side by side in their last dimension: U rows where all have those, else B."""
        groups = [(per_user, [part for part, _ in run]) for per_user, run in itertools.groupby(parts, key=lambda part: part[1])]
        runs = [(side_by_side(run, rank - 1), per_user) for per_user, run in groups]
        if len(runs) == 1:
            return runs[0][0]
        return side_by_side([self.in_rows(values, rank) if per_user else values for values, per_user in runs], rank - 1)

    def runs(self, columns: Columns) -> list[Run]:
        """The columns by sides, neighbours of one side together."""
        streams: dict[bool, str] = {}
        for name, key in zip(columns.features, columns.keys, strict=True):
            streams.setdefault(key in self.user_keys, name)
        groups = itertools.groupby(columns.keys, key=lambda key: key in self.user_keys)
        return [Run(tuple(keys), per_user, streams[per_user]) for per_user, keys in groups]


UNTILED = Spread()


def side_by_side(values: Sequence[Tensor], dim: int = 1) -> Tensor:
    """One tensor of several; without a copy where it is part of a matrix that they were cut from."""
    joined = list(values) if dim != 1 or is_traced(values[0]) else _neighbours_joined(values)
    return joined[0] if len(joined) == 1 else torch.cat(joined, dim=dim)


def is_traced(value: Tensor) -> bool:
    """Whether this call makes a program, for which what tensors share must not be looked at."""
    return not isinstance(value, Tensor) or torch.jit.is_tracing() or torch.compiler.is_compiling() or torch.compiler.is_exporting()  # type: ignore[attr-defined, no-untyped-call]


def _neighbours_joined(values: Sequence[Tensor]) -> list[Tensor]:
    """The same columns, in fewer parts: those that lie next to each other in one matrix [B, D] become one view of it."""
    runs: list[list[Tensor]] = []
    for value in values:
        if runs and _is_next(runs[-1][-1], value):
            runs[-1].append(value)
        else:
            runs.append([value])
    return [run[0] if len(run) == 1 else _span(run) for run in runs]


def _is_next(left: Tensor, right: Tensor) -> bool:
    """Whether two parts are neighbours in the matrix that both were cut from."""
    matrix = left._base
    if matrix is None or right._base is not matrix or right.storage_offset() != left.storage_offset() + left.shape[-1]:
        return False
    first = int(left.storage_offset() - matrix.storage_offset())
    return left.stride() == right.stride() == matrix.stride() and left.shape[0] == right.shape[0] and _is_inside(matrix, first, left, right)


def _is_inside(matrix: Tensor, first: int, left: Tensor, right: Tensor) -> bool:
    return matrix.dim() == 2 and matrix.stride(1) == 1 and first >= 0 and first + left.shape[1] + right.shape[1] <= matrix.shape[1]


def _span(run: Sequence[Tensor]) -> Tensor:
    """All columns of neighbours, as one view."""
    matrix, first = run[0]._base, run[0]
    assert matrix is not None
    start = first.storage_offset() - matrix.storage_offset()
    return matrix[: first.shape[0], start : start + sum(part.shape[1] for part in run)]
