"""Tensor files of an artifact: safetensors, written with their first tensor on a cache line, read by mapping.

safetensors' own writer aligns the data at 8 bytes, which puts every 64-byte row on two cache lines, and builds the whole file in memory.
"""

import json
import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from emberline.errors import ArtifactError
from emberline.manifest import FileEntry
from emberline.serving.hashed_file import HashedFile

ALIGNMENT = 64
_DTYPE_CODES = {
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.bool: "BOOL",
    torch.uint8: "U8",
}


@dataclass(frozen=True, eq=False)
class InBlocks:
    """A tensor that is never whole in memory: its shape and number type, and its rows in blocks, in order."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    blocks: Iterable[Tensor]


class TensorWriter:
    """A safetensors file whose data starts at a multiple of 64 bytes, written block by block; as a context it is closed at the end.

    Args:
        path: of the file; one that is there is overwritten.
        tensors: shape and number type of each by name, in the order in which they will lie, without gaps.
    """

    def __init__(self, path: Path, tensors: Mapping[str, tuple[Sequence[int], torch.dtype]]) -> None:
        header: dict[str, object] = {}
        end = 0
        for name, (shape, dtype) in tensors.items():
            start, end = end, end + math.prod(shape) * dtype.itemsize
            header[name] = {"dtype": _DTYPE_CODES[dtype], "shape": list(shape), "data_offsets": [start, end]}
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-(8 + len(text)) % ALIGNMENT)
        self._file, self._missing = HashedFile(path), end
        self._file.write(struct.pack("<Q", len(text)) + text)

    def write(self, block: Tensor) -> None:
        """Add the next numbers; they must not change before the next call, or the end, returns.

        Raises:
            OSError: they cannot be written.
        """
        if block.numel():
            data = block.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
            self._missing -= data.nbytes
            self._file.write(data)

    def close(self) -> FileEntry:
        """Wait until all is written.

        Returns:
            Size and sha256 of the file.

        Raises:
            OSError: something could not be written.
        """
        entry = self._file.close()
        assert self._missing == 0, f"blocks of another size than was said: {self._missing} bytes are missing"
        return entry

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self.close()
        else:
            self._file.__exit__(kind, error, trace)


def write_tensors(path: Path, tensors: Mapping[str, Tensor | InBlocks]) -> FileEntry:
    """Write a safetensors file, as `TensorWriter` does; the tensors lie in the order given.

    Returns:
        Size and sha256 of the file.
    """
    with TensorWriter(path, {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}) as writer:
        for tensor in tensors.values():
            for block in tensor.blocks if isinstance(tensor, InBlocks) else (tensor,):
                writer.write(block)
        return writer.close()


def map_tensors(path: Path) -> dict[str, Tensor]:
    """Every tensor of a safetensors file, mapped: pages are read when touched, and shared with other processes that map the file.

    Raises:
        ArtifactError: the file is not safetensors, or is cut short.
    """
    try:
        with safe_open(str(path), framework="pt", device="cpu") as source:
            return {name: source.get_tensor(name) for name in source.keys()}  # noqa: SIM118 - safe_open is no mapping
    except (SafetensorError, OSError) as error:
        raise ArtifactError(f"{path.name} is not a readable safetensors file: {error}") from error
