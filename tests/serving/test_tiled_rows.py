"""Raw users with their raw rows, against the same rows written out."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from emberline.errors import RequestError
from emberline.schema import CrossEncoder, ModelSchema
from emberline.serving.engine import Engine
from emberline.serving.tiled_rows import Row, TiledRows, encode_tiled
from tests.serving.conftest import ToyModel, make_toy
from tests.serving.tiles import tiled_toy

USERS: list[Row] = [{"user": "100", "tags": {"a": 0.5, "b": 2}, "vector": [1, 2]}, {"user": -7}, {}]
ROWS: list[list[Row]] = [[{"item": [1, 2], "price": 3}, {"item": 4, "city": 99}], [], [{}]]


def crossed() -> ToyModel:
    """The feature `city` is computed from a column of the user's, which no other feature reads, one that `user` reads, and one of the item's."""
    model = tiled_toy()
    features = [
        replace(feature, encoder=CrossEncoder(rows=6), columns=("country", "user", "item_city")) if feature.name == "city" else feature
        for feature in model.schema.features
    ]
    return replace(model, schema=replace(model.schema, features=tuple(features)), name="crossed")


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return Engine.open(tiled_toy().write(tmp_path_factory.mktemp("models")), num_threads=1)


def require_written_out(engine: Engine, users: Sequence[Row], rows: Sequence[Sequence[Row]]) -> None:
    tiled = engine.encode_tiled(users, rows)
    plain = engine.encode_rows([{**user, **row} for user, own in zip(users, rows, strict=True) for row in own])
    assert tiled.num_rows == plain.num_rows == len(TiledRows(users, rows))
    for name, wanted in engine.lookup(plain).items():
        assert torch.equal(engine.lookup(tiled)[name], wanted), name


@pytest.mark.parametrize(("users", "rows"), [(USERS, ROWS), ([], []), (USERS, [[], [], []]), (USERS[:1], [[{}] * 5])])
def test_rows_have_what_their_user_has(engine: Engine, users: Sequence[Row], rows: Sequence[Sequence[Row]]) -> None:
    require_written_out(engine, users, rows)


def test_a_column_that_only_rows_read_may_come_with_the_user(engine: Engine, tmp_path: Path) -> None:
    require_written_out(engine, [{"user": 100, "price": 2.5}, {"item": 3}], [[{"item": 1}, {"item": 2}], [{}, {"city": 1}]])
    other = Engine.open(crossed().write(tmp_path), num_threads=1)
    require_written_out(other, [{"user": 100, "country": "de"}, {"country": "fr"}], [[{"item_city": 1}, {"item": 2}], [{"item_city": 3}]])


@pytest.mark.parametrize(
    ("users", "rows", "message"),
    [
        ([{}], [[{}], [{}]], "rows has lists for 2 users, but there are 1"),
        ([{}, {}], [[{}], [{}, {"user": 5}]], "row 2: column 'user' is the user's: give it in users, once for all rows"),
        ([{"item": 1}], [[{}, {"item": 2}]], "row 1: column 'item' is given by the row and by its user"),
        ([{}, {"nope": 1}], [[], []], "user 1: there is no column 'nope'; the model reads user, tags, vector, price, item, city"),
        ([{}], [[{"nope": 1}]], "row 0: there is no column 'nope'; the model reads price, item, city"),
        ([{}, {"user": 5.5}], [[], []], r"feature 'user': user 1: 5\.5 is not a whole number.*"),
        ([{}, {"vector": [1, "x"]}], [[], []], "feature 'vector': user 1: .*"),
        ([{}, {}], [[{}], [{}, {"item": 10}]], "feature 'item': row 2: .*10.*"),
        (["x"], [[]], "user 0: is not an object of column names and values"),
        ([{}], [["x"]], "row 0: is not an object of column names and values"),
    ],
)
def test_what_is_wrong_is_told_by_user_or_row(engine: Engine, users: Any, rows: Any, message: str) -> None:
    with pytest.raises(RequestError, match=f"^{message}$"):
        engine.encode_tiled(users, rows)


def test_a_model_without_sides_refuses_users() -> None:
    schema: ModelSchema = make_toy().schema
    with pytest.raises(RequestError, match=r"^feature 'user': has no side"):
        encode_tiled(schema, TiledRows([{}], [[{}]]))
