"""Who reads a view: none of its readers is overtaken by one who replaces it."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import pytest

from emberline.serving.answering import View
from emberline.serving.views import CurrentView


def view_of(value: object) -> View:
    return cast(View, value)


def test_calls_get_the_view_and_what_they_were_given() -> None:
    views = CurrentView(view_of("a"))
    assert views.call(lambda view, *args, **options: (view, args, options), 1, two=2) == ("a", (1,), {"two": 2})
    views.replace(view_of("b"))
    assert (str(views.view), views.call(str)) == ("b", "b")


def test_a_call_that_fails_reads_no_more() -> None:
    views = CurrentView(view_of("a"))
    with pytest.raises(ZeroDivisionError):
        views.call(lambda view: 1 / 0)
    views.replace(view_of("b"))  # would wait for ever


def test_whoever_replaces_a_view_waits_for_its_readers() -> None:
    views, began, end = CurrentView(view_of("a")), threading.Event(), threading.Event()
    seen: list[str] = []

    def read(view: View) -> None:
        began.set()
        assert end.wait(20)
        seen.append(str(view))

    with ThreadPoolExecutor(2) as pool:
        reader = pool.submit(views.call, read)
        assert began.wait(20)
        writer = pool.submit(views.replace, view_of("b"))
        while str(views.view) != "b":
            time.sleep(0.001)
        assert views.call(str) == "b"  # others are not kept waiting
        assert not writer.done()
        end.set()
        writer.result(20)
        reader.result(20)
    assert seen == ["a"]


def test_memory_of_an_old_view_is_never_read_after_it_may_change() -> None:
    """Readers go over a list that is spoiled as soon as the replacement of its view returns."""
    views, stop, wrong = CurrentView(view_of([0] * 50)), threading.Event(), list[list[int]]()

    def read(view: View) -> None:
        values = list(cast(list[int], view))
        if len(set(values)) != 1 or values[0] < 0:
            wrong.append(values)

    def run() -> None:
        while not stop.is_set():
            views.call(read)

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(1, 200):
        before = cast(list[int], views.view)
        views.replace(view_of([number] * 50))
        for place in range(50):
            before[place] = -1
    stop.set()
    for thread in threads:
        thread.join()
    assert wrong == []
