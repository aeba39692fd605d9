"""Requests of the ordinary kind, whatever they ask for and come with: answered as the long way answers."""

import itertools
import threading
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from emberline.errors import ServingError
from emberline.schema import BucketEncoder
from emberline.serving import Engine, PackedRequest
from emberline.serving.artifact import KNOWN
from emberline.serving.direct_answers import DirectAnswers
from emberline.serving.lookup import native
from emberline.serving.unknown import UnknownCounter
from tests.serving.conftest import Arrays, make_toy, random_request
from tests.serving.deltas.toy_delta import changed, write_delta

pytestmark = pytest.mark.skipif(native.KERNEL.get() is None, reason="there is no C compiler here")
NAMES = ("probs", "scores", "lookup.deep", "lookup.wide")
RAW_IDS = (100, -7, 2**62, 200)
"""Those that have a row of their own."""
Answer = Mapping[str, torch.Tensor] | ServingError


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return Engine.open(make_toy().write(tmp_path_factory.mktemp("models")), lookup="native")


def draw(engine: Engine, *, num_rows: int, seed: int, weights: bool = True) -> Arrays:
    return random_request(engine.schema, num_rows=num_rows, seed=seed, raw_ids=RAW_IDS, weights=weights)


def the_long_way(engine: Engine, requests: list[PackedRequest], names: list[Collection[str] | None]) -> list[Answer]:
    return list(engine._answerer.many(replace(engine._views.view, direct=None), requests, names))


def direct_of(engine: Engine) -> DirectAnswers:
    found = engine._views.view.direct
    assert found is not None
    return found


def assert_alike(found: Answer, want: Answer) -> None:
    if isinstance(want, ServingError):
        assert (type(found), str(found)) == (type(want), str(want))
        return
    assert not isinstance(found, ServingError)
    assert list(found) == list(want)
    for name, answer in want.items():
        assert found[name].shape == answer.shape
        if name.startswith("lookup."):
            assert torch.equal(found[name], answer)
        torch.testing.assert_close(found[name], answer, rtol=1e-6, atol=1e-6)


@settings(max_examples=20)
@given(
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=5),
    names=st.lists(
        st.sampled_from([None, (), *itertools.combinations(NAMES, 2), NAMES[::-1], NAMES[2:3], (KNOWN,), (*NAMES, KNOWN), ("none",)]), min_size=5
    ),
    same=st.booleans(),
    bad=st.integers(0, 9),
    seed=st.integers(0, 99),
)
def test_answers_are_those_of_the_long_way(
    engine: Engine, sizes: list[int], names: list[Collection[str] | None], same: bool, bad: int, seed: int
) -> None:
    requests = list[PackedRequest]()
    for place, num_rows in enumerate(sizes):
        arrays = draw(engine, num_rows=num_rows, seed=seed + place, weights=(seed + place) % 2 == 0)
        if place == bad and arrays["ids"].size:
            arrays["ids"] = arrays["ids"][:-1]
        requests.append(PackedRequest(**arrays))
    wanted = [names[0] if same else one for one in names[: len(sizes)]]
    engine.forget_counts()
    want = the_long_way(engine, requests, wanted)
    counted = engine.id_counts()
    engine.forget_counts()
    found = engine.predict_many(requests, wanted)
    assert engine.id_counts() == counted
    for one, other in zip(found, want, strict=True):
        assert_alike(one, other)


def test_one_request_by_every_call(engine: Engine) -> None:
    request = PackedRequest(**draw(engine, num_rows=3, seed=1))
    (want,) = the_long_way(engine, [request], [NAMES])
    assert_alike(engine.predict(request) | {f"lookup.{name}": answer for name, answer in engine.lookup(request).items()}, want)
    view = engine._views.view
    engine.forget_counts()
    long, counted = engine._answerer.program_inputs(replace(view, direct=None), request), engine.id_counts()
    engine.forget_counts()
    direct = engine.program_inputs(request)
    assert list(direct) == list(long)
    assert all(torch.equal(direct[name], long[name]) for name in long)
    assert engine.id_counts() == counted


def test_groups_need_no_program(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    request = PackedRequest(**draw(engine, num_rows=3, seed=2))
    want = engine.lookup(request)
    monkeypatch.setattr(direct_of(engine)._programs.by_role["groups"], "_module", None)
    found = engine.lookup(request)
    assert all(torch.equal(found[name], want[name]) for name in want)


def test_a_program_that_fails_is_tried_the_long_way(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: torch.Tensor) -> None:
        raise RuntimeError("no memory")

    engine.forget_counts()
    monkeypatch.setattr(engine._views.view.programs.by_role["outputs"], "_module", fail)
    requests = [PackedRequest(**draw(engine, num_rows=2, seed=seed)) for seed in (3, 4)]
    for answer in engine.predict_many(requests):
        assert str(answer) == "the model failed on this request; the server's log tells more"
    place = [feature.name for feature in engine.schema.sparse_features].index("user")
    asked = sum(int(r.lengths.reshape(4, 2)[place].sum()) for r in requests if r.lengths is not None)
    assert engine.id_counts()["user_emb"].asked == asked


def test_callers_may_ask_for_any_set_of_answers(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("emberline.serving.direct_answers._MOST_PLANS", 3)
    request = PackedRequest(**draw(engine, num_rows=2, seed=5))
    for names in (names for count in (1, 2, 3) for names in itertools.combinations(NAMES, count)):
        (found,), (want,) = engine.predict_many([request], [names]), the_long_way(engine, [request], [names])
        assert_alike(found, want)
        assert len(direct_of(engine)._plans) <= 3


def test_ids_beyond_the_bound_read_the_row_for_them(engine: Engine) -> None:
    features = [feature.name for feature in engine.schema.sparse_features]
    assert isinstance(engine.schema.sparse_features[features.index("city")].encoder, BucketEncoder)
    for strange in (6, -1, 2**63 - 1, -(2**63)):
        ids, lengths = np.array([strange, 5], np.int64), np.zeros((len(features), 2), np.int32)
        lengths[features.index("city")] = 1
        request = PackedRequest(ids, lengths.reshape(-1), dense=np.zeros(2 * engine.schema.dense_dim, np.float32))
        deep = engine.lookup(request)["deep"]
        assert torch.equal(deep[0], deep[1])
        assert deep.abs().sum() > 0


@pytest.mark.parametrize("tables", ["mapped", "private"])
def test_rows_that_a_delta_changed(tmp_path: Path, tables: str) -> None:
    toy = make_toy()
    root, after = toy.write(tmp_path), changed(toy)
    engine = Engine.open(root, tables=tables, lookup="native")
    write_delta(root, after)
    assert engine.apply_new_deltas() == [1]
    assert bool(engine.artifact.overlaid) == (tables == "mapped")
    for seed in range(4):
        arrays = random_request(engine.schema, num_rows=3, seed=seed, raw_ids=(100, -7, 2**62, 200, 300))
        request = PackedRequest(**arrays)
        (direct,) = direct_of(engine)([request], [("lookup.deep",)], UnknownCounter(["user_emb"]))
        (want,) = the_long_way(engine, [request], [("lookup.deep",)])
        assert direct is not None
        assert_alike(direct, want)
        torch.testing.assert_close(direct["lookup.deep"], after.answers(arrays)["group.deep"], rtol=1e-5, atol=1e-5)


def test_any_number_of_threads_may_ask(engine: Engine) -> None:
    requests = [PackedRequest(**draw(engine, num_rows=1 + seed % 4, seed=seed)) for seed in range(12)]
    want = [engine.lookup(request)["deep"] for request in requests]
    engine.forget_counts()
    [engine.lookup(request) for request in requests]
    once, wrong = engine.id_counts()["user_emb"], list[int]()

    def ask() -> None:
        for _ in range(20):
            for place, answer in enumerate(engine.predict_many(requests, [("lookup.deep",)] * len(requests))):
                if isinstance(answer, ServingError) or not torch.equal(answer["lookup.deep"], want[place]):
                    wrong.append(place)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    found = engine.id_counts()["user_emb"]
    assert (found.asked, found.unknown) == (81 * once.asked, 81 * once.unknown)
