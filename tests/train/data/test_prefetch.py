import threading
import time
from collections.abc import Iterator

import pytest

from emberline.errors import DataError
from emberline.train.data.prefetch import Prefetch


def _threads() -> int:
    return sum(thread.name == "emberline-prefetch" for thread in threading.enumerate())


def test_items_come_in_order_and_the_thread_ends() -> None:
    assert list(Prefetch(iter(range(1000)), depth=3)) == list(range(1000))
    assert _threads() == 0


def test_it_stays_a_bounded_number_of_items_ahead() -> None:
    made: list[int] = []

    def items() -> Iterator[int]:
        for number in range(100):
            made.append(number)
            yield number

    with Prefetch(items(), depth=3) as prefetch:
        assert next(prefetch) == 0
        time.sleep(0.2)
        assert len(made) <= 1 + 3 + 1
    assert _threads() == 0
    assert len(made) <= 1 + 3 + 1


def test_an_error_comes_after_the_items_before_it() -> None:
    def items() -> Iterator[int]:
        yield 1
        yield 2
        raise DataError("file.parquet, row 7: broken")

    prefetch = Prefetch(items())
    assert [next(prefetch), next(prefetch)] == [1, 2]
    with pytest.raises(DataError, match=r"file\.parquet, row 7: broken"):
        next(prefetch)
    with pytest.raises(StopIteration):
        next(prefetch)
    assert _threads() == 0


def test_closing_early_closes_the_source_on_its_thread() -> None:
    closed: list[str] = []

    def items() -> Iterator[int]:
        try:
            while True:
                yield 1
        finally:
            closed.append(threading.current_thread().name)

    prefetch = Prefetch(items())
    next(prefetch)
    prefetch.close()
    prefetch.close()
    assert closed == ["emberline-prefetch"]
    assert _threads() == 0
    assert list(prefetch) == []


def test_closing_before_the_first_item() -> None:
    Prefetch(iter([1, 2, 3])).close()
    assert _threads() == 0
