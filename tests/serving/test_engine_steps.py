"""The engine on a model of sequences, against the oracle: alone, merged, with unknown ids, and by the golden sample."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor

from emberline.errors import ArtifactError, RequestError, ServingError
from emberline.schema import ModelSchema, StreamSpec, UnknownIds
from emberline.serving.artifact import load_manifest
from emberline.serving.batching import BatchLayout, MergedBatch, merge
from emberline.serving.engine import Engine
from emberline.serving.files import write_tensors
from emberline.serving.request import CheckedRequest, PackedRequest, RequestValidator
from tests.serving.conftest import Arrays, ToyModel, make_steps_toy, random_request, reseal

RAW_IDS = (100, -7, 2**62)


@pytest.fixture(scope="module")
def model() -> ToyModel:
    return make_steps_toy()


@pytest.fixture(scope="module")
def engine(model: ToyModel, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return Engine.open(model.write(tmp_path_factory.mktemp("models")), num_threads=1)


def request(model: ToyModel, num_rows: int, seed: int) -> Arrays:
    return random_request(model.schema, num_rows=num_rows, seed=seed, raw_ids=RAW_IDS)


def require_same(found: dict[str, Tensor], wanted: dict[str, Tensor], prefix: str) -> None:
    names = [name.removeprefix(prefix) for name in wanted if name.startswith(prefix)]
    assert list(found) == names
    for name in names:
        assert found[name].dtype == wanted[prefix + name].dtype
        torch.testing.assert_close(found[name], wanted[prefix + name], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("num_rows", [0, 1, 2, 9])
def test_answers_are_the_models(model: ToyModel, engine: Engine, num_rows: int) -> None:
    arrays = request(model, num_rows, seed=num_rows)
    wanted = model.answers(arrays)
    require_same(engine.lookup(PackedRequest(**arrays)), wanted, "group.")
    require_same(engine.predict(PackedRequest(**arrays)), wanted, "output.")


def test_rows_without_steps(model: ToyModel, engine: Engine) -> None:
    arrays = request(model, 3, seed=1)
    nothing: Arrays = {name: values[:0] for name, values in arrays.items()}
    arrays = nothing | {"lengths": np.zeros(9, np.int32), "steps": np.zeros(9, np.int32), "dense": arrays["dense"]}
    found = engine.lookup(PackedRequest(**arrays))
    assert found["seq.sequence"].shape == (3, 0, 4)
    assert found["jag.sequence"].shape == (0, 5)
    assert found["seq.sequence_length"].tolist() == [0, 0, 0]
    require_same(found, model.answers(arrays), "group.")


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 99)), min_size=2, max_size=5))
def test_each_request_of_a_batch_gets_what_it_gets_alone(parts: list[tuple[int, int]]) -> None:
    model, engine = _shared()
    requests = [PackedRequest(**request(model, num_rows, seed)) for num_rows, seed in parts]
    names = [engine.answer_names] * len(requests)
    together = engine.predict_many(requests, names)
    for one, found in zip(requests, together, strict=True):
        assert isinstance(found, dict)
        alone = engine.predict_many([one], [engine.answer_names])[0]
        assert isinstance(alone, dict)
        assert list(found) == list(alone)
        for name, wanted in alone.items():
            assert found[name].shape == wanted.shape, name
            if name.startswith("lookup.") or name == "known":
                assert torch.equal(found[name], wanted), name
            else:
                torch.testing.assert_close(found[name], wanted, rtol=1e-6, atol=1e-6)


_HELD: list[Any] = []


def _shared() -> tuple[ToyModel, Engine]:
    return _HELD[0], _HELD[1]


@pytest.fixture(autouse=True, scope="module")
def held(model: ToyModel, engine: Engine) -> None:
    """What hypothesis's examples share."""
    _HELD[:] = [model, engine]


def test_requests_that_would_fill_each_other_up_are_answered_one_by_one(model: ToyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine.open(model.write(tmp_path))
    before = engine.id_counts()["user_emb"].asked
    requests = [PackedRequest(**request(model, num_rows, seed)) for num_rows, seed in ((9, 1), (1, 8), (4, 3))]
    sizes: list[int] = []
    compute = engine._answerer._compute

    def counted(view: Any, batch: MergedBatch, *rest: Any) -> dict[str, Tensor]:
        sizes.append(batch.request.num_rows)
        return compute(view, batch, *rest)

    monkeypatch.setattr(engine._answerer, "_compute", counted)
    together = engine.predict_many(requests, [engine.answer_names] * 3)
    asked = engine.id_counts()["user_emb"].asked - before
    assert sizes == [14]
    monkeypatch.setattr("emberline.serving.batching.MOST_PADDING", 1)
    alone = engine.predict_many(requests, [engine.answer_names] * 3)
    assert sizes == [14, 9, 1, 4]
    assert engine.id_counts()["user_emb"].asked == before + 2 * asked
    for one, other in zip(together, alone, strict=True):
        assert isinstance(one, dict)
        assert isinstance(other, dict)
        for name, values in one.items():
            torch.testing.assert_close(other[name], values, rtol=1e-6, atol=1e-6)


def test_padding_is_reckoned_by_rows_and_the_longest_of_all() -> None:
    schema = make_steps_toy().schema
    check, layout = RequestValidator(schema).check, BatchLayout.of(schema)

    def of(steps: list[int]) -> CheckedRequest:
        total, nothing = sum(steps), [0] * len(steps)
        return check(
            PackedRequest(
                np.full(2 * total, 1),
                np.array([*nothing, *steps, *steps]),
                None,
                np.zeros(len(steps)),
                np.array(steps * 3),
                np.ones(2 * total, np.int32),
                np.zeros(2 * total),
            )
        )

    with pytest.MonkeyPatch.context() as patch:
        for limit, expected in ((11, False), (10, True)):  # 3 rows of at most 2 beside 1 row of 5, and 1 of 3
            patch.setattr("emberline.serving.batching.MOST_PADDING", limit)
            assert merge([of([2, 0, 1]), of([5]), of([3])], layout).pads_too_much == expected
        assert not merge([of([5, 0, 0, 0])], layout).pads_too_much


def test_a_bad_request_fails_alone(model: ToyModel, engine: Engine) -> None:
    good, bad = request(model, 2, 1), request(model, 2, 2)
    bad = bad | {"steps": bad["steps"] + 1}
    found = engine.predict_many([PackedRequest(**good), PackedRequest(**bad)])
    assert isinstance(found[0], dict)
    assert isinstance(found[1], ServingError)


def test_known_tells_of_each_id_of_each_step(model: ToyModel, engine: Engine) -> None:
    arrays = request(model, 6, seed=4)
    lengths = arrays["lengths"].reshape(3, 6)
    raw = int(lengths[:2].sum())
    wanted = [int(one) in RAW_IDS for one in arrays["ids"][:raw]] + [True] * (arrays["ids"].size - raw)
    assert engine.known(PackedRequest(**arrays)).tolist() == wanted


def test_unknown_ids_of_a_step_can_be_refused_or_read_a_row_of_their_own(model: ToyModel, tmp_path: Path) -> None:
    user, clicks, *others = model.schema.features
    row: dict[str, Any] = {"clicks": [100, 5], "words": ["a", "b"], "prices": [[1, 2], [3, 4]]}
    refusing = replace(model.schema, features=(user, replace(clicks, unknown_ids=UnknownIds.ERROR), *others))
    engine = Engine.open(replace(model, schema=refusing).write(tmp_path / "refusing", golden=_known_only()))
    with pytest.raises(RequestError, match=r"^feature 'clicks': row 1: id 5 has no row of its own"):
        engine.predict(engine.encode_rows([{"user": 5}, row]))
    zeros = replace(clicks, unknown_ids=UnknownIds.ZEROS)
    by_step = (replace(model.schema.sequence_lookups[0], unknown_row=6), *model.schema.sequence_lookups[1:])
    schema = replace(model.schema, features=(user, zeros, *others), sequence_lookups=by_step)
    engine = Engine.open(replace(model, schema=schema).write(tmp_path / "zeros", golden=_known_only()))
    found = engine.lookup(engine.encode_rows([{"user": 5}, row]))
    table = model.tables["user_emb"]
    assert torch.equal(found["seq.sequence"][1], table[[2, 6]])
    assert torch.equal(found["deep"][0, :4], table[7])


def _known_only() -> Arrays:
    empty = np.empty(0, np.int32)
    return {
        "ids": np.empty(0, np.int64),
        "lengths": np.zeros(3, np.int32),
        "dense": np.zeros(1, np.float32),
        "steps": np.zeros(3, np.int32),
        "step_lengths": empty,
        "dense_steps": np.empty(0, np.float32),
    }


def test_a_sample_whose_steps_are_answered_otherwise_is_refused(model: ToyModel, tmp_path: Path) -> None:
    path = model.write(tmp_path / "models")
    sample = {name: tensor.clone() for name, tensor in load_file(path / "golden.safetensors").items()}
    sample["group.jag.sequence"][0, 0] += 1
    write_tensors(path / "golden.safetensors", sample)
    reseal(path)
    with pytest.raises(ArtifactError, match=r"'group\.jag\.sequence' is not what it was at export: 1 of \d+ numbers differ"):
        Engine.open(path)


def test_rows_are_encoded_as_steps(engine: Engine, model: ToyModel) -> None:
    found = engine.lookup(engine.encode_rows([{"clicks": "100;-7", "words": "a:0.5;b:2", "prices": [[1, 2], [3, 4]]}, {}]))
    assert found["seq.sequence_length"].tolist() == [2, 0]
    assert torch.equal(found["seq.sequence"][0], model.tables["user_emb"][[2, 0]])
    assert torch.equal(found["seq.sequence"][1], torch.zeros(2, 4))
    assert found["jag.sequence"][:, 3:].tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"streams": ()}, "clicks, words, seq.sequence, seq.sequence_length, .* has steps of a sequence that no stream has"),
        ({"streams": (StreamSpec(features=("clicks", "words", "prices", "user"), padded=True),)}, "a stream of sequences has .*'user'"),
        (
            {"streams": (StreamSpec(features=("clicks", "words", "prices"), padded=True), StreamSpec(features=("words",), padded=False))},
            "words is in two streams of sequences",
        ),
    ],
)
def test_streams_that_do_not_fit_the_model_are_refused(model: ToyModel, tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = model.write(tmp_path / "models")
    broken = replace(load_manifest(path), schema=replace(model.schema, **change))
    reseal(path, broken.to_dict())
    with pytest.raises(ArtifactError, match=message):
        Engine.open(path)


def test_a_schema_of_an_older_release_has_no_sequences(model: ToyModel) -> None:
    data = model.schema.to_dict()
    for name in ("sequence_lookups", "streams"):
        del data[name]
    for group in data["groups"]:
        del group["stream"]
    assert ModelSchema.from_dict(data).streams == ()
    assert ModelSchema.from_dict(model.schema.to_dict()) == model.schema
