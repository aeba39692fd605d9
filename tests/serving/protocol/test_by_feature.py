"""Requests by feature: cut out of packed ones by plain loops, they come back as these."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emberline.errors import RequestError
from emberline.schema import FeatureKind, FeatureSpec, ModelSchema
from emberline.serving.protocol.by_feature import FeaturePacker, feature_inputs
from emberline.serving.request import PackedRequest, RequestValidator
from tests.serving.conftest import Arrays, make_steps_toy, make_toy, random_request

SCHEMAS = {"toy": make_toy().schema, "steps": make_steps_toy().schema}
FIELDS = ("ids", "lengths", "weights", "dense", "steps", "step_lengths", "dense_steps")


def by_feature(schema: ModelSchema, request: Arrays) -> Arrays:
    """The request's inputs by feature, taken off the front of each packed array in turn."""
    rest = {name: values.tolist() for name, values in request.items()}
    num_rows = len(rest["lengths"]) // len(schema.sparse_features)
    dense = request["dense"].reshape(num_rows, schema.dense_dim) if "dense" in request else np.empty((num_rows, 0))
    found: Arrays = {}

    def take(kind: str, count: int, feature: FeatureSpec, packed: str, dtype: type) -> list[Any]:
        taken: list[Any] = []
        taken, rest[packed] = rest[packed][:count], rest[packed][count:]
        found[f"{kind}.{feature.name}"] = np.array(taken, dtype)
        return taken

    steps: dict[str, int] = {}
    for feature in schema.sequences:
        steps[feature.name] = sum(take("steps", num_rows, feature, "steps", np.int32))
    column = 0
    for feature in schema.features:
        if feature.kind is FeatureKind.SPARSE:
            total = sum(take("lengths", num_rows, feature, "lengths", np.int32))
            take("values", total, feature, "ids", np.int64)
            if "weights" in rest:
                take("weights", total, feature, "weights", np.float32)
                if not feature.weighted:
                    del found[f"weights.{feature.name}"]
            if feature.sequence:
                take("step_lengths", steps[feature.name], feature, "step_lengths", np.int32)
        elif feature.sequence:
            take("values", steps[feature.name] * feature.value_dim, feature, "dense_steps", np.float32)
        else:
            found[f"values.{feature.name}"] = dense[:, column : column + feature.value_dim].astype(np.float32).reshape(-1)
            column += feature.value_dim
    return found


@given(name=st.sampled_from(["toy", "steps"]), rows=st.integers(0, 5), seed=st.integers(0, 1000), weights=st.booleans())
def test_a_request_by_feature_is_the_packed_one(name: str, rows: int, seed: int, weights: bool) -> None:
    schema = SCHEMAS[name]
    request = random_request(schema, num_rows=rows, seed=seed, weights=weights)
    if weights:  # those of features without weights are not sent, and are never read
        weighted = np.repeat(
            [feature.weighted for feature in schema.sparse_features], request["lengths"].reshape(len(schema.sparse_features), -1).sum(1)
        )
        request["weights"] = np.where(weighted, request["weights"], np.float32(1))
    parts = by_feature(schema, request)
    assert parts.keys() <= {tensor.name for tensor in feature_inputs(schema)}
    found, want = FeaturePacker(schema)(parts), PackedRequest(**request)
    check = RequestValidator(schema).check
    for field in FIELDS:
        np.testing.assert_array_equal(getattr(check(found), field), getattr(check(want), field), err_msg=field)


def test_a_packed_request_stays_as_it_is() -> None:
    request = random_request(SCHEMAS["toy"], num_rows=3, seed=1)
    found = FeaturePacker(SCHEMAS["toy"])(request)
    assert all(getattr(found, name) is values for name, values in request.items())


def test_the_inputs_are_those_of_each_feature() -> None:
    found = {tensor.name: (tensor.datatypes[0], tensor.dims, tensor.optional) for tensor in feature_inputs(SCHEMAS["steps"])}
    assert found == {
        "values.user": ("INT64", (-1,), True),
        "lengths.user": ("INT32", (-1,), True),
        "values.clicks": ("INT64", (-1,), True),
        "lengths.clicks": ("INT32", (-1,), True),
        "steps.clicks": ("INT32", (-1,), True),
        "step_lengths.clicks": ("INT32", (-1,), True),
        "values.age": ("FP32", (-1,), True),
        "values.words": ("INT64", (-1,), True),
        "lengths.words": ("INT32", (-1,), True),
        "weights.words": ("FP32", (-1,), True),
        "steps.words": ("INT32", (-1,), True),
        "step_lengths.words": ("INT32", (-1,), True),
        "values.prices": ("FP32", (-1,), True),
        "steps.prices": ("INT32", (-1,), True),
    }


def test_steps_of_one_id_need_not_be_told() -> None:
    request = random_request(SCHEMAS["steps"], num_rows=4, seed=7, weights=False)
    parts = by_feature(SCHEMAS["steps"], request)
    del parts["steps.clicks"], parts["step_lengths.clicks"]
    validator = RequestValidator(SCHEMAS["steps"])
    found, want = validator.check(FeaturePacker(SCHEMAS["steps"])(parts)), validator.check(PackedRequest(**request))
    for field in FIELDS:
        np.testing.assert_array_equal(getattr(found, field), getattr(want, field), err_msg=field)


def test_steps_that_ids_do_not_bear_out_are_refused_before_memory_is_taken_for_them() -> None:
    parts = by_feature(SCHEMAS["steps"], random_request(SCHEMAS["steps"], num_rows=2, seed=7, weights=False))
    del parts["step_lengths.clicks"]
    parts["steps.clicks"] = np.array([2**31 - 1, 2**31 - 1])
    with pytest.raises(RequestError, match=rf"values\.clicks holds {parts['values.clicks'].size} items, but steps\.clicks tells of {2**32 - 2}"):
        FeaturePacker(SCHEMAS["steps"])(parts)


def tiled_schema() -> ModelSchema:
    """The toy's, where `user` and `price` are the user's."""
    schema = SCHEMAS["toy"]
    sides = {"user": "user", "price": "user"}
    return replace(schema, features=tuple(replace(feature, side=sides.get(feature.name, "item")) for feature in schema.features))


TILED: Arrays = {
    "rows_per_user": np.array([2, 1], np.int32),
    "values.user": np.array([7, 3, 4]),
    "lengths.user": np.array([1, 2], np.int32),
    "values.item": np.array([1, 2, 9]),
    "lengths.item": np.array([2, 1, 0], np.int32),
    "values.city": np.array([5]),
    "lengths.city": np.array([0, 0, 1], np.int32),
    "values.tags": np.array([], np.int64),
    "lengths.tags": np.zeros(3, np.int32),
    "values.price": np.array([0.5, 1.5], np.float32),
    "values.vector": np.arange(6, dtype=np.float32),
}


def test_a_users_features_have_an_entry_for_each_user() -> None:
    found = FeaturePacker(tiled_schema())(TILED)
    want = {
        "ids": [7, 3, 4, 1, 2, 9, 5],
        "lengths": [1, 2, 2, 1, 0, 0, 0, 1, 0, 0, 0],
        "dense": [0, 1, 2, 3, 4, 5],
        "rows_per_user": [2, 1],
        "user_dense": [0.5, 1.5],
    }
    assert {name: getattr(found, name).tolist() for name in want} == want
    with pytest.raises(RequestError, match=r"lengths\.user tells of 2 users, but values\.price of 3"):
        FeaturePacker(tiled_schema())(TILED | {"values.price": np.zeros(3, np.float32)})
    with pytest.raises(RequestError, match=r"lengths\.item tells of 3 rows, but lengths\.city of 2"):
        FeaturePacker(tiled_schema())(TILED | {"lengths.city": np.zeros(2, np.int32)})


GOOD = by_feature(SCHEMAS["toy"], random_request(SCHEMAS["toy"], num_rows=2, seed=3))


@pytest.mark.parametrize("name", [name for name in GOOD if not name.startswith("weights.")])
def test_a_missing_input_is_refused_by_name(name: str) -> None:
    with pytest.raises(RequestError, match=rf"^{name} is missing"):
        FeaturePacker(SCHEMAS["toy"])({other: values for other, values in GOOD.items() if other != name})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ids": np.zeros(1, np.int64)}, "ids and lengths.city are in one request: send the packed inputs, or all by feature"),
        ({"lengths.item": np.ones(3, np.int32)}, "lengths.user tells of 2 rows, but lengths.item of 3"),
        ({"values.price": np.ones(3, np.float32)}, "lengths.user tells of 2 rows, but values.price of 3"),
        ({"values.vector": np.ones(3, np.float32)}, "values.vector: 3 numbers are not a whole number of rows of 2"),
        ({"values.user": np.ones(9, np.int64)}, f"values.user holds 9 items, but lengths.user tells of {GOOD['lengths.user'].sum()}"),
        ({"weights.tags": np.ones(9, np.float32)}, f"weights.tags holds 9 items, but values.tags tells of {GOOD['values.tags'].size}"),
        ({"lengths.user": np.ones((2, 1), np.int32)}, r"lengths.user has shape \[2, 1\]; send \[n\] or \[1, n\]"),
        ({"lengths.user": np.ones(2, np.float32)}, "lengths.user must be integers, found float32"),
    ],
)
def test_sizes_that_do_not_go_together_are_refused(changes: Arrays, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        FeaturePacker(SCHEMAS["toy"])(GOOD | changes)
