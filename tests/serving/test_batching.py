"""Merging and splitting against a plain loop over requests and features."""

from dataclasses import replace

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from emberline.schema import HashEncoder, ModelSchema
from emberline.serving.batching import BatchLayout, merge
from emberline.serving.request import CheckedRequest, PackedRequest, RequestValidator
from tests.serving.conftest import Sequences, make_steps_toy, random_request, sparse

NOTHING = ModelSchema(features=(), tables=(), lookups=(), groups=())
Bags = list[list[list[int]]]
"""Feature, row, id."""


def layout_of(num_features: int) -> BatchLayout:
    return replace(BatchLayout.of(NOTHING), num_features=num_features)


def request_of(bags: Bags, num_rows: int, weights: bool = False) -> CheckedRequest:
    ids = np.array([item for feature in bags for row in feature for item in row], np.int64)
    return CheckedRequest(
        ids=ids,
        lengths=np.array([len(row) for feature in bags for row in feature], np.int32),
        weights=ids.astype(np.float32) / 8 if weights else None,
        dense=np.arange(2 * num_rows, dtype=np.float32) + num_rows,
        num_rows=num_rows,
        checked_for=NOTHING,
    )


@st.composite
def groups(draw: st.DrawFn) -> tuple[int, list[tuple[Bags, int, bool]]]:
    num_features = draw(st.integers(1, 3))
    bag = st.lists(st.integers(-9, 9), max_size=3)
    found = []
    for _ in range(draw(st.integers(1, 5))):
        num_rows = draw(st.integers(0, 4))
        rows = st.lists(bag, min_size=num_rows, max_size=num_rows)
        found.append((draw(st.lists(rows, min_size=num_features, max_size=num_features)), num_rows, draw(st.booleans())))
    return num_features, found


@given(groups())
def test_a_batch_is_the_requests_side_by_side(group: tuple[int, list[tuple[Bags, int, bool]]]) -> None:
    num_features, parts = group
    requests = [request_of(*part) for part in parts]
    merged = merge(requests, layout_of(num_features))
    batch = merged.request
    joined = [[row for bags, _, _ in parts for row in bags[feature]] for feature in range(num_features)]
    want = request_of(joined, 0)
    assert batch.ids.tolist() == want.ids.tolist()
    assert batch.lengths.tolist() == want.lengths.tolist()
    assert batch.num_rows == sum(num_rows for _, num_rows, _ in parts)
    assert batch.dense.tolist() == [number for request in requests for number in request.dense.tolist()]
    if any(weighted for _, _, weighted in parts):
        weighted = [
            [item / 8 if flag else 1.0 for bags, _, flag in parts for row in bags[feature] for item in row] for feature in range(num_features)
        ]
        assert batch.weights is not None
        assert batch.weights.tolist() == [weight for feature in weighted for weight in feature]
    else:
        assert batch.weights is None
    by_id = merged.split_ids(torch.from_numpy(batch.ids * 2))
    assert [part.tolist() for part in by_id] == [(request.ids * 2).tolist() for request in requests]
    by_row = merged.split_rows(torch.arange(batch.num_rows))
    assert torch.cat(by_row).tolist() == list(range(batch.num_rows))
    assert [part.numel() for part in by_row] == [num_rows for _, num_rows, _ in parts]


def test_requests_without_sparse_features() -> None:
    merged = merge([request_of([], 2), request_of([], 0), request_of([], 1)], layout_of(0))
    assert merged.request.num_rows == 3
    assert merged.request.dense.tolist() == [2, 3, 4, 5, 1, 2]
    assert [part.tolist() for part in merged.split_rows(torch.arange(3))] == [[0, 1], [], [2]]
    assert [part.tolist() for part in merged.split_ids(torch.empty(0))] == [[], [], []]


def test_a_single_request_is_not_copied() -> None:
    request = request_of([[[1], [2, 3]]], 2)
    assert merge([request], layout_of(1)).request is request


STEPS = make_steps_toy().schema


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 99), st.booleans()), min_size=1, max_size=4))
def test_sequences_of_a_batch_are_those_of_the_requests(parts: list[tuple[int, int, bool]]) -> None:
    """Against a request of all rows, read by plain loops; the first sequence has one id a step, which a request may leave out."""
    validator, requests, read = RequestValidator(STEPS), [], []
    for num_rows, seed, _ in parts:
        arrays = random_request(STEPS, num_rows=num_rows, seed=seed, raw_ids=(100, -7))
        requests.append(validator.check(PackedRequest(**arrays)))
        read.append(Sequences.of(STEPS, arrays))
    merged = merge(requests, BatchLayout.of(STEPS))
    batch = merged.request
    if batch.step_lengths is not None:
        given_again = PackedRequest(batch.ids, batch.lengths, batch.weights, batch.dense, batch.steps, batch.step_lengths, batch.dense_steps)
        assert validator.check(given_again).steps.tolist() == batch.steps.tolist()
    given_arrays = {name: getattr(batch, name) for name in ("ids", "lengths", "weights", "steps", "step_lengths", "dense_steps")}
    found = Sequences.of(STEPS, {name: values for name, values in given_arrays.items() if values is not None})
    for feature in ("clicks", "words"):
        assert found.bags[feature] == [bag for one in read for bag in one.bags[feature]]
    assert found.numbers["prices"].tolist() == [step for one in read for step in one.numbers["prices"].tolist()]
    assert found.lengths["words"] == [count for one in read for count in one.lengths["words"]]
    by_step = merged.split_steps(torch.arange(len(found.bags["clicks"])), "clicks")
    assert [part.numel() for part in by_step] == [len(one.bags["clicks"]) for one in read]
    assert torch.cat(by_step).tolist() == list(range(len(found.bags["clicks"])))
    longest = max(found.lengths["clicks"], default=0)
    padded = merged.split_padded(torch.arange(batch.num_rows * longest).view(batch.num_rows, longest, 1), "clicks")
    assert [part.shape[1] for part in padded] == [max(one.lengths["clicks"], default=0) for one in read]


def test_a_request_that_leaves_out_one_id_a_step_gets_ones_beside_one_that_does_not() -> None:
    features = (replace(sparse("f", HashEncoder(rows=9), value_dim=1), sequence=True),)
    schema = ModelSchema(features=features, tables=(), lookups=(), groups=())
    check = RequestValidator(schema).check
    left_out = check(PackedRequest(np.array([1, 2]), np.array([2, 0])))
    told = check(PackedRequest(np.array([3]), np.array([1]), steps=np.array([2]), step_lengths=np.array([0, 1])))
    merged = merge([left_out, told, left_out], BatchLayout.of(schema)).request
    assert (merged.ids.tolist(), merged.lengths.tolist(), merged.steps.tolist()) == ([1, 2, 3, 1, 2], [2, 0, 1, 2, 0], [2, 0, 2, 2, 0])
    assert merged.step_lengths is not None
    assert merged.step_lengths.tolist() == [1, 1, 0, 1, 1, 1]
