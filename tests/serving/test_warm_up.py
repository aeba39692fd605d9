"""Requests before an engine is ready: of the sizes asked for, valid for every kind of model, and counted nowhere."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from torch import Tensor

from emberline.errors import ArtifactError, ServingError
from emberline.serving import Engine, PackedRequest
from emberline.serving.warm_up import TYPICAL_ROWS, answer_sizes, even_request, usual_sizes
from tests.serving.conftest import ToyModel, make_steps_toy, make_toy


@pytest.mark.parametrize(("most", "sizes"), [(1, (1,)), (50, (1, 50)), (TYPICAL_ROWS, (1, 100)), (4096, (1, 100, 4096))])
def test_usual_sizes(most: int, sizes: tuple[int, ...]) -> None:
    assert usual_sizes(most) == sizes


@pytest.mark.parametrize("make", [make_toy, make_steps_toy])
@pytest.mark.parametrize(("num_rows", "per_bag"), [(1, 1), (1, 0), (7, 1), (7, 0), (0, 1)])
def test_even_requests_are_answered_as_any_other(tmp_path: Path, make: Callable[[], ToyModel], num_rows: int, per_bag: int) -> None:
    model = make()
    engine = Engine.open(model.write(tmp_path))
    request = engine.check(even_request(engine, num_rows, per_bag))
    assert request.num_rows == num_rows
    assert set(request.lengths.tolist()) <= {per_bag}
    assert bool(engine.known(request).all())
    for answer in engine.predict(request).values():
        assert (len(answer), bool(answer.isfinite().all())) == (num_rows, True)


def test_what_was_answered_before_is_counted_nowhere(toy_artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    predict_many = Engine.predict_many

    def ask(self: Engine, requests: list[PackedRequest], names: list[tuple[str, ...]]) -> list[dict[str, Tensor] | ServingError]:
        asked.append(self.check(requests[0]).num_rows)
        return predict_many(self, requests, names)

    monkeypatch.setattr(Engine, "predict_many", ask)
    engine = Engine.open(toy_artifact, warm_up=(1, 30))
    assert asked == [1] * 4 + [30] * 4
    assert {counts.asked for counts in engine.id_counts().values()} == {0}


def test_a_size_that_cannot_be_answered_is_told(toy_artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine.open(toy_artifact)
    monkeypatch.setattr(engine, "predict_many", lambda requests, names: [ServingError("no memory")])
    with pytest.raises(ArtifactError, match=r"5 rows with one id in each bag cannot be answered here: no memory"):
        answer_sizes(engine, [5])


def test_ids_are_ones_that_the_model_has(toy_artifact: Path) -> None:
    engine = Engine.open(toy_artifact)
    request = even_request(engine, 2, 1)
    assert request.ids is not None
    np.testing.assert_array_equal(request.ids, [-7, -7, 0, 0, 0, 0, 0, 0])
