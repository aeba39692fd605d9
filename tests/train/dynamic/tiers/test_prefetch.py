import gc
import threading
from functools import partial
from pathlib import Path

import pytest
import torch

from emberline.memory import SMAPS
from emberline.train.dynamic.tiers.memory import Span, TieredMemory
from emberline.train.dynamic.tiers.prefetch import Prefetcher, touch


def test_work_is_done_by_one_thread_which_ends_with_it() -> None:
    prefetcher, done, threads = Prefetcher(), list[int](), set[threading.Thread]()
    prefetcher.wait()
    assert prefetcher._threads is None

    def work(number: int) -> None:
        done.append(number)
        threads.add(threading.current_thread())

    for number in range(3):
        prefetcher.submit(partial(work, number))
        prefetcher.wait()
    assert done == [0, 1, 2]
    (thread,) = threads
    assert thread is not threading.current_thread()
    assert thread.is_alive()
    del prefetcher
    gc.collect()
    thread.join(60)
    assert not thread.is_alive()


def test_newer_work_takes_the_place_of_what_waits() -> None:
    prefetcher, go, done = Prefetcher(), threading.Event(), list[int]()
    began = threading.Event()

    def slow() -> None:
        began.set()
        go.wait(60)
        done.append(0)

    prefetcher.submit(slow)
    assert began.wait(60)
    (first,) = prefetcher._works
    prefetcher.submit(lambda: done.append(1))
    prefetcher.submit(lambda: done.append(2))
    go.set()
    prefetcher.wait()
    assert done == [0, 2]
    assert first.done()


def test_errors_are_raised_by_the_next_call() -> None:
    prefetcher = Prefetcher()

    def fails() -> None:
        raise OSError("no such page")

    prefetcher.submit(fails)
    with pytest.raises(OSError, match="no such page"):
        prefetcher.wait()
    prefetcher.submit(fails)
    prefetcher._works[0].exception(60)
    with pytest.raises(OSError, match="no such page"):
        prefetcher.submit(lambda: None)
    prefetcher.submit(lambda: None)
    prefetcher.wait()


def resident(folder: Path) -> int:
    """Bytes of files of a folder that are mapped in and in this process's memory."""
    found, own = 0, False
    for line in SMAPS.read_text(errors="replace").splitlines():
        if line[:1] in "0123456789abcdef" and "-" in line.split()[0]:
            own = str(folder) in line
        elif own and line.startswith("Rss:"):
            found += 1024 * int(line.split()[1])
    return found


def test_touched_rows_are_in_memory_and_rows_let_go_of_are_not(tmp_path: Path) -> None:
    memory = TieredMemory(1 << 13, [Span("a", 0, 400, 0)], tmp_path)
    memory.reserve(0, 400)
    table = memory.tensor((400, 1 << 11), torch.float32)
    table.fill_(2)
    assert resident(tmp_path) == 400 << 13
    memory.let_go()
    assert resident(tmp_path) == 0
    touch(torch.arange(0, 400, 40), [table])
    assert resident(tmp_path) >= 10 << 13
    touch(torch.tensor([], dtype=torch.int64), [table, torch.empty(0, 3)])
    assert table.sum() == 2 * 400 << 11
    assert list(tmp_path.iterdir()) == []
