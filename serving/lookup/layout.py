"""Where what was looked up lies in an answer, column by column."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Self

from emberline.schema import ModelSchema

Span = tuple[str, int, int]
"""Some columns of a program's input: its name, the first, and the one after the last."""


@dataclass(frozen=True)
class Layout:
    """The columns of an answer.

    Args:
        reads: for each vector, the place of its lookup in the schema and the column where it begins.
        pieces: for each run of numbers that a request brings: the first of them in its row of such, how many, and the column where they begin.
        width: columns in all.
    """

    reads: tuple[tuple[int, int], ...]
    pieces: tuple[tuple[int, int, int], ...]
    width: int

    @classmethod
    def side_by_side(cls, schema: ModelSchema) -> Self:
        """All lookups in the schema's order: what programs take as `pooled`."""
        starts = list(accumulate((lookup.dim for lookup in schema.lookups), initial=0))
        return cls(tuple(enumerate(starts[:-1])), (), starts[-1])

    @classmethod
    def of(cls, schema: ModelSchema, spans: Sequence[Span]) -> Self | None:
        """Some columns of `pooled` and `dense` in order; None where one has only a part of a lookup."""
        starts = list(accumulate((lookup.dim for lookup in schema.lookups), initial=0))
        reads, pieces, column = [], [], 0
        for name, first, stop in spans:
            if name == "pooled" and first < stop:
                if first not in starts or stop not in starts:
                    return None
                own = range(starts.index(first), starts.index(stop))
                reads += [(place, column + starts[place] - first) for place in own]
            elif name == "dense" and first < stop:
                pieces.append((first, stop - first, column))
            elif first < stop:
                return None
            column += stop - first
        return cls(tuple(reads), tuple(pieces), column)
