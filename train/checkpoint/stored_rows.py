"""Rows of one stored tensor, read from a checkpoint's files by their numbers: the tensor is never whole in memory, nor is one of its pieces.

However the ranks had cut it, by rows, by columns, or both, each piece lies uncompressed in some file, and a piece's rows one after the other:

    rank 0's file   [ .. | rows 0-4, columns 0-7  | .. ]     ──►   rows 3 and 4, all columns
    rank 1's file   [ .. | rows 0-4, columns 8-15 | .. ]
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata

from emberline.errors import CheckpointError
from emberline.file_rows import Bytes, FileRows
from emberline.train.checkpoint.tensors import read_chunk, read_index


@dataclass(frozen=True)
class _Piece:
    """One piece: where it lies in the whole, and where in which file.

    Args:
        offsets: of its first number in the whole.
        sizes: its shape.
        path: of the file.
        start: first of its bytes there.
        length: how many.
        is_plain: whether these bytes are as `torch.save` wrote them.
    """

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    path: Path
    start: int
    length: int
    is_plain: bool

    @property
    def first(self) -> int:
        """Its first row."""
        return self.offsets[0]

    @property
    def stop(self) -> int:
        """The row after its last."""
        return self.offsets[0] + self.sizes[0]

    @property
    def columns(self) -> tuple[slice, ...]:
        """Its place in each row."""
        return tuple(slice(first, first + size) for first, size in zip(self.offsets[1:], self.sizes[1:], strict=True))

    def byte_columns(self, dtype: torch.dtype) -> slice:
        """The same in bytes."""
        first, stop = (self.columns[0].start, self.columns[0].stop) if len(self.sizes) == 2 else (0, math.prod(self.sizes[1:]))
        return slice(first * dtype.itemsize, stop * dtype.itemsize)

    @cached_property
    def rows(self) -> FileRows | None:
        """Where its numbers lie, row after row; None where they do not lie so."""
        shell = read_chunk(self.path, self.start, self.length, shell=True)
        if not self.is_plain or tuple(shell.shape) != self.sizes or not shell.is_contiguous():
            return None
        storage: Any = shell.untyped_storage()
        start = self.start + storage._checkpoint_offset + shell.storage_offset() * shell.itemsize
        return FileRows(self.path, start, self.sizes[0], math.prod(self.sizes[1:]) * shell.itemsize)


class StoredRows:
    """A tensor of a checkpoint whose first dimension counts rows.

    Args:
        folder: of the tensors.
        name: of one that has rows.
        index: the folder's, where it was read already.

    Raises:
        CheckpointError: there is no such tensor, or its pieces are not the whole of it.
    """

    def __init__(self, folder: Path, name: str, index: Metadata | None = None) -> None:
        index = read_index(folder) if index is None else index
        entry = index.state_dict_metadata.get(name)
        if not isinstance(entry, TensorStorageMetadata):
            raise CheckpointError(f"{folder} does not fit the model: {name} is not in it")
        self.shape, self.dtype = tuple(entry.size), entry.properties.dtype
        self._pieces = []
        for chunk in entry.chunks:
            place = index.storage_data[MetadataIndex(name, chunk.offsets)]
            plain = not getattr(place, "transform_descriptors", None)
            where = (folder / place.relative_path, place.offset, place.length)
            self._pieces.append(_Piece(tuple(chunk.offsets), tuple(chunk.sizes), *where, plain))
        if sum(math.prod(piece.sizes) for piece in self._pieces) != math.prod(self.shape):
            raise CheckpointError(f"{folder}: the pieces of {name} are not the whole of it")
        self._firsts = np.array([piece.first for piece in self._pieces], np.int64)
        self._stops = np.array([piece.stop for piece in self._pieces], np.int64)

    def read(self, first: int, stop: int) -> Tensor:
        """The rows from `first` to before `stop`: [stop - first, ...] on the CPU.

        Raises:
            CheckpointError: a file cannot be read.
        """
        assert 0 <= first <= stop <= self.shape[0], (first, stop, self.shape)
        found = torch.empty(stop - first, *self.shape[1:], dtype=self.dtype)
        starts, ends = np.maximum(self._firsts, first), np.minimum(self._stops, stop)
        for place in np.flatnonzero(starts < ends).tolist():
            piece, start, end = self._pieces[place], int(starts[place]), int(ends[place])
            _read(piece, start, found[(slice(start - first, end - first), *piece.columns)])
        return found

    def take(self, rows: Tensor) -> Tensor:
        """Some rows: int64 [n], in any order -> [n, ...] on the CPU.

        Raises:
            CheckpointError: a file cannot be read.
        """
        found = torch.empty(len(rows), *self.shape[1:], dtype=self.dtype)
        into, numbers = _bytes(found), rows.numpy()  # numpy's operations of one thread: torch's wait for each other where others are at work
        assert not numbers.size or 0 <= numbers.min() <= numbers.max() < self.shape[0], (numbers.min(), numbers.max(), self.shape)
        for piece in self._pieces:
            places = np.flatnonzero((numbers >= piece.first) & (numbers < piece.stop))
            if places.size:
                _take(piece, numbers[places] - piece.first, into[:, piece.byte_columns(self.dtype)], places)
        return found


def read_rows(folder: Path, name: str, rows: Tensor) -> Tensor:
    """Some rows of a stored tensor; see `StoredRows`.

    Args:
        folder: of the tensors.
        name: of one that has rows.
        rows: int64 [n], in any order.

    Returns:
        [n, ...] on the CPU.

    Raises:
        CheckpointError: it is not stored, or a file cannot be read.
    """
    return StoredRows(folder, name).take(rows)


def _read(piece: _Piece, first: int, into: Tensor) -> None:
    """Fill `into`, the piece's part of some rows, from row `first` of the whole on."""
    first -= piece.first
    if piece.rows is None:
        into.copy_(read_chunk(piece.path, piece.start, piece.length)[first : first + len(into)])
        return
    part = into if into.is_contiguous() else torch.empty_like(into, memory_format=torch.contiguous_format)
    with _plain_errors(piece.path):
        piece.rows.read(first, _bytes(part))
    if part is not into:
        into.copy_(part)


def _take(piece: _Piece, rows: npt.NDArray[np.int64], into: Bytes, places: npt.NDArray[np.int64]) -> None:
    """Fill the piece's part of some rows: of row `rows[n]` of the piece at `into[places[n]]`."""
    if piece.rows is None:
        into[places] = _bytes(read_chunk(piece.path, piece.start, piece.length)[torch.from_numpy(rows)].contiguous())
        return
    with _plain_errors(piece.path):
        piece.rows.take(rows, into, places)


def _bytes(tensor: Tensor) -> Bytes:
    """A tensor's memory as uint8 [rows, bytes of each]."""
    return tensor.view(len(tensor), math.prod(tensor.shape[1:])).view(torch.uint8).numpy()


@contextmanager
def _plain_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
