"""Parts of one large tensor, as PyTorch's distributed checkpoint format reads and writes them: by where each lies in the whole.

A rank describes only what it holds. No process group and no other rank's layout is needed, so a tensor may be saved from one layout and loaded
into any other.
"""

from collections.abc import Sequence
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
        return [
            WriteItem(
                index=MetadataIndex(fqn, piece.offsets, place),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(
                    chunk=_place(piece), properties=TensorProperties(dtype=self.dtype, layout=torch.strided, requires_grad=False), size=self.shape
                ),
            )
            for place, piece in enumerate(self._pieces)
        ]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        """For PyTorch: what to read."""
        return [_place(piece) for piece in self._pieces]

    def __get_tensor_shard__(self, index: MetadataIndex) -> Tensor:
        """For PyTorch: the live numbers of one piece."""
        return next(piece.tensor for piece in self._pieces if torch.Size(piece.offsets) == index.offset)


def _place(piece: Chunk) -> ChunkStorageMetadata:
    return ChunkStorageMetadata(offsets=torch.Size(piece.offsets), sizes=piece.tensor.shape)


def _pieces(chunk: Chunk) -> list[Chunk]:
    tensor = chunk.tensor.detach()
    if tensor.dim() == 0:
        return [Chunk(chunk.offsets, tensor)]
    row_bytes = max(tensor.element_size() * tensor[0].numel(), 1)
    rows = max(MAX_PIECE_BYTES // row_bytes, 1)
    first, *others = chunk.offsets
    return [Chunk((first + start, *others), tensor[start : start + rows]) for start in range(0, len(tensor), rows)]
