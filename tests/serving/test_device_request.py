"""Requests on a device, checked and merged there, against the validator and the merging of the host: the same code on a CPU's tensors."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from emberline.errors import RequestError, ServingError
from emberline.serving import Engine, PackedRequest
from emberline.serving.batching import BatchLayout, merge
from emberline.serving.device_request import DeviceMerger, DeviceRequest
from emberline.serving.request import RequestValidator
from tests.serving.conftest import Arrays, make_steps_toy, make_toy, random_request, toy_schema

SCHEMA = toy_schema()
CPU = torch.device("cpu")
RAW_IDS = (100, -7, 5)


def put(arrays: Arrays, device: torch.device = CPU) -> DeviceRequest:
    return DeviceRequest(**{name: torch.from_numpy(array).to(device) for name, array in arrays.items()})


def spoil(arrays: Arrays, how: str) -> Arrays:
    """The request with one mistake in it, where there is room for it."""
    found = {name: array.copy() for name, array in arrays.items()}
    ids, lengths = found["ids"], found["lengths"]
    items = slice(int(lengths[: lengths.size // 4].sum()), int(lengths[: lengths.size // 2].sum()))
    if how == "negative" and lengths.size:
        lengths[-1] = -1
    elif how == "cancelling" and lengths.size > 1:
        lengths[:2] += np.array([-9, 9], np.int32)
    elif how == "short":
        found["ids"] = np.append(ids, 1)
        found["weights"] = np.append(found["weights"], np.float32(1)) if "weights" in found else np.ones(found["ids"].size, np.float32)
    elif how == "huge" and lengths.size:
        lengths[0] = 2**31 - 1
    elif how == "outside" and items.stop > items.start:
        ids[items][-1] = 10
    elif how == "below" and items.stop > items.start:
        ids[items][0] = -(2**63)
    elif how in ("weights", "dense") and how in found and found[how].size:
        found[how][-1] = np.inf if how == "dense" else np.nan
    return found


MISTAKES = ("none", "negative", "cancelling", "short", "huge", "outside", "below", "weights", "dense")


def host_error(arrays: Arrays) -> str:
    try:
        RequestValidator(SCHEMA).check(PackedRequest(**arrays))
    except RequestError as error:
        return str(error)
    return ""


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(0, 3), st.booleans(), st.sampled_from(MISTAKES), st.integers(0, 99)), min_size=1, max_size=4)
)
def test_a_batch_is_that_of_the_host_and_every_mistake_is_seen(drawn: list[tuple[int, int, bool, str, int]]) -> None:
    given_arrays = [
        spoil(random_request(SCHEMA, num_rows=rows, seed=seed, most=most, raw_ids=RAW_IDS, weights=weights), how)
        for rows, most, weights, how, seed in drawn
    ]
    for arrays in given_arrays:  # city 9 is out of its vocabulary, and has a row for that
        lengths = arrays["lengths"].clip(min=0).reshape(4, -1)
        cities = slice(int(lengths[:2].sum(dtype=np.int64)), int(lengths[:3].sum(dtype=np.int64)))
        arrays["ids"][cities][::2] = 9
    merger = DeviceMerger(SCHEMA, CPU)
    errors = [host_error(arrays) for arrays in given_arrays]
    requests = [put(arrays) for arrays in given_arrays]
    assert all(map(merger.is_ordinary, requests))
    batch, wrong = merger(requests)
    assert any(wrong) == any(errors)
    left = list(zip(requests, errors, strict=True))
    while any(wrong):  # one that is wrong may hide others
        left = [one for one, is_wrong in zip(left, wrong, strict=True) if not is_wrong]
        wrong = merger([request for request, _ in left])[1] if left else []
    assert not any(error for _, error in left)
    if not any(errors):
        want = merge([RequestValidator(SCHEMA).check(PackedRequest(**arrays)) for arrays in given_arrays], BatchLayout.of(SCHEMA))
        assert np.array_equal(batch.bags.ids.numpy(), want.request.ids)
        assert np.array_equal(batch.bags.offsets.diff().numpy().reshape(-1), want.request.lengths)
        assert np.array_equal(batch.dense.numpy().reshape(-1), want.request.dense)
        assert (batch.bags.weights is None) == (want.request.weights is None)
        if batch.bags.weights is not None and want.request.weights is not None:
            assert np.array_equal(batch.bags.weights.numpy(), want.request.weights)
        back = [part.tolist() for part in batch.split_ids(batch.bags.ids)]
        assert back == [part.tolist() for part in want.split_ids(torch.from_numpy(want.request.ids))]


@pytest.mark.parametrize(
    "change",
    [
        lambda arrays: {**arrays, "dense": arrays["dense"].astype(np.float64)},
        lambda arrays: {**arrays, "ids": arrays["ids"].astype(np.float32)},
        lambda arrays: {**arrays, "lengths": arrays["lengths"].astype(np.int16)},
        lambda arrays: {**arrays, "lengths": arrays["lengths"][:-1]},
        lambda arrays: {**arrays, "lengths": arrays["lengths"].reshape(2, -1)},
        lambda arrays: {**arrays, "dense": arrays["dense"][:-1]},
        lambda arrays: {**arrays, "weights": arrays["weights"][:-1]},
        lambda arrays: {name: array for name, array in arrays.items() if name != "dense"},
        lambda arrays: {name: array[:0] for name, array in arrays.items()},
    ],
)
def test_what_is_out_of_the_ordinary_is_left_to_the_host(change: Callable[[Arrays], Arrays]) -> None:
    arrays = random_request(SCHEMA, num_rows=2, seed=1, raw_ids=RAW_IDS)
    assert DeviceMerger(SCHEMA, CPU).is_ordinary(put(arrays))
    assert not DeviceMerger(SCHEMA, CPU).is_ordinary(put(change(arrays)))


def test_other_devices_sequences_and_narrow_numbers() -> None:
    arrays = random_request(SCHEMA, num_rows=2, seed=1, raw_ids=RAW_IDS)
    assert not DeviceMerger(SCHEMA, torch.device("meta")).is_ordinary(put(arrays))
    steps = make_steps_toy().schema
    with_steps = random_request(steps, num_rows=2, seed=1)
    assert not DeviceMerger(steps, CPU).is_ordinary(put({name: with_steps[name] for name in ("ids", "lengths", "weights", "dense")}))
    narrow = DeviceRequest(torch.tensor([1]), torch.tensor([1]), dense=torch.ones(1, dtype=torch.bfloat16))
    assert narrow.to_host().dense == np.ones(1, np.float32)


def test_numbers_are_float32_whatever_the_process_has_as_its_default() -> None:
    arrays = [random_request(SCHEMA, num_rows=2, seed=1, raw_ids=RAW_IDS, weights=weights) for weights in (True, False)]
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        batch, wrong = DeviceMerger(SCHEMA, CPU)([put(one) for one in arrays])
    finally:
        torch.set_default_dtype(before)
    assert wrong == [False, False]
    assert batch.bags.weights is not None
    assert (batch.bags.weights.dtype, batch.dense.dtype) == (torch.float32, torch.float32)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return Engine.open(make_toy().write(tmp_path_factory.mktemp("models")))


@settings(max_examples=15)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.booleans(), st.sampled_from(MISTAKES), st.integers(0, 99), st.booleans()), max_size=5),
    st.sampled_from([None, ["probs"], ["lookup.deep", "known"], ["known"], ["nothing"]]),
)
def test_an_engine_gives_the_same_answers_and_errors_wherever_requests_are(
    engine: Engine, drawn: list[tuple[int, bool, str, int, bool]], names: list[str] | None
) -> None:
    arrays = [spoil(random_request(SCHEMA, num_rows=rows, seed=seed, raw_ids=RAW_IDS, weights=heavy), how) for rows, heavy, how, seed, _ in drawn]
    there = [put(one) if on_device else PackedRequest(**one) for one, (*_, on_device) in zip(arrays, drawn, strict=True)]
    before = engine.id_counts()["user_emb"]
    want = engine.predict_many([PackedRequest(**one) for one in arrays], [names] * len(arrays))
    between = engine.id_counts()["user_emb"]
    found = engine.predict_many(there, [names] * len(there))
    after = engine.id_counts()["user_emb"]
    assert (after.asked - between.asked, after.unknown - between.unknown) == (between.asked - before.asked, between.unknown - before.unknown)
    for mine, theirs in zip(found, want, strict=True):
        if isinstance(theirs, ServingError) or isinstance(mine, ServingError):
            assert (type(mine), str(mine)) == (type(theirs), str(theirs))
            continue
        assert mine.keys() == theirs.keys()
        for name, answer in theirs.items():
            torch.testing.assert_close(mine[name], answer, rtol=1e-6, atol=1e-6)


def test_the_host_answers_where_a_program_fails_on_the_device(engine: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Memory, say, that is enough for a request, and not for all of them at once."""
    arrays = random_request(SCHEMA, num_rows=2, seed=1, raw_ids=RAW_IDS)

    def fail(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(engine._answerer, "_device_answers", fail)
    (found,) = engine.predict_many([put(arrays)])
    assert isinstance(found, dict)
    torch.testing.assert_close(found["probs"], engine.predict(PackedRequest(**arrays))["probs"])
