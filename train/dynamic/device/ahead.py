"""Rows of the host that a thread copies to the device before they are asked for."""

from collections.abc import Sequence
from concurrent.futures import Future

import numpy as np
import torch
from torch import Tensor

from emberline.train.dynamic.device.rows import Numbers
from emberline.train.dynamic.tiers.prefetch import Prefetcher


class Ahead:
    """Copies of some rows, good until these are written to.

    Whoever writes to rows says so before. So it does not matter that a row may be written to while it is copied: nobody reads such a copy.

    Args:
        rows: int64 [n], ascending and distinct.
        host: the tensors that have them, with as many dimensions as they like.
        first: the number of the host's first row.
        device: where the copies come.
    """

    def __init__(self, rows: Numbers, host: Sequence[Tensor], first: int, device: torch.device) -> None:
        self._rows, self._host, self._first, self._device = rows, host, first, device
        self._is_good = np.ones(len(rows), dtype=bool)
        self._planes: list[Tensor] = []
        self._work: Future[None] | None = None
        self._copied: torch.cuda.Event | None = None

    def begin(self, thread: Prefetcher) -> None:
        """Let a thread copy them.

        Raises:
            Exception: what went wrong the last time.
        """
        self._work = thread.submit(self._fetch)

    @property
    def is_to_come(self) -> bool:
        """Whether the copies are there, or will be: the thread leaves what it did not begin where it is asked for other rows."""
        return self._work is not None and not self._work.cancelled()

    def find(self, rows: Numbers) -> tuple[Numbers, Numbers]:
        """Of rows, int64 [n]: where each is among the copies, int64 [n], and whether it is there and good, bool [n]."""
        places = np.minimum(np.searchsorted(self._rows, rows), len(self._rows) - 1)
        is_there: Numbers = (self._rows[places] == rows) & self._is_good[places]
        return places, is_there

    def read(self, plane: int, places: Tensor) -> Tensor:
        """Copies that are to come, once they are there; `places`: int64 [n], on the device.

        Raises:
            Exception: what went wrong.
        """
        assert self._work is not None
        self._work.result()
        copies = self._planes[plane]
        if self._copied is not None:
            current = torch.cuda.current_stream(self._device)
            current.wait_event(self._copied)
            copies.record_stream(current)
        return copies.index_select(0, places)

    def forget(self, rows: Numbers) -> None:
        """Take note that rows, int64 [n], are about to be written to."""
        places, is_there = self.find(rows)
        self._is_good[places[is_there]] = False

    def _fetch(self) -> None:
        """The thread's work. On CUDA a stream of its own copies, beside what others compute."""
        if self._device.type != "cuda":
            self._planes = self._gathered()
            return
        stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            self._planes = self._gathered()
            self._copied = stream.record_event()

    def _gathered(self) -> list[Tensor]:
        return [gathered(tensor, self._rows - self._first, self._device) for tensor in self._host]


def gathered(tensor: Tensor, rows: Numbers, device: torch.device) -> Tensor:
    """Copies, on a device, of rows of the host, int64 [n]: by way of pinned memory, where that is CUDA, which does not wait for them."""
    buffer = torch.empty(len(rows), *tensor.shape[1:], dtype=tensor.dtype, pin_memory=device.type == "cuda")
    torch.index_select(tensor, 0, torch.from_numpy(rows), out=buffer)
    return buffer.to(device, non_blocking=True)
