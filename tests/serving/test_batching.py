"""Merging and splitting against a plain loop over requests and features."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from emberline.schema import ModelSchema
from emberline.serving.batching import merge
from emberline.serving.request import CheckedRequest

NOTHING = ModelSchema(features=(), tables=(), lookups=(), groups=())
Bags = list[list[list[int]]]
"""Feature, row, id."""


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
    merged = merge(requests, num_features)
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
    merged = merge([request_of([], 2), request_of([], 0), request_of([], 1)], 0)
    assert merged.request.num_rows == 3
    assert merged.request.dense.tolist() == [2, 3, 4, 5, 1, 2]
    assert [part.tolist() for part in merged.split_rows(torch.arange(3))] == [[0, 1], [], [2]]
    assert [part.tolist() for part in merged.split_ids(torch.empty(0))] == [[], [], []]


def test_a_single_request_is_not_copied() -> None:
    request = request_of([[[1], [2, 3]]], 2)
    assert merge([request], 1).request is request
