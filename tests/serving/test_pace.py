"""What is answered in the event loop: small requests of quick models, and none of a model that turns out slow."""

from pathlib import Path
from typing import Any

import pytest

from emberline.errors import ServingError
from emberline.serving.engine import Engine
from emberline.serving.pace import QUICK_S, Pace


@pytest.fixture
def engine(toy_artifact: Path) -> Engine:
    return Engine.open(toy_artifact, num_threads=1)


def test_a_quick_model_is_quick_up_to_the_largest_size_that_is_tried(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def answer(requests: Any, names: Any) -> list[dict[str, Any]]:
        asked.append(sum(array.nbytes for array in vars(requests[0]).values() if array is not None))
        return [{}]

    monkeypatch.setattr(engine, "predict_many", answer)
    pace = Pace.measure(engine)
    assert pace.most_bytes == max(asked)
    assert (pace.is_quick(max(asked)), pace.is_quick(max(asked) + 1)) == (True, False)


def test_sizes_that_take_long_are_not_quick(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    took = 0.0

    def answer(requests: Any, names: Any) -> list[dict[str, Any]]:
        nonlocal took
        sizes.append(sum(array.nbytes for array in vars(requests[0]).values() if array is not None))
        took += QUICK_S * (0.9 if sizes[-1] == sizes[0] else 1.1)
        return [{}]

    monkeypatch.setattr(engine, "predict_many", answer)
    monkeypatch.setattr("emberline.serving.pace.time.thread_time", lambda: took)
    assert Pace.measure(engine).most_bytes == sizes[0]


def test_a_model_that_refuses_has_no_quick_requests(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "predict_many", lambda requests, names: [ServingError("no memory")])
    assert Pace.measure(engine).most_bytes == 0


def test_measuring_counts_no_ids(engine: Engine) -> None:
    Pace.measure(engine)
    assert {counts.asked for counts in engine.id_counts().values()} == {0}


def test_a_model_that_becomes_slow_rests_and_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("emberline.serving.pace.time.monotonic", lambda: now)
    pace = Pace(100)
    for _ in range(1000):
        pace.saw(QUICK_S)
    assert pace.is_quick(100)
    pace.saw(5.0)
    assert pace.is_quick(100), "one late answer says nothing"
    for _ in range(20):
        pace.saw(0.01)
    assert not pace.is_quick(1)
    now += 1000
    assert pace.is_quick(100)
    assert not pace.is_quick(101)
