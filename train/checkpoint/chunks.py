"""Parts of one large tensor, as PyTorch's distributed checkpoint format reads and writes them: by where each lies in the whole.

A rank describes only what it holds. No process group and no other rank's layout is needed, so a tensor may be saved from one layout and loaded
into any other.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

MAX_PIECE_BYTES = 64 << 20
"""Larger parts are written in several pieces of rows, so that a reader needs little memory."""


@dataclass(frozen=True)
class Chunk:
    """One part.

    Args:
        offsets: where its first number lies in the whole.
        tensor: the live numbers.
    """

    offsets: tuple[int, ...]
    tensor: Tensor


@dataclass(frozen=True)
class Reading:
    """One part whose numbers are fetched when they are written, a piece at a time: it need not be whole in memory.

    Args:
        offsets: where its first number lies in the whole.
        shape: of the part.
        read: gives its rows from the first to before the second number, as often as it is asked: no row changes meanwhile.
    """

    offsets: tuple[int, ...]
    shape: tuple[int, ...]
    read: Callable[[int, int], Tensor]


class ReadChunks:
    """What this process writes of a tensor, out of anything that can be read by rows; it can only be written.

    Args:
        shape: of the whole, with one dimension or more.
        dtype: of the whole.
        parts: that do not overlap, in any order; empty ones are left out.
        is_copy: nothing changes any more what is read.
    """

    def __init__(self, shape: Sequence[int], dtype: torch.dtype, parts: Sequence[Reading], *, is_copy: bool = False) -> None:
        self.shape, self.dtype, self.is_copy = torch.Size(shape), dtype, is_copy
        self.parts = tuple(part for part in parts if math.prod(part.shape))
        assert all(len(part.shape) == len(self.shape) for part in self.parts)
        self._pieces = [piece for part in self.parts for piece in _read_pieces(part, dtype)]

    def size(self) -> torch.Size:
        """The shape of the whole."""
        return self.shape

    def copied(self, memory: Callable[[Sequence[int], torch.dtype], Tensor]) -> "Chunks":
        """The same numbers as they are now, in memory that `memory` gives for a shape and a type."""
        copies = []
        for part in self.parts:
            copy = memory(part.shape, self.dtype)
            for piece in _read_pieces(part, self.dtype):
                first = piece.offsets[0] - part.offsets[0]
                copy[first : first + piece.shape[0]] = part.read(first, first + piece.shape[0])
            copies.append(Chunk(part.offsets, copy))
        return Chunks(self.shape, self.dtype, copies)

    def __create_write_items__(self, fqn: str, object: object) -> list[WriteItem]:
        """For PyTorch: what to write."""
        places = [ChunkStorageMetadata(offsets=torch.Size(piece.offsets), sizes=torch.Size(piece.shape)) for piece in self._pieces]
        return _write_items(fqn, self.shape, self.dtype, places)

    def __get_tensor_shard__(self, index: MetadataIndex) -> Tensor:
        """For PyTorch: the numbers of one piece."""
        piece = next(piece for piece in self._pieces if torch.Size(piece.offsets) == index.offset)
        found = piece.read(0, piece.shape[0])
        assert (tuple(found.shape), found.dtype) == (tuple(piece.shape), self.dtype), (index, found.shape, found.dtype)
        return found


class Chunks:
    """What this process holds of a tensor.

    Args:
        shape: of the whole.
        dtype: of the whole.
        chunks: parts that do not overlap, in any order; empty ones are left out.
    """

    def __init__(self, shape: Sequence[int], dtype: torch.dtype, chunks: Sequence[Chunk]) -> None:
        self.shape, self.dtype = torch.Size(shape), dtype
        self.chunks = tuple(chunk for chunk in chunks if chunk.tensor.numel())
        assert all(chunk.tensor.dtype == dtype and chunk.tensor.dim() == len(self.shape) for chunk in self.chunks)
        self._pieces = [piece for chunk in self.chunks for piece in _pieces(chunk)]

    def size(self) -> torch.Size:
        """The shape of the whole."""
        return self.shape

    def whole(self) -> Tensor:
        """The live tensor, of a process that holds all of it in one part."""
        (chunk,) = self.chunks
        assert chunk.tensor.shape == self.shape
        return chunk.tensor

    def like(self, tensors: Sequence[Tensor]) -> "Chunks":
        """The same places, other tensors of the same shapes."""
        pairs = zip(self.chunks, tensors, strict=True)
        return Chunks(self.shape, self.dtype, [Chunk(chunk.offsets, tensor) for chunk, tensor in pairs])

    def __create_write_items__(self, fqn: str, object: object) -> list[WriteItem]:
        """For PyTorch: what to write."""
        return _write_items(fqn, self.shape, self.dtype, [_place(piece) for piece in self._pieces])

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        """For PyTorch: what to read."""
        return [_place(piece) for piece in self._pieces]

    def __get_tensor_shard__(self, index: MetadataIndex) -> Tensor:
        """For PyTorch: the live numbers of one piece."""
        return next(piece.tensor for piece in self._pieces if torch.Size(piece.offsets) == index.offset)


def _write_items(name: str, shape: torch.Size, dtype: torch.dtype, places: Sequence[ChunkStorageMetadata]) -> list[WriteItem]:
    """What PyTorch is told of pieces that are to be written."""
    properties = TensorProperties(dtype=dtype, layout=torch.strided, requires_grad=False)
    return [
        WriteItem(
            index=MetadataIndex(name, chunk.offsets, place),
            type=WriteItemType.SHARD,
            tensor_data=TensorWriteData(chunk=chunk, properties=properties, size=shape),
        )
        for place, chunk in enumerate(places)
    ]


def _place(piece: Chunk) -> ChunkStorageMetadata:
    return ChunkStorageMetadata(offsets=torch.Size(piece.offsets), sizes=piece.tensor.shape)


def _pieces(chunk: Chunk) -> list[Chunk]:
    tensor = chunk.tensor.detach()
    if tensor.dim() == 0:
        return [Chunk(chunk.offsets, tensor)]
    rows = _rows_of_piece(tensor.shape, tensor.dtype)
    first, *others = chunk.offsets
    return [Chunk((first + start, *others), tensor[start : start + rows]) for start in range(0, len(tensor), rows)]


def _read_pieces(part: Reading, dtype: torch.dtype) -> list[Reading]:
    rows, (first, *others), (size, *width) = _rows_of_piece(part.shape, dtype), part.offsets, part.shape

    def piece(start: int) -> Reading:
        return Reading((first + start, *others), (min(rows, size - start), *width), lambda begin, end: part.read(start + begin, start + end))

    return [piece(start) for start in range(0, size, rows)]


def _rows_of_piece(shape: Sequence[int], dtype: torch.dtype) -> int:
    return max(MAX_PIECE_BYTES // max(dtype.itemsize * math.prod(shape[1:]), 1), 1)
