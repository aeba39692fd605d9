"""How the demo tells what it does: numbered steps with their times, and tables that fit an 80-column terminal."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

Say = Callable[[str], None]


class Steps:
    """Counts and times the steps.

    Args:
        count: how many there will be.
        say: prints one line.
    """

    def __init__(self, count: int, say: Say) -> None:
        self._count = count
        self._say = say
        self._number = 0
        self._start = time.monotonic()

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        """Announce a step, and say how long it took once it is done."""
        self._number += 1
        self._say(f"\n[{self._number}/{self._count}] {title}")
        start = time.monotonic()
        yield
        self._say(f"      done in {time.monotonic() - start:.1f} s")

    def note(self, line: str) -> None:
        """A line of the step that is running."""
        self._say(f"      {line}")

    def command(self, line: str) -> None:
        """The command that a user would type for this step."""
        self._say(f"      $ {line}")

    @property
    def total_s(self) -> float:
        """Seconds since the first step."""
        return time.monotonic() - self._start


def table_lines(headings: Sequence[Sequence[str]], rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of texts under one or more lines of headings, as right-aligned columns; the first column is aligned to the left."""
    widths = [max(len(row[place]) for row in (*headings, *rows)) for place in range(len(headings[0]))]

    def line(row: Sequence[str]) -> str:
        cells = (text.ljust(width) if place == 0 else text.rjust(width) for place, (text, width) in enumerate(zip(row, widths, strict=True)))
        return "  ".join(cells).rstrip()

    return [*map(line, headings), line(["-" * width for width in widths]), *(line(row) for row in rows)]
