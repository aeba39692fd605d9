"""Named tensors on disk, in PyTorch's distributed checkpoint format: whole or sharded, under any names.

The format keeps its index as a pickle. A checkpoint is data that travels, so the index is read by an unpickler that knows only the classes
which an index is made of.
"""

import io
import pickle
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.utils import _create_file_view

from emberline.errors import CheckpointError, first_line
from emberline.train.checkpoint.chunks import Chunks, ReadChunks

Stored = Tensor | Chunks
"""A tensor that a process holds whole, or its parts of one."""
Writable = Stored | ReadChunks
"""The same, or parts of one that are read as they are written."""

_INDEX_NAME = ".metadata"
_METADATA = "torch.distributed.checkpoint.metadata"
_INDEX_GLOBALS = {
    (_METADATA, "BytesStorageMetadata"),
    (_METADATA, "ChunkStorageMetadata"),
    (_METADATA, "Metadata"),
    (_METADATA, "MetadataIndex"),
    (_METADATA, "StorageMeta"),
    (_METADATA, "TensorProperties"),
    (_METADATA, "TensorStorageMetadata"),
    (_METADATA, "_MEM_FORMAT_ENCODING"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch.serialization", "_get_layout"),
    ("torch", "Size"),
    ("pathlib", "PosixPath"),
    ("pathlib", "WindowsPath"),
}


@dataclass(frozen=True)
class TensorInfo:
    """Shape and dtype of a stored tensor, all shards together."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"{dtype_name(self.dtype)} {list(self.shape)}"


def dtype_name(dtype: torch.dtype) -> str:
    """`float32` and the like, for people."""
    return str(dtype).removeprefix("torch.")


def save_tensors(directory: Path, tensors: Mapping[str, Writable], group: dist.ProcessGroup | None = None) -> None:
    """Write tensors into a new directory; every process of the group must call it, each with its parts.

    Args:
        directory: of the tensors alone.
        tensors: by name; what several processes hold is written once.
        group: on the CPU; None: all processes, where there is a group.

    Raises:
        CheckpointError: they cannot be written, as where the disk is full.
    """
    writer = FileSystemWriter(directory, sync_files=True)
    with _quiet(), _plain_errors(directory, "written"):
        save(dict(tensors), storage_writer=writer, planner=_SavePlanner(), process_group=group, no_dist=not dist.is_initialized())


def read_index(directory: Path) -> Metadata:
    """The index of any directory in this format: which tensors there are, and in which bytes of which file each of their chunks is.

    Raises:
        CheckpointError: it is missing, or holds anything but what an index is made of.
    """
    return _Reader(directory).read_metadata()


def read_chunk(path: Path, start: int, length: int, *, shell: bool = False) -> Any:
    """What these bytes of a file of such a directory hold: a tensor, if they are what an index points to. Nothing in them is run.

    Args:
        path: the file.
        start: the first byte.
        length: how many.
        shell: leave the numbers where they are: a tensor on `meta`, whose storage knows its offset in these bytes.

    Raises:
        CheckpointError: they cannot be read.
    """
    place = "meta" if shell else "cpu"
    try:
        with path.open("rb") as stream:
            return torch.load(cast(IO[bytes], _create_file_view(stream, start, length)), map_location=place, weights_only=True)
    except Exception as error:  # bytes that are no tensor can fail in any way
        raise CheckpointError(f"{path}: bytes {start} to {start + length} cannot be read: {first_line(error)}") from error


def describe_tensors(directory: Path) -> dict[str, TensorInfo]:
    """What is stored, by name.

    Raises:
        CheckpointError: the index is missing or isn't one.
    """
    return described(read_index(directory))


def load_tensors(directory: Path, into: Mapping[str, Stored]) -> None:
    """Fill these tensors, or this process's parts of them, in place; no other process needs to do the same.

    Raises:
        CheckpointError: a tensor is not stored, or has another shape or dtype; nothing was filled.
    """
    _load(_Reader(directory), directory, into)


def require_fit(directory: Path, into: Mapping[str, Stored]) -> None:
    """Compare what `load_tensors` would fill with what is stored; nothing is read.

    Raises:
        CheckpointError: as `load_tensors`.
    """
    _require_fit(_Reader(directory), directory, into)


def _require_fit(reader: "_Reader", directory: Path, into: Mapping[str, Stored]) -> None:
    stored = described(reader.read_metadata())
    problems = []
    needed = {name: TensorInfo(tuple(tensor.size()), tensor.dtype) for name, tensor in into.items()}
    for name, wanted in needed.items():
        if name not in stored:
            problems.append(f"{name} is not in it")
        elif stored[name] != wanted:
            problems.append(f"{name} is {stored[name]} there, but {wanted} in the model")
    if problems:
        raise CheckpointError(f"{directory} does not fit the model: {'; '.join(problems)}")


def _load(reader: "_Reader", directory: Path, into: Mapping[str, Stored]) -> None:
    _require_fit(reader, directory, into)
    with _quiet(), _plain_errors(directory, "read"):
        load(dict(into), storage_reader=reader, planner=_LoadPlanner(), no_dist=True)


def read_tensors(directory: Path, prefix: str = "", *, exact: bool = False) -> dict[str, Tensor]:
    """All stored tensors whose name starts with `prefix`, or is it, whole, on the CPU."""
    reader = _Reader(directory)
    stored = described(reader.read_metadata())
    wanted = [name for name in stored if (name == prefix if exact else name.startswith(prefix))]
    tensors = {name: torch.empty(stored[name].shape, dtype=stored[name].dtype) for name in wanted}
    if tensors:
        _load(reader, directory, tensors)
    return tensors


def described(index: Metadata) -> dict[str, TensorInfo]:
    """What an index lists, by name."""
    entries = index.state_dict_metadata
    return {
        name: TensorInfo(tuple(entry.size), entry.properties.dtype) for name, entry in entries.items() if isinstance(entry, TensorStorageMetadata)
    }


@contextmanager
def _quiet() -> Iterator[None]:
    """Without PyTorch's warning that one process saves or loads alone."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled", category=UserWarning)
        yield


@contextmanager
def _plain_errors(directory: Path, verb: str) -> Iterator[None]:
    """PyTorch's exception with a trace for each rank, which is no `Exception`, as an error of ours with the first cause."""
    try:
        yield
    except CheckpointException as error:
        cause = next((failure[0] for failure in error.failures.values()), error)
        raise CheckpointError(f"{directory} cannot be {verb}: {cause}") from cause


class _SavePlanner(DefaultSavePlanner):
    """Knows parts of tensors."""

    def lookup_object(self, index: MetadataIndex) -> Any:
        """What to write."""
        held = self.state_dict[index.fqn]
        return held.__get_tensor_shard__(index) if isinstance(held, Chunks | ReadChunks) else super().lookup_object(index)


class _LoadPlanner(DefaultLoadPlanner):
    """Knows parts of tensors, and takes names as they are."""

    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)

    def set_up_planner(self, state_dict: dict[str, Any], metadata: Metadata | None = None, is_coordinator: bool = False) -> None:
        """Take up what to fill; PyTorch's own would replace what it does not know."""
        self.original_state_dict = self.state_dict = state_dict
        self.metadata, self.is_coordinator = metadata, is_coordinator

    def lookup_tensor(self, index: MetadataIndex) -> Tensor:
        """What to fill."""
        held = self.state_dict[index.fqn]
        return held.__get_tensor_shard__(index) if isinstance(held, Chunks) else super().lookup_tensor(index)


class _IndexUnpickler(pickle.Unpickler):
    """Knows only the classes that an index is made of."""

    def find_class(self, module_name: str, global_name: str) -> Any:
        """The class or function of that name; others are refused."""
        if (module_name, global_name) in _INDEX_GLOBALS:
            return super().find_class(module_name, global_name)
        if module_name == "torch" and isinstance(getattr(torch, global_name, None), torch.dtype):
            return getattr(torch, global_name)
        raise pickle.UnpicklingError(f"{module_name}.{global_name} has no place in a checkpoint's index")


class _Reader(FileSystemReader):
    """Reads the index with the careful unpickler, and once: that of many tables takes a while."""

    _index: Metadata | None = None

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """The index.

        Raises:
            CheckpointError: it is missing, or isn't an index.
        """
        if self._index is None:
            self._index = self._read_index()
        self._index.storage_meta = self._index.storage_meta or StorageMeta()
        self._index.storage_meta.load_id = self.load_id
        return self._index

    def _read_index(self) -> Metadata:
        path = Path(self.path) / _INDEX_NAME
        try:
            metadata = _IndexUnpickler(io.BytesIO(path.read_bytes())).load()
        except FileNotFoundError:
            raise CheckpointError(f"{path} is missing") from None
        except Exception as error:  # bytes that are no index can fail in any way
            raise CheckpointError(f"{path} cannot be read: {first_line(error)}") from error
        if not isinstance(metadata, Metadata):
            raise CheckpointError(f"{path} cannot be read: it is no index")
        return metadata
