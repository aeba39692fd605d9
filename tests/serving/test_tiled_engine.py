"""Tiled requests in the engine, against the same rows written out: alone, merged, beside untiled ones, and where an id is refused."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from emberline.errors import RequestError, ServingError
from emberline.schema import UnknownIds
from emberline.serving.engine import Engine
from emberline.serving.lookup import BagRows
from emberline.serving.request import PackedRequest
from tests.serving.conftest import ToyModel
from tests.serving.tiles import Tiled, draw_tiled, tiled_steps_toy, tiled_toy

MODELS = {
    "toy": tiled_toy(),
    "items_only_city": tiled_toy(("user", "tags", "vector", "price", "item"), "items_only_city"),
    "all_users": tiled_toy(("user", "tags", "vector", "price", "item", "city"), "all_users"),
    "no_user_ids": tiled_toy(("vector",), "no_user_ids"),
    "steps": tiled_steps_toy(),
    "mixed": tiled_steps_toy(("user", "clicks", "prices"), "mixed"),
    "mixed_items_first": tiled_steps_toy(("age", "words"), "mixed_items_first"),
    "item_steps": tiled_steps_toy(("user",), "item_steps"),
}
SHAPES = [[3], [2, 0, 1], [], [0], [0, 0], [1, 1, 4, 0]]


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Engine]:
    folder = tmp_path_factory.mktemp("models")
    return {name: Engine.open(model.write(folder), num_threads=1) for name, model in MODELS.items()}


def require_equal(found: dict[str, Tensor] | ServingError, wanted: dict[str, Tensor] | ServingError) -> None:
    """Groups, which are lookups here, bit for bit; outputs but for the order of a matrix product's sums."""
    assert isinstance(found, dict), found
    assert isinstance(wanted, dict), wanted
    assert list(found) == list(wanted)
    for name, want in wanted.items():
        assert (found[name].dtype, found[name].shape) == (want.dtype, want.shape), name
        if name.startswith("lookup."):
            assert torch.equal(found[name], want), name
        else:
            torch.testing.assert_close(found[name], want, rtol=1e-6, atol=1e-6)


def all_of(engine: Engine) -> Sequence[str]:
    """Every answer but `known`, which has an entry for each id that was sent."""
    return [name for name in engine.answer_names if name != "known"]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("rows_per_user", SHAPES, ids=str)
@pytest.mark.parametrize("weights", [True, False])
def test_answers_are_those_of_the_rows_written_out(engines: dict[str, Engine], name: str, rows_per_user: list[int], weights: bool) -> None:
    engine, model = engines[name], MODELS[name]
    tiled = draw_tiled(model.schema, rows_per_user, seed=len(rows_per_user))
    request, plain = PackedRequest(**tiled.tiled(weights)), PackedRequest(**tiled.untiled(weights))
    names = [all_of(engine)]
    require_equal(engine.predict_many([request], names)[0], engine.predict_many([plain], names)[0])
    wanted = model.answers(tiled.untiled(weights))
    for output, found in engine.predict(request).items():
        torch.testing.assert_close(found, wanted[f"output.{output}"], rtol=1e-5, atol=1e-5)
    for group, found in engine.lookup(request).items():
        torch.testing.assert_close(found, wanted[f"group.{group}"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("rows_per_user", SHAPES, ids=str)
def test_inputs_of_programs_are_those_of_the_rows_written_out(engines: dict[str, Engine], name: str, rows_per_user: list[int]) -> None:
    engine = engines[name]
    tiled = draw_tiled(MODELS[name].schema, rows_per_user, seed=7)
    for make in (engine.program_inputs, engine.full_inputs):
        found, wanted = make(PackedRequest(**tiled.tiled())), make(PackedRequest(**tiled.untiled()))
        assert sorted(found) == sorted(wanted)
        for key, want in wanted.items():
            assert (found[key].dtype, found[key].tolist()) == (want.dtype, want.tolist()), key
            assert found[key].shape == want.shape


def known_of(model: ToyModel, tiled: Tiled) -> list[bool]:
    trained = model.remaps["user_emb"].rows
    found = []
    for feature in model.schema.sparse_features:
        raw = any(lookup.table == "user_emb" for lookup in model.schema.reads if lookup.feature == feature.name)
        for entry in tiled.users if feature.is_per_user else tiled.flat_rows:
            value = entry[feature.name]
            bag = [pair for step in value for pair in step] if feature.sequence else value
            found += [one in trained if raw else True for one, _ in bag]
    return found


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(sorted(MODELS)),
    st.lists(st.tuples(st.lists(st.integers(0, 4), max_size=3), st.integers(0, 99), st.booleans(), st.booleans()), min_size=1, max_size=5),
)
def test_each_request_of_a_batch_gets_what_it_gets_alone(name: str, parts: list[tuple[list[int], int, bool, bool]]) -> None:
    engine, model = _HELD[name], MODELS[name]
    drawn = [draw_tiled(model.schema, rows_per_user, seed) for rows_per_user, seed, _, _ in parts]
    sent = [tiled.tiled(weights) if is_tiled else tiled.untiled(weights) for tiled, (_, _, is_tiled, weights) in zip(drawn, parts, strict=True)]
    names = [engine.answer_names] * len(sent)
    together = engine.predict_many([PackedRequest(**arrays) for arrays in sent], names)
    for found, tiled, (_, _, is_tiled, weights) in zip(together, drawn, parts, strict=True):
        assert isinstance(found, dict)
        known = found.pop("known")
        require_equal(found, engine.predict_many([PackedRequest(**tiled.untiled(weights))], [all_of(engine)])[0])
        if is_tiled:
            assert known.tolist() == known_of(model, tiled)


_HELD: dict[str, Engine] = {}


@pytest.fixture(autouse=True, scope="module")
def held(engines: dict[str, Engine]) -> None:
    """What hypothesis's examples share."""
    _HELD.update(engines)


def test_users_ids_are_counted_as_they_are_sent(tmp_path: Path) -> None:
    model = tiled_toy()
    engine = Engine.open(model.write(tmp_path), num_threads=1)
    tiled = draw_tiled(model.schema, [5, 0, 3], seed=4)
    engine.lookup(PackedRequest(**tiled.tiled()))
    users = [one for user in tiled.users for one, _ in user["user"]]
    counts = engine.id_counts()["user_emb"]
    assert (counts.asked, counts.unknown) == (len(users), sum(one not in model.remaps["user_emb"].rows for one in users))


def test_tables_are_read_once_for_each_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiled_toy()
    engine = Engine.open(model.write(tmp_path), num_threads=1)
    source = engine._views.view.sources.user
    bags: list[int] = []
    pooled = source.lookup.pooled

    def counted(rows: BagRows) -> Tensor:
        bags.append(rows.bags.num_rows)
        return pooled(rows)

    monkeypatch.setattr(source.lookup, "pooled", counted)
    engine.predict(PackedRequest(**draw_tiled(model.schema, [50, 20], seed=1).tiled()))
    assert bags == [2]


def test_an_unknown_id_of_a_user_is_refused_by_feature_and_user(tmp_path: Path) -> None:
    model = tiled_toy()
    features = [replace(feature, unknown_ids=UnknownIds.ERROR) if feature.name == "user" else feature for feature in model.schema.features]
    model = replace(model, schema=replace(model.schema, features=tuple(features)))
    golden = draw_tiled(model.schema, [1, 1], seed=1)
    for user in golden.users:
        user["user"] = [(100, 1.0)]
    engine = Engine.open(model.write(tmp_path, golden=golden.untiled()), num_threads=1)
    bad = draw_tiled(model.schema, [2, 1], seed=2)
    bad.users[0]["user"], bad.users[1]["user"] = [(100, 1.0)], [(-7, 1.0), (5, 1.0)]
    good = PackedRequest(**golden.tiled())
    first, found, last = engine.predict_many([good, PackedRequest(**bad.tiled()), good])
    assert isinstance(found, RequestError)
    assert str(found).startswith("feature 'user': user 1: id 5 has no row of its own")
    require_equal(first, engine.predict(PackedRequest(**golden.untiled())))
    require_equal(last, engine.predict(PackedRequest(**golden.untiled())))
    known = engine.known(PackedRequest(**bad.tiled()))
    assert known.tolist()[:3] == [True, True, False]


def test_a_bad_tiled_request_fails_alone(engines: dict[str, Engine]) -> None:
    engine, schema = engines["toy"], MODELS["toy"].schema
    tiled = draw_tiled(schema, [2, 1], seed=3)
    good = tiled.tiled()
    bad = good | {"rows_per_user": np.array([2, -1], np.int32)}
    results = engine.predict_many([PackedRequest(**arrays) for arrays in (good, bad, tiled.untiled(), good)])
    assert isinstance(results[1], RequestError)
    for place in (0, 2, 3):
        require_equal(results[place], results[0])


def test_requests_that_would_fill_each_other_up_are_answered_one_by_one(engines: dict[str, Engine], monkeypatch: pytest.MonkeyPatch) -> None:
    engine, schema = engines["steps"], MODELS["steps"].schema
    drawn = [draw_tiled(schema, rows_per_user, seed) for seed, rows_per_user in enumerate([[9], [1, 3], [2]])]
    requests = [PackedRequest(**tiled.tiled()) for tiled in drawn]
    monkeypatch.setattr("emberline.serving.batching.MOST_PADDING", 1)
    names = [all_of(engine)] * 3
    found, wanted = engine.predict_many(requests, names), engine.predict_many([PackedRequest(**tiled.untiled()) for tiled in drawn], names)
    for one, other in zip(found, wanted, strict=True):
        require_equal(one, other)


def test_users_without_rows_make_no_answer_longer(engines: dict[str, Engine]) -> None:
    """A user with many steps and no rows: rows are padded to the longest of those that are there."""
    engine, schema = engines["steps"], MODELS["steps"].schema
    tiled = draw_tiled(schema, [0, 2], seed=3)
    for name, step in (("clicks", [(100, 1.0)]), ("words", [(1, 1.0)]), ("prices", [1.0, 2.0])):
        tiled.users[0][name], tiled.users[1][name] = [step] * 5, [step] * 2
    found = engine.lookup(PackedRequest(**tiled.tiled()))
    assert found["seq.sequence"].shape == (2, 2, 4)
    assert found["jag.sequence"].shape == (4, 5)
    both = [engine.predict_many([PackedRequest(**arrays)], [all_of(engine)])[0] for arrays in (tiled.tiled(), tiled.untiled())]
    require_equal(both[0], both[1])
