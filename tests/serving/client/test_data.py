"""What a caller may hand to the client, and how it is cut into requests."""

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emberline.errors import MissingDependencyError, RequestError
from emberline.serving.client.data import encode_data, split_encoded
from emberline.serving.request import PackedRequest, RequestValidator
from tests.serving.conftest import toy_schema

SCHEMA = toy_schema()
COLUMNS: Mapping[str, list[Any]] = {
    "user": [2**62, -(2**63), 9007199254740993],
    "price": [1.5, -2.0, 0.0],
    "item": [[1, 2], [], [3]],
    "city": [0, 99, 5],
    "tags": ["a", "b", "c"],
    "vector": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]],
}
ROWS = [dict(zip(COLUMNS, values, strict=True)) for values in zip(*COLUMNS.values(), strict=True)]


def packed(data: Any, max_rows: int = 100) -> list[PackedRequest]:
    return list(split_encoded(SCHEMA, encode_data(SCHEMA, data), max_rows))


def num_rows(request: PackedRequest) -> int:
    return RequestValidator(SCHEMA).check(request).num_rows


def same(found: PackedRequest, want: PackedRequest) -> None:
    for name in ("ids", "lengths", "weights", "dense"):
        np.testing.assert_array_equal(getattr(found, name), getattr(want, name))


@pytest.mark.parametrize(
    "data",
    [
        COLUMNS,
        {**COLUMNS, "user": np.array(COLUMNS["user"]), "vector": np.array(COLUMNS["vector"]), "city": pd.Series(COLUMNS["city"])},
        pd.DataFrame(COLUMNS),
        pa.table(dict(COLUMNS)),
        pa.concat_tables([pa.table(dict(COLUMNS)).slice(0, 2), pa.table(dict(COLUMNS)).slice(2)]),
        pa.table(dict(COLUMNS)).append_column("label", pa.array([1, 0, 1])).to_batches()[0],
        tuple(ROWS),
        {name: pa.array(values) for name, values in COLUMNS.items()},
        {**COLUMNS, "user": pa.chunked_array([COLUMNS["user"][:1], COLUMNS["user"][1:]]), "tags": pa.array(COLUMNS["tags"]).dictionary_encode()},
        pa.table({**COLUMNS, "tags": pa.array(COLUMNS["tags"], pa.large_string()), "item": pa.array(COLUMNS["item"], pa.large_list(pa.int32()))}),
        pa.table(
            {**COLUMNS, "user": pa.array([str(one) for one in COLUMNS["user"]], pa.string_view()), "city": pa.array(COLUMNS["city"], pa.uint8())}
        ),
        pa.table(
            {**COLUMNS, "vector": pa.array(COLUMNS["vector"], pa.list_(pa.float64(), 2)), "tags": pa.array(COLUMNS["tags"]).dictionary_encode()}
        ),
        pd.DataFrame(COLUMNS, index=[7, 7, 9]).astype({"user": "Int64", "tags": "category"}).assign(more=1),
        [{name: np.asarray(value) if isinstance(value, list) else value for name, value in row.items()} for row in ROWS],
        [{**row, "user": str(row["user"]), "price": np.float32(row["price"]), "city": np.int8(row["city"])} for row in ROWS],
    ],
)
def test_every_form_of_the_same_data_is_the_same_request(data: Any) -> None:
    same(packed(data)[0], packed(ROWS)[0])


def test_rows_become_the_request_that_the_docstrings_draw() -> None:
    (request,) = packed(ROWS)
    assert request.ids is not None
    assert request.ids[:9].tolist() == [2**62, -(2**63), 9007199254740993, 1, 2, 3, 0, 5, 5]
    assert request.lengths is not None
    assert request.lengths.tolist() == [1, 1, 1, 2, 0, 1, 1, 1, 1, 1, 1, 1]
    assert request.dense is not None
    assert request.dense.tolist() == [1.5, 1, 2, -2, 3, 4, 0, 5, 6]
    assert request.weights is not None
    assert request.weights.tolist() == [1.0] * 12


def test_what_is_missing_is_a_default_in_every_form() -> None:
    empty = packed([{}] * 3)[0]
    for nothing in (None, float("nan")):
        same(packed([dict.fromkeys(COLUMNS, nothing)] * 3)[0], empty)
    same(packed({"user": np.full(3, np.nan), "price": pa.nulls(3)})[0], empty)
    same(packed(pa.table({name: pa.nulls(3) for name in COLUMNS}))[0], empty)
    same(packed(pd.DataFrame({name: [None] * 3 for name in COLUMNS}))[0], empty)
    forms: list[Any] = [pd.DataFrame(COLUMNS).iloc[:0], pa.table(dict(COLUMNS)).slice(0, 0), {name: [] for name in COLUMNS}, []]
    assert [num_rows(packed(none)[0]) for none in forms] == [0] * 4


def test_missing_columns_are_defaults_in_rows_and_columns() -> None:
    same(packed({"user": [1, 2]})[0], packed([{"user": 1}, {"user": 2}])[0])
    assert num_rows(packed({})[0]) == 0


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ([{"usr": 1}], "unknown column 'usr'"),
        (pd.DataFrame(COLUMNS)["user"], "a Series of pandas is no DataFrame"),
        (pd.concat([pd.DataFrame(COLUMNS)] * 2, axis=1), "the DataFrame has a column 'user' more than once"),
        (pa.RecordBatchReader.from_batches(pa.schema([]), []), "or an Arrow table, not RecordBatchReader"),
        (pd.DataFrame(), "column 'user' is missing; there are: none"),
        ({"user": np.array([2**63], np.uint64)}, "9223372036854775808 does not fit 64 bits"),
        ({"usr": [1]}, "there is no column 'usr'; the model reads user, price, item, city, tags, vector"),
        ({"user": [1, 2], "city": [1]}, "column 'city' must be a list or array with one value for each of 2 rows"),
        ({"user": 5}, "column 'user' must be a list or array"),
        ([{"user": 1}, 7], "row 1 is 7, not an object"),
        ([{"user": 2**63}], "feature 'user': row 0"),
        ("rows", "rows are a list of dicts, .* not str"),
        (7, "not int"),
        (None, "not NoneType"),
        (pa.table({"user": [1]}), "column 'price' is missing"),
        (pd.DataFrame({"user": [1, "x", 2.5]}), "mixed types"),
    ],
)
def test_other_data_is_refused(data: Any, problem: str) -> None:
    with pytest.raises(RequestError, match=problem):
        packed(data)


def test_a_frame_without_pyarrow_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingDependencyError, match="pip install pyarrow"):
        packed(pd.DataFrame(COLUMNS))


BAGS = st.lists(st.integers(0, 9), max_size=3)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(BAGS, BAGS, st.floats(-9, 9, width=32)), max_size=9), st.integers(1, 10))
def test_parts_are_the_whole_in_order(rows: list[tuple[list[int], list[int], float]], max_rows: int) -> None:
    data = [{"user": users, "item": items, "price": price} for users, items, price in rows]
    parts = packed(data, max_rows)
    sizes = [num_rows(part) for part in parts]
    assert sizes[:-1] == [max_rows] * (len(parts) - 1)
    assert sum(sizes) == len(rows)
    for place, part in enumerate(parts):
        same(part, packed(data[place * max_rows :][:max_rows])[0])
