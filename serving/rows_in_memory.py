"""Tables in memory of this process alone, on huge pages: each file is read once, and its sha256 is reckoned of the very bytes that came in. So it is
of mapped ones.

All tables of an artifact lie in one memory, one after the other, so that small ones share huge pages too.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from emberline.cpus import usable_cpus
from emberline.manifest import FileEntry
from emberline.memory import CACHE_LINE_BYTES, aligned_memory
from emberline.serving.rows_on_disk import RowsOnDisk

_BLOCK_BYTES = 1 << 20
"""What is read at a time, and hashed while it lies in a processor's cache."""
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class StoredTable:
    """A table's file.

    Args:
        rows: where its rows are.
        entry: what the manifest says of the file; None where that need not be compared.
    """

    rows: RowsOnDisk
    entry: FileEntry | None

    @property
    def num_bytes(self) -> int:
        """Bytes of its rows."""
        return self.rows.shape[0] * self.rows.shape[1] * self.rows.dtype.itemsize


def read_tables(tables: Mapping[str, StoredTable]) -> tuple[dict[str, Tensor], list[str]]:
    """Read tables, several at once.

    Returns:
        The rows of each table, each row where the one before it ends, the first on a cache line; and the names of those whose file is not what
        its entry says.

    Raises:
        MemoryError: there is not so much memory.
        OSError: a file cannot be read.
    """
    sizes = [-(-table.num_bytes // CACHE_LINE_BYTES) * CACHE_LINE_BYTES for table in tables.values()]
    try:
        memory = np.frombuffer(aligned_memory(sum(sizes)), np.uint8)
    except OSError as error:
        raise MemoryError(f"{sum(sizes) >> 20} MiB for tables: {error.strerror}") from error
    ends = np.cumsum(sizes).tolist()
    parts = {name: memory[end - size :][: table.num_bytes] for (name, table), size, end in zip(tables.items(), sizes, ends, strict=True)}
    changed = _go_over(tables, parts, fill=True)
    return {name: _as_rows(part, tables[name].rows) for name, part in parts.items()}, changed


def find_changed(tables: Mapping[str, StoredTable], mapped: Mapping[str, Tensor]) -> list[str]:
    """The names of tables whose file is not what its entry says, by the bytes that lookups will read: those of the file's pages in memory.

    Args:
        tables: their files.
        mapped: the rows of each, as they are mapped.

    Raises:
        OSError: a file cannot be read.
    """
    return _go_over(tables, {name: mapped[name].view(-1).view(torch.uint8).numpy() for name in tables}, fill=False)


def bytes_of(tables: Sequence[Tensor]) -> list[tuple[int, int]]:
    """Address and size in bytes of each tensor."""
    return [(table.data_ptr(), table.numel() * table.element_size()) for table in tables]


def _go_over(tables: Mapping[str, StoredTable], parts: Mapping[str, Bytes], *, fill: bool) -> list[str]:
    """The tables whose file is not what its entry says; the rows of all are read into their parts of memory, or are there."""
    largest_first = sorted(tables, key=lambda name: tables[name].num_bytes, reverse=True)
    with ThreadPoolExecutor(max(1, min(usable_cpus(), len(tables))), "tables") as pool:
        is_good = dict(zip(largest_first, pool.map(lambda name: _go_through(tables[name], parts[name], fill), largest_first), strict=True))
    return [name for name in tables if not is_good[name]]


def _as_rows(part: Bytes, rows: RowsOnDisk) -> Tensor:
    if not part.size:
        return torch.empty(rows.shape, dtype=rows.dtype)
    return torch.from_numpy(part).view(rows.dtype).view(rows.shape)


def _go_through(table: StoredTable, part: Bytes, fill: bool) -> bool:
    """Whether a table's file is what its entry says; its rows are read into a part of memory, or are there."""
    digest = hashlib.sha256() if table.entry is not None else None
    with _named(table.rows.file.path), table.rows.file.path.open("rb", buffering=0) as stream:
        size = _pass_over(stream, digest, table.rows.file.start)
        for start in range(0, part.size, _BLOCK_BYTES):
            block = part[start : start + _BLOCK_BYTES]
            if fill:
                _fill(stream, block)
            if digest is not None:
                digest.update(block.data)
        size += part.size
        if digest is None or table.entry is None:
            return True
        stream.seek(size)
        size += _pass_over(stream, digest, None)
    return FileEntry(bytes=size, sha256=digest.hexdigest()) == table.entry


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """The system's errors of reading tell of no file: make them do so."""
    try:
        yield
    except OSError as error:
        if error.strerror is None:  # one of ours
            raise
        raise OSError(f"{path}: {error.strerror}") from error


def _pass_over(stream: FileIO, digest: Any, num_bytes: int | None) -> int:
    """Read what is no row, such as a file's header: so many bytes, or all that is left; how many there were."""
    count = 0
    while (num_bytes is None or count < num_bytes) and (block := stream.read(_BLOCK_BYTES if num_bytes is None else num_bytes - count)):
        count += len(block)
        if digest is not None:
            digest.update(block)
    return count


def _fill(stream: FileIO, block: Bytes) -> None:
    view = block.data
    while view:
        found = stream.readinto(view)
        if not found:
            raise OSError(f"{stream.name} ends before its rows do")
        view = view[found:]
