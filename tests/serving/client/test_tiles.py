"""Cutting tiled data into requests of few rows, against the whole of it."""

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emberline.errors import RequestError
from emberline.serving.client.tiles import encode_tile, split_tile
from emberline.serving.encoded import ids_per_bag
from emberline.serving.request import RequestValidator
from emberline.serving.tiled_rows import TiledRows, encode_tiled
from tests.serving.conftest import make_toy
from tests.serving.tiles import tiled_toy

SCHEMA = tiled_toy().schema


def data_of(rows_per_user: list[int]) -> tuple[list[dict[str, Any]], list[list[dict[str, Any]]]]:
    """Each user and each row with a number of its own."""
    users = [
        {"user": 1000 + number, "tags": {f"t{n}": 1.5 for n in range(number % 3)}, "vector": [number, 0]} for number in range(len(rows_per_user))
    ]
    numbers = iter(range(sum(rows_per_user)))
    rows = [[{"price": number, "item": [1] * (number % 3)} for _, number in zip(range(count), numbers, strict=False)] for count in rows_per_user]
    return users, rows


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(0, 5), max_size=5), st.integers(1, 6))
def test_parts_are_the_whole_in_order(rows_per_user: list[int], max_rows: int) -> None:
    users, rows = data_of(rows_per_user)
    parts = list(split_tile(SCHEMA, encode_tile(SCHEMA, users, rows, None), max_rows))
    prices: list[float] = []
    of_row: list[int] = []
    seen: list[int] = []
    for request, goes_on in parts:
        tile = RequestValidator(SCHEMA).check(request).tile
        assert tile is not None
        assert tile.item.num_rows <= max_rows
        numbers = tile.user.dense.reshape(-1, 2)[:, 0].astype(int).tolist()
        assert goes_on == bool(seen and numbers and numbers[0] == seen[-1])
        seen += numbers[1:] if goes_on else numbers
        prices += tile.item.dense.tolist()
        of_row += np.repeat(numbers, tile.rows_per_user).tolist()
    assert prices == list(range(sum(rows_per_user)))
    assert seen == list(range(len(rows_per_user)))
    assert of_row == np.repeat(np.arange(len(rows_per_user)), rows_per_user).tolist()
    assert len(parts) == max(1, -(-sum(rows_per_user) // max_rows))


def test_one_part_is_what_the_server_makes_of_it() -> None:
    users, rows = data_of([2, 0, 1])
    (part,) = split_tile(SCHEMA, encode_tile(SCHEMA, users, rows, None), 100)
    wanted = encode_tiled(SCHEMA, TiledRows(users, rows))
    for name in ("ids", "lengths", "weights", "dense", "user_dense", "rows_per_user"):
        assert np.array_equal(getattr(part.request, name), getattr(wanted, name)), name
    bags = dict(zip([feature.name for feature in SCHEMA.sparse_features], ids_per_bag(SCHEMA, part.request), strict=True))
    assert {name: sizes.tolist() for name, sizes in bags.items()} == {"user": [1, 1, 1], "item": [0, 1, 2], "city": [0, 0, 0], "tags": [0, 1, 2]}


def test_columns_frames_and_tables_say_how_many_rows_each_user_has() -> None:
    users = {"user": [5, 6], "tags": ["a", "b"], "vector": [[1.0, 2.0], [3.0, 4.0]]}
    items = {"item": [1, 2, 3], "city": [0, 1, 2], "price": [1.0, 2.0, 3.0]}
    user_rows = [dict(zip(users, values, strict=True)) for values in zip(*users.values(), strict=True)]
    item_rows = [dict(zip(items, values, strict=True)) for values in zip(*items.values(), strict=True)]
    (wanted,) = split_tile(SCHEMA, encode_tile(SCHEMA, user_rows, [item_rows[:2], item_rows[2:]], None), 100)
    forms: list[Any] = [dict, pd.DataFrame, pa.table]
    for form in forms:
        for other in forms:
            (found,) = split_tile(SCHEMA, encode_tile(SCHEMA, form(users), other(items), [2, 1]), 100)
            for name in ("ids", "lengths", "dense", "user_dense", "rows_per_user"):
                assert np.array_equal(getattr(found.request, name), getattr(wanted.request, name)), (name, form, other)


@pytest.mark.parametrize("counts", [[3], [2, 2], [2, 1, 0], [4, -1], [-1, 4]])
def test_counts_that_do_not_fit_are_refused(counts: list[int]) -> None:
    message = r"^rows_per_user must have, for each of 2 users, how many of the 3 rows it has: found \d that add up to \d$"
    with pytest.raises(RequestError, match=message):
        encode_tile(SCHEMA, [{}, {}], [{}, {}, {}], counts)


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ([1.5, 1.5], "rows_per_user must be integers, found float64"),
        (["2", "1"], "rows_per_user must be integers, found <U1"),
        ([True, True], "rows_per_user must be integers, found bool"),
        ([[2], [1]], r"rows_per_user has shape \[2, 1\]; .*"),
        ([2**40, 1], "rows_per_user: 1099511627776 does not fit INT32"),
    ],
)
def test_counts_that_are_no_whole_numbers_are_refused(counts: Any, message: str) -> None:
    with pytest.raises(RequestError, match=f"^{message}$"):
        encode_tile(SCHEMA, [{}, {}], [{}, {}, {}], counts)


@pytest.mark.parametrize(
    ("users", "rows", "message"),
    [
        (pd.DataFrame({"user": [1]}), [[{}]], "users must be a list, not DataFrame: give rows_per_user with columns, .*"),
        ([{}], [{"item": 1}], "the rows of a user must be a list, not dict: give rows_per_user .*"),
        ([{}], {"item": [1]}, "rows must be a list, not dict: give rows_per_user .*"),
        ([{}], [[{"user": 1}]], "row 0: column 'user' is the user's: give it in users, once for all rows"),
        ([{"user": 1.5}], [[{}]], r"feature 'user': user 0: 1\.5 is not a whole number.*"),
    ],
)
def test_users_and_rows_that_do_not_fit_are_refused(users: Any, rows: Any, message: str) -> None:
    with pytest.raises(RequestError, match=f"^{message}$"):
        encode_tile(SCHEMA, users, rows, None)


def test_a_model_without_sides_refuses_users() -> None:
    with pytest.raises(RequestError, match=r"^feature 'user': has no side"):
        encode_tile(make_toy().schema, [{}], [[{}]], None)
