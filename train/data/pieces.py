"""Rows that come in parts of any length, cut into pieces of one length."""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Protocol, Self, TypeVar


class Rows(Protocol):
    """Rows that can be cut without a copy."""

    @property
    def num_rows(self) -> int:
        """How many."""
        ...

    def cut(self, start: int, stop: int, /) -> Self:
        """Rows [start, stop)."""
        ...


R = TypeVar("R", bound=Rows)


def cut_pieces(parts: Iterable[R], num_rows: int) -> Iterator[list[R]]:
    """The same rows in pieces of exactly `num_rows`, each a list of parts; the last may be shorter, none is empty."""
    waiting: deque[R] = deque()
    held = 0
    for part in parts:
        waiting.append(part)
        held += part.num_rows
        while held >= num_rows:
            yield _take_first(waiting, num_rows)
            held -= num_rows
    if held:
        yield _take_first(waiting, held)


def _take_first(waiting: deque[R], num_rows: int) -> list[R]:
    taken = []
    while num_rows:
        part = waiting.popleft()
        if part.num_rows > num_rows:
            waiting.appendleft(part.cut(num_rows, part.num_rows))
            part = part.cut(0, num_rows)
        num_rows -= part.num_rows
        if part.num_rows:
            taken.append(part)
    return taken
