"""Tensor files of an artifact: safetensors, written with their first tensor on a cache line, read by mapping.

safetensors' own writer aligns the data at 8 bytes, which puts every 64-byte row on two cache lines, and builds the whole file in memory.
"""

import json
import math
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from emberline.errors import ArtifactError

ALIGNMENT = 64
_DTYPE_CODES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64", torch.int32: "I32", torch.bool: "BOOL"}


@dataclass(frozen=True, eq=False)
class InBlocks:
    """A tensor that is never whole in memory: its shape and number type, and its rows in blocks, in order."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    blocks: Iterable[Tensor]


def write_tensors(path: Path, tensors: Mapping[str, Tensor | InBlocks]) -> None:
    """Write a safetensors file whose data starts at a multiple of 64 bytes; the tensors lie in the order given, without gaps."""
    header: dict[str, object] = {}
    start = 0
    for name, tensor in tensors.items():
        end = start + math.prod(tensor.shape) * tensor.dtype.itemsize
        header[name] = {"dtype": _DTYPE_CODES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
        start = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    with path.open("wb") as stream:
        stream.write(struct.pack("<Q", len(text)))
        stream.write(text)
        for tensor in tensors.values():
            for block in tensor.blocks if isinstance(tensor, InBlocks) else (tensor,):
                if block.numel():
                    block.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tofile(stream)
        assert stream.tell() == 8 + len(text) + start, "blocks of another size than was said"


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
