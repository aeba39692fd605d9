"""Tensor files of an artifact, each opened once: what is compared is what is read, whatever comes to have its name meanwhile.

Tensors are mapped, or read into memory of this process alone, on huge pages. Where bytes are compared, threads do it piece by piece: those of private
memory as they come in, while they lie in a processor's cache; those of mapped files where lookups will read them.
"""

import ctypes
import hashlib
import json
import os
import struct
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from emberline.cpus import usable_cpus
from emberline.digests import PIECE_BYTES, join_digests, piece_digest
from emberline.errors import ArtifactError
from emberline.manifest import FileEntry, changed_text, size_text
from emberline.memory import CACHE_LINE_BYTES, aligned_memory
from emberline.serving.files import map_open_tensors
from emberline.serving.row_layout import SpreadRows, pitch_of

_MOST_OPEN = 256
"""Files that are open at a time: a process may have a thousand."""
_PIECES_OF_JOB = 4
"""What a thread takes at a time."""
Bytes = npt.NDArray[np.uint8]
Tensors = dict[str, Tensor]
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, eq=False)
class StoredFile:
    """A safetensors file that is to be taken in.

    Args:
        path: of the file.
        name: what messages call it.
        entry: what the manifest says of it; None where that need not be compared.
        own: tensors that are to be read into memory of this process alone; the others are mapped.
        row_growth: by what share tensors [rows, width] of its own may grow, to lie as `row_layout` says; 0 leaves all rows side by side.
        check: called with its tensors before any of them is read; raises ArtifactError where they are others than they should be.
    """

    path: Path
    name: str
    entry: FileEntry | None
    own: Collection[str] = ()
    row_growth: float = 0
    check: Callable[[Mapping[str, Tensor]], object] | None = None


def take_in(files: Mapping[Key, StoredFile]) -> tuple[dict[Key, Tensors], list[str]]:
    """Take in files, several at once.

    Args:
        files: by any keys.

    Returns:
        The tensors of each file; those in memory of their own begin on cache lines. And what is wrong: one sentence for each file that is not what
        its entry says.

    Raises:
        ArtifactError: a file is not safetensors, or its `check` refuses it.
        MemoryError: there is not so much memory.
        OSError: a file cannot be read.
    """
    found, problems, keys = dict[Key, Tensors](), list[str](), list(files)
    for start in range(0, len(keys), _MOST_OPEN):
        with ExitStack() as stack:
            opened = {key: stack.enter_context(_open(files[key])) for key in keys[start : start + _MOST_OPEN]}
            _give_memory(list(opened.values()))
            problems += _go_over(list(opened.values()))
            found |= {key: one.tensors for key, one in opened.items()}
    return found, problems


def read_whole(path: Path, entry: FileEntry | None) -> bytes:
    """What a small file holds.

    Args:
        path: of the file.
        entry: what the manifest says of it; None where that need not be compared.

    Raises:
        ArtifactError: it is not what its entry says, or cannot be read.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read: {error.strerror}") from error
    if entry is not None and len(data) != entry.bytes:
        raise ArtifactError(size_text(str(path), len(data), entry))
    if entry is not None and hashlib.sha256(data).hexdigest() != entry.sha256:
        raise ArtifactError(changed_text(str(path)))
    return data


@dataclass(frozen=True, eq=False)
class _Part:
    """Where in memory a part of a file is.

    Args:
        start: its first byte in the file.
        size: how many bytes it has.
        memory: the bytes; or rows, which have gaps there.
        fill: whether they are to be read yet; rows always are.
    """

    start: int
    size: int
    memory: Bytes | SpreadRows
    fill: bool

    @property
    def stop(self) -> int:
        return self.start + self.size


class _Opened:
    """An open file.

    Args:
        file: which it is.
        descriptor: of the open file.

    Attributes:
        tensors: mapped; those that are to be in memory of their own, once that was given.
        parts: what of the file is in memory, or is to be, in order.
    """

    def __init__(self, file: StoredFile, descriptor: int) -> None:
        self.file, self.name, self._descriptor = file, file.name, descriptor
        self.size = os.fstat(descriptor).st_size
        self.tensors = map_open_tensors(descriptor, file.path.name)
        if file.check is not None:
            file.check(self.tensors)
        (length,) = struct.unpack("<Q", self.read(0, np.empty(8, np.uint8)).tobytes())
        header: dict[str, Any] = json.loads(self.read(8, np.empty(length, np.uint8)).tobytes())
        self._data, self._starts = 8 + length, {name: header[name]["data_offsets"][0] for name in self.tensors}
        self.parts = [] if file.own or file.entry is None else self._mapped()

    def _mapped(self) -> list[_Part]:
        """All behind the header: tensors lie there without gaps."""
        there = [(self._starts[name], tensor.data_ptr()) for name, tensor in self.tensors.items() if tensor.numel()]
        size = self.size - self._data
        return [_Part(self._data + start, size - start, _bytes_at(address, size - start), False) for start, address in sorted(there)[:1]]

    def sizes(self) -> dict[str, int]:
        """Bytes of memory for each tensor that is to have its own, in the order in which they lie in the file."""
        return {name: self._room(self.tensors[name]) for name in sorted(self.file.own, key=lambda name: self._starts[name]) if name in self.tensors}

    def _room(self, tensor: Tensor) -> int:
        if tensor.dim() != 2:
            return tensor.nbytes
        return tensor.shape[0] * pitch_of(tensor.shape[1] * tensor.itemsize, tensor.itemsize, self.file.row_growth)

    def give(self, name: str, memory: Bytes) -> None:
        """Memory for a tensor."""
        mapped = self.tensors[name]
        if not memory.size:
            self.tensors[name] = torch.empty(mapped.shape, dtype=mapped.dtype)
            return
        numbers, size = torch.from_numpy(memory).view(mapped.dtype), mapped.nbytes
        if memory.size == size:
            self.parts.append(_Part(self._data + self._starts[name], size, memory, True))
            self.tensors[name] = numbers.view(mapped.shape)
        else:
            rows = SpreadRows.over(memory, size // len(mapped), memory.size // len(mapped))
            self.parts.append(_Part(self._data + self._starts[name], size, rows, True))
            self.tensors[name] = numbers.view(len(mapped), -1)[:, : mapped.shape[1]]

    def jobs(self) -> "list[_Job]":
        """What is to be done with it; nothing where it is neither compared nor read."""
        entry = self.file.entry
        if entry is not None and entry.fast is None:
            return [_Job(self, 0, self.size, "sha256")]
        if entry is None and not self.parts:
            return []
        step, kind = _PIECES_OF_JOB * PIECE_BYTES, "read" if entry is None else "pieces"
        return [_Job(self, start, min(start + step, self.size), kind) for start in range(0, self.size, step)]

    def blocks(self, start: int, stop: int, *, rest: bool) -> Iterator[Bytes]:
        """What lies from `start` to before `stop`, in order, in memory now; what of it belongs to no part only where the `rest` is wanted."""
        for part in self.parts:
            if part.stop <= start or part.start >= stop:
                continue
            if start < part.start and rest:
                yield self.read(start, np.empty(part.start - start, np.uint8))
            start, end = max(start, part.start), min(stop, part.stop)
            if isinstance(part.memory, SpreadRows):
                block = self.read(start, np.empty(end - start, np.uint8))
                part.memory.put(start - part.start, block)
                yield block
            else:
                block = part.memory[start - part.start : end - part.start]
                yield self.read(start, block) if part.fill else block
            start = end
        if start < stop and rest:
            yield self.read(start, np.empty(stop - start, np.uint8))

    def read(self, start: int, block: Bytes) -> Bytes:
        """Fill a block with what begins at `start`."""
        view = block.data
        while view:
            count = os.preadv(self._descriptor, [view], start)
            if not count:
                raise OSError(f"{self.file.path} ends before its rows do")
            view, start = view[count:], start + count
        return block


@dataclass(frozen=True, eq=False)
class _Job:
    """What a thread does with a part of a file: `read` it, or reckon its `sha256` or the digests of its `pieces` too."""

    opened: _Opened
    start: int
    stop: int
    kind: str

    def __call__(self) -> list[bytes]:
        with _named(self.opened.file.path):
            starts = range(self.start, self.stop, PIECE_BYTES)
            pieces = (self.opened.blocks(start, min(start + PIECE_BYTES, self.stop), rest=self.kind != "read") for start in starts)
            if self.kind == "pieces":
                return [piece_digest(blocks) for blocks in pieces]
            sha256 = hashlib.sha256()
            for blocks in pieces:
                for block in blocks:
                    if self.kind == "sha256":
                        sha256.update(block.data)
            return [sha256.digest()]


def _give_memory(files: list[_Opened]) -> None:
    """Memory for all tensors that are to have their own: one after the other in one, so that small ones share huge pages too."""
    wanted = [(file, name, size, -(-size // CACHE_LINE_BYTES) * CACHE_LINE_BYTES) for file in files for name, size in file.sizes().items()]
    total = sum(room for *_, room in wanted)
    try:
        memory = np.frombuffer(aligned_memory(total), np.uint8)
    except (OSError, OverflowError) as error:
        raise MemoryError(f"{total >> 20} MiB for tables: {error}") from error
    start = 0
    for file, name, size, room in wanted:
        file.give(name, memory[start : start + size])
        start += room


def _go_over(files: list[_Opened]) -> list[str]:
    """Read and compare; one sentence for each file that is not what its entry says."""
    problems = {file: size_text(file.name, file.size, entry) for file in files if (entry := file.file.entry) and entry.bytes != file.size}
    jobs = [job for file in sorted(files, key=lambda file: file.size, reverse=True) if file not in problems for job in file.jobs()]
    made: dict[_Opened, list[bytes]] = {}
    with ThreadPoolExecutor(max(1, min(usable_cpus(), len(jobs))), "tables") as pool:
        for job, digests in zip(jobs, pool.map(_Job.__call__, jobs), strict=True):
            made.setdefault(job.opened, []).extend(digests)
    for file in files:
        entry, digests = file.file.entry, made.get(file, [])
        if entry is None or file in problems:
            continue
        kind, found, wanted = ("XXH3", join_digests(digests), entry.fast) if entry.fast is not None else ("sha256", digests[0].hex(), entry.sha256)
        if found != wanted:
            problems[file] = changed_text(file.name, kind)
    return list(problems.values())


@contextmanager
def _open(file: StoredFile) -> Iterator[_Opened]:
    with file.path.open("rb", buffering=0) as stream:
        with _named(file.path):
            opened = _Opened(file, stream.fileno())
        yield opened


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """The system's errors of reading tell of no file: make them do so."""
    try:
        yield
    except OSError as error:
        if error.strerror is None or error.filename is not None:  # one of ours, or one that does
            raise
        raise OSError(f"{path}: {error.strerror}") from error


def _bytes_at(address: int, size: int) -> Bytes:
    """Some bytes in memory, of which somebody else takes care."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))
