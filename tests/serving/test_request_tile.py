"""The validator of tiled requests: what it makes of them, and what it refuses and how it says so."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emberline.errors import RequestError
from emberline.schema import ModelSchema
from emberline.serving.request import CheckedRequest, PackedRequest, RequestValidator
from tests.serving.conftest import Arrays, make_toy
from tests.serving.tiles import draw_tiled, tiled_steps_toy, tiled_toy, with_sides

TOY, STEPS = tiled_toy().schema, tiled_steps_toy().schema
MIXED = tiled_steps_toy(("user", "clicks", "prices")).schema
ONLY_USERS = tiled_toy(("user", "tags", "vector", "price", "item", "city")).schema


def i32(*values: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.array(values, np.int32)


def check(schema: ModelSchema, arrays: Arrays) -> CheckedRequest:
    return RequestValidator(schema).check(PackedRequest(**arrays))


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([TOY, STEPS, MIXED, ONLY_USERS]), st.lists(st.integers(0, 4), max_size=4), st.integers(0, 99), st.booleans())
def test_both_sides_are_requests_of_their_own(schema: ModelSchema, rows_per_user: list[int], seed: int, wide: bool) -> None:
    tiled = draw_tiled(schema, rows_per_user, seed)
    arrays = tiled.tiled()
    if wide:
        arrays = {name: values[None].astype(np.int64) if values.dtype == np.int32 else values[None] for name, values in arrays.items()}
    checked = check(schema, arrays)
    assert checked.tile is not None
    assert checked.num_rows == sum(rows_per_user)
    assert checked.tile.rows_per_user.tolist() == rows_per_user
    own = [schema.part(per_user=per_user) for per_user in (True, False)]
    for side, part, entries in zip((checked.tile.user, checked.tile.item), own, (tiled.users, tiled.flat_rows), strict=True):
        whole = replace(tiled, schema=with_sides(part, ()), users=[{} for _ in entries], rows=[[entry] for entry in entries])
        wanted = RequestValidator(part).check(PackedRequest(**whole.untiled())) if part.features else None
        if wanted is not None:
            for name in ("ids", "lengths", "dense", "steps", "dense_steps", "num_rows"):
                assert np.array_equal(getattr(side, name), getattr(wanted, name)), name
    sent = iter(checked.ids.tolist())
    halves = [iter(checked.tile.user.ids.tolist()), iter(checked.tile.item.ids.tolist())]
    assert [next(halves[0] if of_user else halves[1]) for of_user in checked.tile.of_user] == list(sent)
    again = RequestValidator(schema)
    once = again.check(PackedRequest(**arrays))
    assert again.check(once) is once


def good() -> Arrays:
    """Two users with three and no rows; each bag has one id."""
    return {
        "ids": np.array([100, -7, 1, 2, 3, 4, 5, 0, 7, 8], np.int64),
        "lengths": i32(1, 1, 1, 1, 1, 1, 1, 1, 1, 1),
        "weights": np.ones(10, np.float32),
        "dense": np.array([1, 2, 3], np.float32),
        "user_dense": np.array([1, 2, 3, 4], np.float32),
        "rows_per_user": i32(3, 0),
    }


def test_what_the_good_request_is() -> None:
    checked = check(TOY, good())
    assert checked.tile is not None
    assert checked.tile.user.ids.tolist() == [100, -7, 7, 8]
    assert checked.tile.item.ids.tolist() == [1, 2, 3, 4, 5, 0]
    assert (checked.tile.user.num_rows, checked.tile.item.num_rows, checked.num_rows) == (2, 3, 3)
    assert checked.tile.user.dense.tolist() == [1, 2, 3, 4]
    assert checked.tile.item.dense.tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows_per_user": i32(4, -1)}, "user 1: rows_per_user: -1 is negative"),
        ({"rows_per_user": i32(-(2**31), 3)}, "user 0: .*rows_per_user.*"),
        ({"rows_per_user": np.array([2**40, 3])}, "rows_per_user: 1099511627776 does not fit INT32"),
        ({"rows_per_user": i32(2**31 - 1, 2**31 - 1)}, "rows_per_user adds up to 4294967294 rows; a tiled request may have 4194304"),
        ({"rows_per_user": i32(4000000, 0)}, r"lengths holds 10 numbers, but 8000004 are due \(user 2, item 4000000, city 4000000, tags 2\)"),
        ({"rows_per_user": i32(3)}, r"lengths holds 10 numbers, but 8 are due \(user 1, item 3, city 3, tags 1\)"),
        ({"rows_per_user": i32(3, 0, 0)}, r"lengths holds 10 numbers, but 12 are due .*"),
        ({"rows_per_user": i32(1, 1)}, r"lengths holds 10 numbers, but 8 are due .*"),
        ({"rows_per_user": np.array([3.0, 0.0])}, "rows_per_user must be integers, found float64"),
        ({"rows_per_user": np.array([[3], [0]])}, r"rows_per_user has shape \[2, 1\]; .*"),
        ({"rows_per_user": None}, "user_dense is there, but rows_per_user, which tells of how many rows each user has, is missing"),
        ({"user_dense": None}, "user_dense is missing"),
        ({"user_dense": np.zeros(3, np.float32)}, "user_dense: 3 numbers are not a whole number of users of 2"),
        ({"user_dense": np.zeros(6, np.float32)}, "rows_per_user tells of 2 users, but user_dense of 3"),
        ({"user_dense": np.array([0, 0, 0, np.nan])}, "feature 'vector': user 1: user_dense: nan is not a finite number"),
        ({"dense": None}, "dense is missing"),
        ({"dense": np.zeros(9, np.float32)}, "rows_per_user tells of 3 rows, but dense of 9"),
        ({"dense": np.array([0, np.inf, 0])}, "feature 'price': row 1: dense: inf is not a finite number"),
        ({"lengths": i32(1, 1, 1, 1, 1, 1, 1, 1, 3, -1)}, "feature 'tags': user 1: lengths: -1 is negative"),
        ({"lengths": i32(1, 1, 1, 3, -1, 1, 1, 1, 1, 1)}, "feature 'item': row 2: lengths: -1 is negative"),
        ({"lengths": i32(1, 1, 1, 1, 1, 1, 1, 1, 1, 2)}, "ids holds 10 ids, but lengths add up to 11"),
        ({"lengths": i32(2**31 - 1, *[1] * 9)}, "ids holds 10 ids, but lengths add up to 2147483656"),
        ({"lengths": None}, "lengths is missing"),
        ({"ids": None}, "ids is missing"),
        ({"ids": np.ones(10)}, "ids must be integers, found float64"),
        ({"ids": np.array([100, -7, 1, 2, 30, 4, 5, 0, 7, 8])}, r"feature 'item': row 2: id 30 is outside \[0, 10\)"),
        ({"ids": np.array([100, -7, 1, 2, 3, 4, 5, 0, 7, 80])}, r"feature 'tags': user 1: id 80 is outside \[0, 20\)"),
        ({"weights": np.ones(9, np.float32)}, "weights holds 9 weights for 10 ids"),
        ({"weights": np.array([1.0] * 2 + [np.nan] * 8)}, "weights: nan is not a finite number"),
        ({"steps": i32(1)}, "steps: the model takes none, found 1"),
    ],
)
def test_malformed_ones_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=f"^{message}$"):
        check(TOY, {name: values for name, values in (good() | change).items() if values is not None})


def test_ids_outside_read_the_row_kept_for_them() -> None:
    arrays = good()
    arrays["ids"][5] = 99
    checked = check(TOY, arrays)
    assert checked.tile is not None
    assert checked.tile.item.ids.tolist() == [1, 2, 3, 5, 5, 0]


def test_a_model_without_sides_refuses_by_the_features_name() -> None:
    with pytest.raises(RequestError, match=r"^feature 'user': has no side, the user's or the item's, which a tiled request needs$"):
        check(make_toy().schema, good())
    with pytest.raises(RequestError, match=r"^rows_per_user: no feature of the model is the user's, so it takes no tiled requests$"):
        check(tiled_toy(()).schema, good())


STEP_CHANGES = [
    ("steps", lambda steps: steps[:-1], "steps holds 14 numbers, but 15 are due .*"),
    ("steps", lambda steps: np.concatenate([[-1], steps[1:]]), "feature 'clicks': user 0: steps: -1 is negative"),
    ("steps", lambda _: None, "steps is missing"),
    ("step_lengths", lambda sizes: sizes[:-1], "step_lengths tells of .* steps, but steps of .*"),
    ("dense_steps", lambda numbers: numbers[:-1], "dense_steps holds .* numbers, but steps tells of .*"),
    ("dense_steps", lambda _: None, "dense_steps is missing"),
]


@pytest.mark.parametrize(("name", "change", "message"), STEP_CHANGES)
def test_malformed_steps_are_refused(name: str, change: Any, message: str) -> None:
    arrays = draw_tiled(STEPS, [1, 3, 0, 2, 1], seed=8).tiled()
    changed = {**arrays, name: change(arrays[name])}
    with pytest.raises(RequestError, match=f"^{message}$"):
        check(STEPS, {key: values for key, values in changed.items() if values is not None})


def test_sequences_of_both_sides_must_have_equally_many_steps() -> None:
    tiled = draw_tiled(MIXED, [2, 1], seed=2)
    tiled.rows[0][1]["words"] = [*tiled.rows[0][1]["words"], [(3, 1.0)]]
    steps = len(tiled.users[0]["clicks"])
    message = f"feature 'words': row 1: steps: {steps + 1} steps, but 'clicks' of its user, which stands beside it in a group, has {steps}"
    with pytest.raises(RequestError, match=f"^{message}$"):
        check(MIXED, tiled.tiled())


def test_a_few_bytes_cannot_ask_for_any_number_of_rows() -> None:
    arrays = draw_tiled(ONLY_USERS, [1], seed=1).tiled()
    with pytest.raises(RequestError, match=r"^rows_per_user adds up to 2147483647 rows; a tiled request may have 4194304$"):
        check(ONLY_USERS, arrays | {"rows_per_user": i32(2**31 - 1)})
    assert check(ONLY_USERS, arrays | {"rows_per_user": i32(4)}).num_rows == 4


def test_a_few_steps_cannot_come_to_any_number_in_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("emberline.serving.request_tile.MOST_NUMBERS", 1 << 20)
    schema = tiled_steps_toy(tuple(feature.name for feature in STEPS.features)).schema
    tiled = draw_tiled(schema, [1, 0], seed=1)
    step = {"clicks": [(100, 1.0)], "words": [(1, 1.0)], "prices": [1.0, 2.0]}
    for feature, value in step.items():
        tiled.users[0][feature], tiled.users[1][feature] = [value] * 5, [value] * 5
    arrays = tiled.tiled()
    rows, width = 1 << 16, 4 + 1 + 5 * (4 + 3 + 2)
    with pytest.raises(RequestError, match=f"^what users have comes to {rows * width} numbers in all of their rows; .* {1 << 20}$"):
        check(schema, arrays | {"rows_per_user": i32(rows, 0)})
    assert check(schema, arrays | {"rows_per_user": i32(1000, 0)}).num_rows == 1000
