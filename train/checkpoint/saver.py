"""Writing checkpoints beside the training: the loop waits for a copy in memory, not for the disk.

training   step step [copy] step step step step [copy] step ...      copy: of all tensors, into memory that is used again
writer                      [write, flush, hash, rename]  [write ...
"""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

import torch
import torch.distributed as dist
from torch import Tensor

from emberline.train.checkpoint.chunks import Chunks, ReadChunks
from emberline.train.checkpoint.run_state import RunContent, write_run
from emberline.train.checkpoint.tensors import Writable
from emberline.train.kernels.memory import table_memory
from emberline.train.sharding.process_group import COLLECTIVE_TIMEOUT

After = Callable[[Path], object]


class CheckpointSaver:
    """Saves a run's checkpoints, one at a time. All ranks have one, and call it together.

    As a context manager it waits at the end for the checkpoint under way. One that could not be written is told by the next call, or at the end.

    Args:
        run: the run's folder.
        asynchronous: write in a thread, from a copy: needs as much memory again as the tensors; else the caller waits for the disk.
        after: called on rank 0 with each complete checkpoint, in the thread that wrote it.
    """

    def __init__(self, run: Path, *, asynchronous: bool = True, after: After | None = None) -> None:
        self.stalled_s = 0.0
        """How long callers have waited so far."""
        self._run, self._asynchronous, self._after = run, asynchronous, after
        self._together = dist.is_initialized() and dist.get_world_size() > 1
        self._group = dist.new_group(backend="gloo", timeout=COLLECTIVE_TIMEOUT) if self._together else None
        self._copies = _Copies()
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._pending: Future[None] | None = None

    def save(self, content: RunContent) -> None:
        """Write a checkpoint, or begin to; the tensors may change when this returns.

        Raises:
            CheckpointError: this checkpoint, or the one before, cannot be written.
        """
        begin = time.perf_counter()
        self._join()
        if self._asynchronous:
            copy = replace(content, tensors=self._copies.of(content.tensors))
            self._pending = self._writer.submit(self._write, copy)
        else:
            self._write(content)
        self.stalled_s += time.perf_counter() - begin

    def wait(self) -> None:
        """Until the checkpoint under way is complete.

        Raises:
            CheckpointError: it cannot be written.
        """
        begin = time.perf_counter()
        self._join()
        self.stalled_s += time.perf_counter() - begin

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is None:
            self.wait()
        elif self._pending is not None:
            wait([self._pending])

    def _join(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def _write(self, content: RunContent) -> None:
        path = write_run(self._run, content, self._group)
        if self._after is not None and (not self._together or dist.get_rank() == 0):
            self._after(path)


class _Copies:
    """Copies of tensors, in memory that is used again each time."""

    def __init__(self) -> None:
        self._memory: dict[str, list[Tensor]] = {}

    def of(self, tensors: Mapping[str, Writable]) -> dict[str, Writable]:
        """The same tensors, as they are now, on the CPU."""
        copies: dict[str, Writable] = {}
        for name, held in tensors.items():
            if isinstance(held, ReadChunks):
                copies[name] = held if held.is_copy else held.copied(table_memory)
                continue
            parts = [chunk.tensor for chunk in held.chunks] if isinstance(held, Chunks) else [held]
            memory = self._fitting(name, parts)
            for copy, part in zip(memory, parts, strict=True):
                copy.copy_(part.detach())
            copies[name] = held.like(memory) if isinstance(held, Chunks) else memory[0]
        self._memory = {name: memory for name, memory in self._memory.items() if name in copies}
        return copies

    def _fitting(self, name: str, parts: list[Tensor]) -> list[Tensor]:
        there = self._memory.setdefault(name, [])
        if [(one.shape, one.dtype) for one in there] != [(part.shape, part.dtype) for part in parts]:
            self._memory[name] = [_memory(part) for part in parts]
        return self._memory[name]


def _memory(tensor: Tensor) -> Tensor:
    if not tensor.numel():
        return torch.empty(tensor.shape, dtype=tensor.dtype)
    return table_memory(tensor.shape, tensor.dtype)
