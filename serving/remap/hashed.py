"""The id index of serving: raw ids by hash, in lines of a processor's cache; see `lines.py`."""

import torch
from torch import Tensor

from emberline.serving.remap import lines as portable
from emberline.serving.remap.fallback import FallbackRows
from emberline.serving.remap.index import RemapIndex, SortedRemap
from emberline.serving.remap.native import KERNEL

IDS_PER_THREAD = 16384
"""A batch of fewer ids than twice this is looked up by one thread: starting another takes as long as some thousand ids."""
SEEDS = tuple(number * 0x2545F4914F6CDD1D % 2**63 for number in range(8))
"""Tried in order: ids that one of them sends to the same few homes are spread by the next."""
MOST_ROWS = 2**31
"""Rows are stored in 32 bits."""


class HashedRemap:
    """Reads one line of 64 bytes for nearly every id, asking for many at once; without Python's lock, by `kernel.c` where that is there.

    Make one with `build_index`.

    Args:
        lines: int64 [H + MOST_REACH, 8], filled.
        num_homes: H.
        seed: of the hash that they were filled by.
        num_ids: K: how many ids have a row of their own.
        fallback: the rows of all others.
        native: use the kernel, where it is there, on a CPU; else `lines.py`. The answers are the same.

    Attributes:
        fallback: as given, and so are `lines`, `num_homes`, `seed` and `num_ids`.
    """

    def __init__(self, lines: Tensor, num_homes: int, seed: int, num_ids: int, fallback: FallbackRows, *, native: bool = True) -> None:
        self.num_ids = num_ids
        self.lines = lines
        self.num_homes = num_homes
        self.seed = seed
        self.fallback = fallback
        self._native = native
        self._library = KERNEL.get() if native and lines.device.type == "cpu" else None

    @property
    def num_bytes(self) -> int:
        """Memory of the index."""
        return self.lines.numel() * self.lines.element_size()

    def reading(self, row: int) -> "HashedRemap":
        """The same lines with one row for all other ids; see `RemapIndex`."""
        return HashedRemap(self.lines, self.num_homes, self.seed, self.num_ids, self.fallback.reading(row), native=self._native)

    def __call__(self, raw_ids: Tensor) -> tuple[Tensor, Tensor]:
        """The row of each id, and whether it was trained; see `RemapIndex`."""
        assert (raw_ids.dtype, raw_ids.device, raw_ids.dim()) == (torch.int64, self.lines.device, 1), raw_ids
        rows, known = self._find(raw_ids.contiguous())
        if not self.fallback.same_for_all:
            unknown = known.logical_not().nonzero().squeeze(1)
            rows[unknown] = self.fallback(raw_ids[unknown])
        return rows, known

    def _find(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        if self._library is None:
            found = portable.find(ids, self.lines, self.num_homes, self.seed)
            known = found >= 0
            return torch.where(known, found.long(), self.fallback.first), known
        rows, known = torch.empty_like(ids), torch.empty_like(ids, dtype=torch.bool)
        num_threads = max(1, min(torch.get_num_threads(), ids.numel() // IDS_PER_THREAD))
        place = (self.lines.data_ptr(), self.num_homes, self.seed)
        self._library.emberline_remap_lookup(ids.data_ptr(), ids.numel(), *place, self.fallback.first, rows.data_ptr(), known.data_ptr(), num_threads)
        return rows, known


def build_index(
    raw_ids: Tensor, rows: Tensor, fallback: FallbackRows, *, num_rows: int, device: torch.device | str = "cpu", native: bool = True
) -> RemapIndex:
    """The index of a table's raw ids, on `device`.

    Args:
        raw_ids: int64 [K], strictly ascending; on the CPU.
        rows: int64 [K], the row of each.
        fallback: the rows of all other ids; on `device`.
        num_rows: rows of the table.
        device: where it will be asked.
        native: use the kernel, where it is there; else `lines.py`.

    Returns:
        A `HashedRemap`; a `SortedRemap` for what cannot be hashed: 2**31 rows or more.
    """
    if (filled := fill_lines(raw_ids, rows, num_rows, native=native)) is None:
        return SortedRemap(raw_ids.to(device), rows.to(device), fallback)
    return HashedRemap(filled[0].to(device), homes_of(filled[0]), filled[1], raw_ids.numel(), fallback, native=native)


def fill_lines(raw_ids: Tensor, rows: Tensor, num_rows: int, *, native: bool = True) -> tuple[Tensor, int] | None:
    """The lines of an index, int64 [H + MOST_REACH, 8], and the seed that they were filled by; None for ids that cannot be hashed.

    Args:
        raw_ids: as for `build_index`.
        rows: the same.
        num_rows: the same.
        native: the same; either gives the same lines to the bit.
    """
    if num_rows < MOST_ROWS:
        lines, num_homes = portable.new_lines(raw_ids.numel())
        for seed in SEEDS:
            if _fill(raw_ids.contiguous(), rows.contiguous(), lines, num_homes, seed, native=native) >= 0:
                return lines, seed
    return None


def homes_of(lines: Tensor) -> int:
    """How many of some lines are homes."""
    return lines.shape[0] - portable.MOST_REACH


def _fill(raw_ids: Tensor, rows: Tensor, lines: Tensor, num_homes: int, seed: int, *, native: bool) -> int:
    """The reach, or -1; see `lines.fill`."""
    library = KERNEL.get() if native else None
    if library is None:
        return portable.fill(raw_ids, rows, lines, num_homes, seed)
    left = torch.empty_like(raw_ids)
    given = (raw_ids.data_ptr(), rows.data_ptr(), raw_ids.numel(), lines.data_ptr(), num_homes, seed)
    return int(library.emberline_remap_build(*given, portable.MOST_REACH, left.data_ptr()))
