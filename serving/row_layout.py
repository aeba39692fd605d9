"""How far apart the rows of a table in memory of its own are, so that they straddle fewer lines of the processor's cache.

A row that is read at random costs the lines of 64 bytes that it touches. Rows side by side touch one more than they must where they cross an edge:
rows of 60 bytes 1.875 on average, and one where 4 bytes are left free behind each.
"""

from dataclasses import dataclass
from math import gcd, inf

import numpy as np
import numpy.typing as npt

from emberline.errors import ConfigError
from emberline.memory import CACHE_LINE_BYTES

DEFAULT_GROWTH = 0.125
"""How much larger a table may become, as a share of its rows."""
Bytes = npt.NDArray[np.uint8]


def lines_of(row_bytes: int, pitch: int) -> float:
    """How many lines a row touches on average, where the first row begins on a line.

    Args:
        row_bytes: of a row, at least 1.
        pitch: bytes from a row to the next.
    """
    places = range(0, CACHE_LINE_BYTES, gcd(pitch, CACHE_LINE_BYTES))
    return sum((place + row_bytes - 1) // CACHE_LINE_BYTES + 1 for place in places) / len(places)


def pitch_of(row_bytes: int, unit: int, growth: float = DEFAULT_GROWTH) -> int:
    """The bytes from a row to the next by which rows touch the fewest lines, for memory that is worth it: a table grows by no greater share than
    lines become fewer by, and by `growth` at most.

    Args:
        row_bytes: of a row.
        unit: bytes of a number; the answer is a multiple of it, as `row_bytes` is.
        growth: 0 leaves rows side by side.
    """
    if not row_bytes:
        return 0
    side_by_side = lines_of(row_bytes, row_bytes)

    def pays(pitch: int) -> bool:
        return (side_by_side - lines_of(row_bytes, pitch)) * row_bytes >= (pitch - row_bytes) * side_by_side

    most = min(row_bytes + int(row_bytes * growth), row_bytes + CACHE_LINE_BYTES)
    return min((pitch for pitch in range(row_bytes, most + 1, unit) if pays(pitch)), key=lambda pitch: (lines_of(row_bytes, pitch), pitch))


def require_growth(growth: float) -> None:
    """Refuse what no table can grow by.

    Raises:
        ConfigError: it is no number from 0 on.
    """
    if not 0 <= growth < inf:
        raise ConfigError(f"tables cannot grow by {growth}: give a share from 0 on, such as {DEFAULT_GROWTH}")


@dataclass(frozen=True, eq=False)
class SpreadRows:
    """Memory for rows that come side by side, and lie with gaps.

    Args:
        rows: uint8 [R, row_bytes], as they lie.
    """

    rows: Bytes

    @classmethod
    def over(cls, memory: Bytes, row_bytes: int, pitch: int) -> "SpreadRows":
        """Rows in memory of so many bytes as `pitch` says for all of them."""
        return cls(memory.reshape(-1, pitch)[:, :row_bytes])

    def put(self, start: int, block: Bytes) -> None:
        """Write some bytes, which are those from `start` on where rows lie side by side; they may begin and end within rows."""
        row_bytes = self.rows.shape[1]
        first, offset = divmod(start, row_bytes)
        if offset:
            rest, block = block[: row_bytes - offset], block[row_bytes - offset :]
            self.rows[first, offset : offset + rest.size] = rest
            first += 1
        whole = block.size // row_bytes
        self.rows[first : first + whole] = block[: whole * row_bytes].reshape(whole, row_bytes)
        if left := block.size % row_bytes:
            self.rows[first + whole, :left] = block[-left:]
