"""Tensor files of an artifact: safetensors, written with their first tensor on a cache line, read by mapping.

safetensors' own writer aligns the data at 8 bytes, which puts every 64-byte row on two cache lines, and builds the whole file in memory.
"""

import json
import math
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load
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
            Size and digests of the file.

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
        Size and digests of the file.
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
    return _mapped(str(path), path.name)


def map_open_tensors(descriptor: int, name: str) -> dict[str, Tensor]:
    """As `map_tensors`, of a file that is open, whatever has its path by now.

    Args:
        descriptor: of the open file.
        name: what messages call it.
    """
    return _mapped(f"/proc/self/fd/{descriptor}", name)


def load_tensors(data: bytes, name: str) -> dict[str, Tensor]:
    """Every tensor of a small safetensors file that was read already.

    Args:
        data: what the file holds.
        name: what messages call it.

    Raises:
        ArtifactError: that is not safetensors, or cut short.
    """
    with _named(name):
        return load(data)


def _mapped(source: str, name: str) -> dict[str, Tensor]:
    with _named(name), safe_open(source, framework="pt", device="cpu") as found:
        return {tensor: found.get_tensor(tensor) for tensor in found.keys()}  # noqa: SIM118 - safe_open is no mapping


@contextmanager
def _named(name: str) -> Iterator[None]:
    try:
        yield
    except (SafetensorError, OSError) as error:
        raise ArtifactError(f"{name} is not a readable safetensors file: {error}") from error
