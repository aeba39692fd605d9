"""The engine against an oracle that works bag by bag in float64."""

import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from emberline.errors import ArtifactError, MissingDependencyError, RequestError, ServingError
from emberline.schema import BucketEncoder, LookupSpec, Pooling, RawIdEncoder
from emberline.serving import Engine, PackedRequest
from tests.serving.conftest import Arrays, Remap, ToyModel, make_lookup_model, make_toy, random_request, sparse

RAW_IDS = (100, -7, 2**62, 200)


@pytest.fixture(scope="module")
def toy_model() -> ToyModel:
    return make_toy()


@pytest.fixture(scope="module")
def engine(toy_model: ToyModel, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return Engine.open(toy_model.write(tmp_path_factory.mktemp("models")), num_threads=1)


def ask(model: ToyModel, num_rows: int, seed: int, *, weights: bool = True) -> Arrays:
    return random_request(model.schema, num_rows=num_rows, seed=seed, raw_ids=RAW_IDS, weights=weights)


def packed(arrays: Arrays) -> PackedRequest:
    return PackedRequest(arrays["ids"], arrays["lengths"], arrays.get("weights"), arrays.get("dense"))


def assert_answers(found: dict[str, Tensor] | ServingError, model: ToyModel, request: Arrays, prefix: str = "output.") -> None:
    assert not isinstance(found, ServingError), found
    want = {name.removeprefix(prefix): value for name, value in model.answers(request).items() if name.startswith(prefix)}
    assert sorted(found) == sorted(want)
    for name, value in want.items():
        torch.testing.assert_close(found[name], value, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("num_rows", [0, 1, 2, 33])
@pytest.mark.parametrize("weights", [True, False])
def test_answers_equal_the_oracle(engine: Engine, toy_model: ToyModel, num_rows: int, weights: bool) -> None:
    request = ask(toy_model, num_rows, seed=num_rows, weights=weights)
    assert_answers(engine.predict(packed(request)), toy_model, request)
    assert_answers(engine.lookup(packed(request)), toy_model, request, "group.")


def test_describes_itself(engine: Engine, toy_model: ToyModel) -> None:
    assert (engine.name, engine.version, engine.schema) == ("toy", 1, toy_model.schema)
    assert engine.answer_names == ("probs", "scores", "lookup.deep", "lookup.wide", "known")


def test_a_batch_without_rows_has_answers_without_rows(engine: Engine) -> None:
    empty = PackedRequest(np.empty(0, np.int64), np.empty(0, np.int32), None, np.empty(0, np.float32))
    assert {name: tuple(value.shape) for name, value in engine.predict(empty).items()} == {"probs": (0,), "scores": (0, 3)}
    assert {name: tuple(value.shape) for name, value in engine.lookup(empty).items()} == {"deep": (0, 27), "wide": (0, 4)}
    assert engine.known(empty).tolist() == []


def test_all_bags_empty_gives_zero_lookups(engine: Engine) -> None:
    request = PackedRequest(np.empty(0, np.int64), np.zeros(8, np.int32), None, np.array([1, 2, 3, 4, 5, 6], np.float32))
    deep = engine.lookup(request)["deep"]
    assert torch.equal(deep, torch.cat([torch.zeros(2, 24), torch.tensor([[1.0, 2, 3], [4, 5, 6]])], dim=1))


def test_known_tells_trained_ids_from_others(engine: Engine) -> None:
    ids = np.array([100, 101, 2**63 - 1, -(2**63), -7, 9, 3, 2])
    request = PackedRequest(ids, np.array([5, 1, 1, 1], np.int32), None, np.zeros(3, np.float32))
    assert engine.known(request).tolist() == [True, False, False, False, True, True, True, True]


@settings(max_examples=60, deadline=None)
@given(sizes=st.lists(st.integers(0, 5), min_size=1, max_size=9), seed=st.integers(0, 10**6))
def test_merged_requests_get_their_own_answers(engine: Engine, toy_model: ToyModel, sizes: list[int], seed: int) -> None:
    requests = [ask(toy_model, size, seed + place, weights=(seed + place) % 3 != 0) for place, size in enumerate(sizes)]
    merged = engine.predict_many([packed(request) for request in requests], [engine.answer_names] * len(requests))
    for request, found in zip(requests, merged, strict=True):
        assert not isinstance(found, ServingError), found
        for name, value in engine.predict(packed(request)).items():
            torch.testing.assert_close(found[name], value, rtol=1e-6, atol=1e-6)
        for name, value in engine.lookup(packed(request)).items():
            assert torch.equal(found[f"lookup.{name}"], value)  # lookups are bit-equal in any company
        assert torch.equal(found["known"], engine.known(packed(request)))


def test_three_ragged_requests_are_split_by_their_own_rows(engine: Engine, toy_model: ToyModel) -> None:
    requests = [ask(toy_model, rows, seed) for seed, rows in enumerate((2, 1, 3))]
    requests[1] = {"ids": np.empty(0, np.int64), "lengths": np.zeros(4, np.int32), "dense": np.ones(3, np.float32)}
    for request, found in zip(requests, engine.predict_many([packed(request) for request in requests]), strict=True):
        assert_answers(found, toy_model, request)


def test_a_bad_request_fails_alone_and_order_is_kept(engine: Engine, toy_model: ToyModel) -> None:
    good = [ask(toy_model, rows, seed=rows) for rows in (1, 2, 4)]
    out_of_range = PackedRequest(np.array([100, 10, 0, 0]), np.ones(4, np.int32), None, np.zeros(3, np.float32))
    torn = PackedRequest(np.array([1, 2, 3]), np.ones(4, np.int32), None, np.zeros(3, np.float32))
    found = engine.predict_many([packed(good[0]), out_of_range, packed(good[1]), torn, packed(good[2])])
    for place, request in ((0, good[0]), (2, good[1]), (4, good[2])):
        assert_answers(found[place], toy_model, request)
    assert isinstance(found[1], RequestError)
    assert str(found[1]) == "feature 'item': row 0: id 10 is outside [0, 10)"
    assert isinstance(found[3], RequestError)
    assert str(found[3]) == "ids holds 3 ids, but lengths add up to 4"


def test_no_requests_get_no_answers(engine: Engine) -> None:
    assert engine.predict_many([]) == []


def test_only_what_was_asked_for_is_given(engine: Engine, toy_model: ToyModel) -> None:
    request = packed(ask(toy_model, 2, seed=5))
    names: Sequence[Sequence[str]] = (["scores"], ["known", "lookup.wide"], [])
    found = engine.predict_many([request] * 3, names)
    assert [sorted(answer) for answer in found if isinstance(answer, dict)] == [["scores"], ["known", "lookup.wide"], []]


def test_an_unknown_answer_is_refused_by_name(engine: Engine, toy_model: ToyModel) -> None:
    found = engine.predict_many([packed(ask(toy_model, 1, seed=0))], [["score"]])[0]
    assert isinstance(found, RequestError)
    assert str(found) == "the model has no output 'score'; it has probs, scores, lookup.deep, lookup.wide, known"


class FailsOverFourRows(nn.Module):
    """Stands for a program that runs out of memory on large batches."""

    def forward(self, pooled: Tensor, dense: Tensor) -> tuple[Tensor, Tensor]:
        if pooled.shape[0] > 4:
            raise RuntimeError("out of memory in /secret/place")
        return pooled[:, 0], pooled[:, :3]


def test_a_failing_batch_is_tried_one_by_one(toy_model: ToyModel, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = ToyModel(toy_model.schema, toy_model.tables, toy_model.remaps, FailsOverFourRows(), toy_model.groups)
    engine = Engine.open(model.write(tmp_path))
    requests = [ask(model, rows, seed=rows) for rows in (2, 5, 3)]
    found = engine.predict_many([packed(request) for request in requests])
    assert_answers(found[0], model, requests[0])
    assert_answers(found[2], model, requests[2])
    assert type(found[1]) is ServingError
    assert "secret" not in str(found[1])
    assert "out of memory" in caplog.text


def test_answers_do_not_depend_on_what_came_before(engine: Engine, toy_model: ToyModel) -> None:
    first = packed(ask(toy_model, 7, seed=1))
    before = {name: value.clone() for name, value in {**engine.predict(first), **engine.lookup(first)}.items()}
    tables = {name: rows.clone() for name, rows in engine.artifact.tables.items()}
    for seed in range(200):
        engine.predict(packed(ask(toy_model, seed % 9, seed)))
    for name, value in {**engine.predict(first), **engine.lookup(first)}.items():
        assert torch.equal(value, before[name]), name
    for name, rows in tables.items():
        assert torch.equal(engine.artifact.tables[name], rows), name


def test_threads_get_their_own_answers(engine: Engine, toy_model: ToyModel) -> None:
    failures: list[str] = []

    def work(number: int) -> None:
        for turn in range(20):
            request = ask(toy_model, (number + turn) % 6, seed=1000 * number + turn)
            try:
                assert_answers(engine.predict(packed(request)), toy_model, request)
            except AssertionError as error:
                failures.append(f"thread {number}, turn {turn}: {error}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_rows_are_encoded_as_in_training(engine: Engine, toy_model: ToyModel) -> None:
    rows: list[dict[str, object]] = [
        {"user": 100, "item": "3", "city": 99, "tags": {"7": 2.0, "8": 0.5}, "price": 1.5, "vector": [1.0, -2.0]},
        {"user": "-7", "item": [1, 2], "city": None, "price": None, "vector": [0.5, 0.25]},
    ]
    request = engine.encode_rows(rows)
    assert request.num_rows == 2
    assert request.lengths.tolist() == [1, 1, 1, 2, 1, 0, 2, 0]
    assert request.ids[:6].tolist() == [100, -7, 3, 1, 2, 5]
    assert request.weights is not None
    assert request.weights.tolist() == [1, 1, 1, 1, 1, 1, 2.0, 0.5]
    assert request.dense.tolist() == [1.5, 1.0, -2.0, 0.0, 0.5, 0.25]
    arrays: Arrays = {"ids": request.ids, "lengths": request.lengths, "weights": request.weights, "dense": request.dense}
    assert_answers(engine.predict(request), toy_model, arrays)


def test_rows_with_an_unknown_column_are_refused(engine: Engine) -> None:
    with pytest.raises(RequestError, match="unknown column 'itme'; did you mean 'item'"):
        engine.encode_rows([{"itme": 3}])


def test_rows_without_a_column_get_its_default(engine: Engine) -> None:
    assert engine.encode_rows([{}]).lengths.tolist() == [0, 0, 0, 0]


def test_no_rows_are_a_request_without_rows(engine: Engine) -> None:
    assert engine.predict(engine.encode_rows([]))["probs"].shape == (0,)


def pooled_of(model: ToyModel, tmp_path: Path, ids: list[int], lengths: list[int], dtype: type[np.generic] = np.int64) -> list[list[float]]:
    engine = Engine.open(model.write(tmp_path))
    found: list[list[float]] = engine.lookup(PackedRequest(np.array(ids, dtype), np.array(lengths, np.int32)))["pooled"].tolist()
    return found


def numbered_table(rows: int, dim: int, first: int = 0) -> Tensor:
    """Row i is [first + i] * dim."""
    return (first + torch.arange(rows, dtype=torch.float32))[:, None].repeat(1, dim)


def test_columns_keep_the_order_of_the_lookups(tmp_path: Path) -> None:
    """Mixed widths and poolings, features in another order than lookups."""
    lookups = (
        LookupSpec(key="f0", feature="f0", table="t0", pooling=Pooling.SUM, dim=4),
        LookupSpec(key="f1", feature="f1", table="t1", pooling=Pooling.MEAN, dim=8),
        LookupSpec(key="f2", feature="f2", table="t2", pooling=Pooling.SUM, dim=4),
    )
    features = tuple(sparse(name, BucketEncoder(rows=10)) for name in ("f2", "f0", "f1"))
    tables = {f"t{k}": numbered_table(10, dim, 100 * k) for k, dim in enumerate((4, 8, 4))}
    found = pooled_of(make_lookup_model(lookups, features, tables), tmp_path, [1, 2, 3, 4, 5], [1, 1, 2, 0, 0, 1])
    assert found == [[7.0] * 4 + [0.0] * 8 + [201.0] * 4, [0.0] * 4 + [105.0] * 8 + [202.0] * 4]


def one_table(encoder: BucketEncoder | RawIdEncoder, remap: Remap | None = None, rows: int = 10) -> ToyModel:
    lookup = LookupSpec(key="f", feature="f", table="t", pooling=Pooling.SUM, dim=1)
    remaps = {} if remap is None else {"t": remap}
    return make_lookup_model((lookup,), (sparse("f", encoder),), {"t": numbered_table(rows, 1)}, remaps)


@pytest.mark.parametrize("bad", [10, -1, 2**40, 2**63 - 1, -(2**63)])
def test_an_id_that_the_table_lacks_is_refused(tmp_path: Path, bad: int) -> None:
    with pytest.raises(RequestError, match=rf"^feature 'f': row 1: id {bad} is outside \[0, 10\)$"):
        pooled_of(one_table(BucketEncoder(rows=10)), tmp_path, [9, bad], [1, 1])


@pytest.mark.parametrize("bad", [10, -1, 2**40])
def test_an_id_that_the_table_lacks_reads_the_row_kept_for_it(tmp_path: Path, bad: int) -> None:
    assert pooled_of(one_table(BucketEncoder(rows=10, oov_row=4)), tmp_path, [bad, 9, 0], [1, 1, 1]) == [[4.0], [9.0], [0.0]]


def test_an_id_never_trained_reads_the_default_row(tmp_path: Path) -> None:
    remap = Remap({100: 0, 200: 1, 300: 2})
    assert pooled_of(one_table(RawIdEncoder(), remap, rows=8), tmp_path, [100, 999, -5, 300], [1, 1, 1, 1]) == [[0.0], [7.0], [7.0], [2.0]]


@pytest.mark.parametrize(
    ("fallbacks", "want"),
    [
        ({-(2**63): 9}, [9, 9, 9, 9]),
        ({-(2**63): 4, 500: 9}, [4, 4, 9, 9]),
        ({-(2**63): 3, 334: 7, 668: 9}, [3, 7, 7, 9]),
    ],
)
def test_each_training_shard_has_its_own_default_row(tmp_path: Path, fallbacks: dict[int, int], want: list[int]) -> None:
    found = pooled_of(one_table(RawIdEncoder(), Remap({11: 0}, fallbacks)), tmp_path, [5, 499, 500, 995], [1, 1, 1, 1])
    assert found == [[float(row)] for row in want]


def test_extreme_ids_never_match_a_free_row(tmp_path: Path) -> None:
    remap = Remap({100: 1, 200: 2, 300: 3})
    extremes = [2**63 - 1, 2**63 - 2, -(2**63), -1, 0]
    assert pooled_of(one_table(RawIdEncoder(), remap, rows=8), tmp_path, extremes, [1] * 5) == [[7.0]] * 5


def test_narrow_ids_are_widened(tmp_path: Path) -> None:
    assert pooled_of(one_table(RawIdEncoder(), Remap({100: 1, 200: 2}), rows=8), tmp_path, [100, 200], [1, 1], np.int32) == [[1.0], [2.0]]


def test_wide_ids_are_never_folded(tmp_path: Path) -> None:
    remap = Remap({5: 1, 5 + 2**31 - 1: 2, 5 + 2**32: 3})
    assert pooled_of(one_table(RawIdEncoder(), remap, rows=8), tmp_path, [5, 5 + 2**31 - 1, 5 + 2**32], [1, 1, 1]) == [[1.0], [2.0], [3.0]]


def test_a_missing_program_is_refused(toy_model: ToyModel, tmp_path: Path) -> None:
    model = ToyModel(toy_model.schema, toy_model.tables, toy_model.remaps, None, toy_model.groups)
    with pytest.raises(ArtifactError, match="no program for the model's outputs"):
        Engine.open(model.write(tmp_path))


@pytest.mark.parametrize(
    ("device", "message"), [("cuda:99", "device 'cuda:99' is not there: torch .* sees"), ("gpu", "'gpu' is no device that torch knows")]
)
def test_a_device_that_is_not_there_is_told(toy_artifact: Path, device: str, message: str) -> None:
    with pytest.raises(MissingDependencyError, match=message):
        Engine.open(toy_artifact, device=device)


@pytest.mark.gpu
def test_a_gpu_gives_the_same_answers(toy_model: ToyModel, tmp_path: Path) -> None:
    engine = Engine.open(toy_model.write(tmp_path), device="cuda")
    for num_rows in (0, 1, 33):
        request = ask(toy_model, num_rows, seed=num_rows)
        found = engine.predict(packed(request))
        assert_answers({name: value.cpu() for name, value in found.items()}, toy_model, request)
        assert engine.known(packed(request)).cpu().tolist() == Engine.open(tmp_path / "toy").known(packed(request)).tolist()
