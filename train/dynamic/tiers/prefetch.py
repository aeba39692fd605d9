"""Rows of the next batch are brought from the file while this one is trained on: a thread reads a byte of each page, and changes nothing."""

import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from emberline.train.dynamic.tiers.memory import PAGE_BYTES


class Prefetcher:
    """One thread, which starts with the first work and ends with this object, or the process. Work that did not begin gives way to newer."""

    def __init__(self) -> None:
        self._threads: ThreadPoolExecutor | None = None
        self._works: list[Future[None]] = []

    def submit(self, work: Callable[[], None]) -> Future[None]:
        """Have work done soon.

        Returns:
            what becomes of it; it is cancelled, where newer came before it began.

        Raises:
            Exception: whatever earlier work raised.
        """
        works, self._works = self._works, []
        self._works = [own for own in works if not own.cancel() and not own.done()]
        for own in works:
            if own.done() and not own.cancelled():
                own.result()
        if self._threads is None:
            self._threads = ThreadPoolExecutor(1, thread_name_prefix="emberline-prefetch")
            weakref.finalize(self, self._threads.shutdown, wait=False, cancel_futures=True)
        self._works.append(self._threads.submit(work))
        return self._works[-1]

    def wait(self) -> None:
        """Until nothing is left to do.

        Raises:
            Exception: whatever the work raised.
        """
        works, self._works = self._works, []
        for own in works:
            own.result()


def touch(rows: Tensor, tensors: Sequence[Tensor]) -> None:
    """Read a byte of each page of some rows, int64 [n], of contiguous tensors with one row for each: what is in a file is in memory afterwards."""
    for tensor in tensors:
        if not len(rows) or not tensor.numel():
            continue
        memory = tensor.view(len(tensor), -1).view(torch.uint8)
        width = memory.shape[1]
        for column in sorted({*range(0, width, PAGE_BYTES), width - 1}):
            memory[:, column].index_select(0, rows)
