"""A folder in PyTorch's distributed checkpoint format that others wrote, read chunk by chunk.

Nothing in it is run: the index goes through an unpickler that knows only the classes of an index, and a chunk is read as a tensor or not
at all. Beside what is being filled, one chunk at most is in memory: what one rank held of one tensor.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import MetadataIndex, TensorStorageMetadata

from emberline.errors import CheckpointError
from emberline.train.checkpoint.tensors import TensorInfo, read_chunk, read_index


@dataclass(frozen=True)
class Chunk:
    """A block of a tensor, and where it is.

    Args:
        offsets: the block's first place, by dimension.
        sizes: the block's shape.
        file: its name in the folder.
        start: the first byte.
        length: bytes.
    """

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str
    start: int
    length: int


@dataclass(frozen=True)
class StoredTensor:
    """A tensor, all of its chunks together."""

    info: TensorInfo
    chunks: tuple[Chunk, ...]


class StoredTensors:
    """The tensors of one folder.

    Args:
        folder: with an index and the files that it names.

    Raises:
        CheckpointError: there is no index, or it is not one.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        index = read_index(folder)
        try:
            entries = dict(index.state_dict_metadata)
            places = dict(index.storage_data)
            tensors = {name: entry for name, entry in entries.items() if isinstance(entry, TensorStorageMetadata)}
            self.tensors = {name: _stored(name, entry, places) for name, entry in tensors.items()}
        except (AttributeError, LookupError, TypeError, ValueError, OverflowError) as error:
            raise CheckpointError(f"{folder}: its index is damaged: {error!r}") from error
        self.others = tuple(str(name) for name in entries if name not in tensors)
        """Names of what is no tensor."""

    @property
    def infos(self) -> dict[str, TensorInfo]:
        """Shape and dtype by name."""
        return {name: tensor.info for name, tensor in self.tensors.items()}

    def problems(self, names: Iterable[str]) -> list[str]:
        """What keeps these tensors from being read whole: one sentence for each file or tensor."""
        wanted = list(dict.fromkeys(names))
        found = [f"{name}: {text}" for name in wanted if (text := _gap(self.tensors[name]))]
        ends: dict[str, int] = {}
        for name in wanted:
            for chunk in self.tensors[name].chunks:
                ends[chunk.file] = max(ends.get(chunk.file, 0), chunk.start + chunk.length)
        for file, end in sorted(ends.items()):
            path = self.folder / file
            if PurePath(file).name != file:
                found.append(f"{file!r} is no file of this folder")
            elif not path.is_file():
                found.append(f"{path} is missing: every rank's file is needed")
            elif path.stat().st_size < end:
                found.append(f"{path} is cut off: it has {path.stat().st_size} bytes, the index names {end}")
        return found

    def fill(self, name: str, into: Tensor, after_chunk: Callable[[], None] = lambda: None) -> None:
        """Read a tensor into another of the same shape and dtype.

        Raises:
            CheckpointError: a chunk cannot be read, or is not what the index says.
        """
        for chunk, tensor in self._read(name):
            _block(into, chunk).copy_(tensor)
            after_chunk()

    def read(self, name: str, after_chunk: Callable[[], None] = lambda: None) -> Tensor:
        """A tensor, whole. Raises as `fill`."""
        info = self.tensors[name].info
        tensor = torch.empty(info.shape, dtype=info.dtype)
        self.fill(name, tensor, after_chunk)
        return tensor

    def equals(self, name: str, other: Tensor) -> bool:
        """Whether a tensor holds the same as one in memory. Raises as `fill`."""
        return all(torch.equal(_block(other, chunk), tensor) for chunk, tensor in self._read(name))

    def _read(self, name: str) -> Iterator[tuple[Chunk, Tensor]]:
        stored = self.tensors[name]
        for chunk in stored.chunks:
            path = self.folder / chunk.file
            tensor = read_chunk(path, chunk.start, chunk.length)
            if not isinstance(tensor, Tensor) or (tuple(tensor.shape), tensor.dtype) != (chunk.sizes, stored.info.dtype):
                raise CheckpointError(f"{path}: it holds something else for {name} than a tensor {list(chunk.sizes)} of {stored.info.dtype}")
            yield chunk, tensor


def _stored(name: str, entry: TensorStorageMetadata, places: dict[MetadataIndex, object]) -> StoredTensor:
    chunks = []
    for chunk in entry.chunks:
        place = places[MetadataIndex(name, chunk.offsets)]
        if getattr(place, "transform_descriptors", None):
            raise ValueError(f"{name} is compressed")
        file, start, length = (getattr(place, field) for field in ("relative_path", "offset", "length"))
        chunks.append(Chunk(tuple(map(int, chunk.offsets)), tuple(map(int, chunk.sizes)), str(file), int(start), int(length)))
    return StoredTensor(TensorInfo(tuple(map(int, entry.size)), entry.properties.dtype), tuple(chunks))


def _gap(tensor: StoredTensor) -> str:
    """What is wrong with how the chunks make up the tensor; empty where all is well."""
    shape = tensor.info.shape
    for chunk in tensor.chunks:
        inside = len(chunk.offsets) == len(chunk.sizes) == len(shape)
        if not inside or any(o < 0 or s < 0 or o + s > n for o, s, n in zip(chunk.offsets, chunk.sizes, shape, strict=True)):
            return f"the index has a chunk {list(chunk.sizes)} at {list(chunk.offsets)} of a tensor {list(shape)}"
    if any(chunk.start < 0 or chunk.length < 0 for chunk in tensor.chunks):
        return "the index has no place for one of its chunks"
    times = _times_covered(tensor)
    if bool((times == 1).all()):
        return ""
    return f"its {len(tensor.chunks)} chunks {'leave a part out' if bool((times == 0).any()) else 'hold a part twice'}"


def _times_covered(tensor: StoredTensor) -> Tensor:
    """How many chunks hold each block of the tensor, cut at every chunk's edges."""
    edges = [
        sorted({0, size, *(edge for chunk in tensor.chunks for edge in (chunk.offsets[dim], chunk.offsets[dim] + chunk.sizes[dim]))})
        for dim, size in enumerate(tensor.info.shape)
    ]
    places = [{edge: place for place, edge in enumerate(of_dim)} for of_dim in edges]
    times = torch.zeros([len(of_dim) - 1 for of_dim in edges], dtype=torch.int32)
    for chunk in tensor.chunks:
        spans = zip(chunk.offsets, chunk.sizes, places, strict=True)
        times[tuple(slice(of_dim[offset], of_dim[offset + size]) for offset, size, of_dim in spans)] += 1
    return times


def _block(tensor: Tensor, chunk: Chunk) -> Tensor:
    for dim, (offset, size) in enumerate(zip(chunk.offsets, chunk.sizes, strict=True)):
        tensor = tensor.narrow(dim, offset, size)
    return tensor


def rank_ends(chunks: Sequence[Chunk]) -> tuple[int, ...]:
    """The place behind each chunk's last, of a tensor that was cut along its first dimension."""
    return tuple(sorted(chunk.offsets[0] + chunk.sizes[0] for chunk in chunks if chunk.sizes[0]))
