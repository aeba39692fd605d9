from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from emberline.encoding import encode
from emberline.errors import ConfigError, DataError
from emberline.schema import BucketEncoder, FeatureKind, FeatureSpec, NumericEncoder
from emberline.train.data import Batch, Tile, batch_from_encoded, tile_batch, tiled_from_encoded, untile_batch
from emberline.train.data.rows import feature_names, item_places, take_rows
from emberline.train.features import BASE_DATA_GROUP, NEG_DATA_GROUP, Feature

Columns = dict[str, list[Any]]


def _feature(name: str, side: str, *, dense: int = 0, sequence: bool = False, **other: Any) -> Feature:
    kind, encoder = (FeatureKind.DENSE, NumericEncoder()) if dense else (FeatureKind.SPARSE, BucketEncoder(rows=100))
    value_dim = {"value_dim": dense or int(sequence)} | other
    spec = FeatureSpec(
        name=name, kind=kind, columns=(name,), encoder=encoder, side=side, separator=",", sequence=sequence, encoded=sequence, **value_dim
    )
    return Feature(name=name, spec=spec)


FEATURES = [
    _feature("u", "user", value_dim=0, weighted=True),
    _feature("age", "user", dense=2),
    _feature("clicks", "user", sequence=True),
    _feature("tags", "user", sequence=True, value_dim=0),
    _feature("dt", "user", dense=1, sequence=True),
    _feature("i", "item", value_dim=0),
    _feature("price", "item", dense=1),
]
USERS: Columns = {
    "u": ["1:0.5,2:1", None, "3:2"],
    "age": [[1, 2], [3, 4], [5, 6]],
    "clicks": ["7;8", None, "9"],
    "tags": ["1,2;;3", "4", None],
    "dt": ["0.5;1", "2", None],
}
ITEMS: Columns = {"i": ["10,11", None, 12, 13], "price": [1.5, None, 3.5, 4.5]}
ROWS = [1, 0, 1, 2]


def _encoded(columns: Columns) -> Any:
    return encode([feature.spec for feature in FEATURES if feature.name in columns], columns)


def _tiled(rows: Any = None) -> Batch:
    return tiled_from_encoded(FEATURES, _encoded(USERS), _encoded(ITEMS), np.array(ROWS if rows is None else rows))


def _written_out(rows: list[int] = ROWS) -> Batch:
    repeated = {name: [values[row] for row in rows] for name, values in USERS.items()}
    return batch_from_encoded(FEATURES, _encoded(repeated | ITEMS))


def _assert_equal(found: Batch, expected: Batch) -> None:
    assert feature_names(found) == feature_names(expected)
    for parts, theirs in ((found.sparse_features, expected.sparse_features), (found.sequence_mulval_lengths, expected.sequence_mulval_lengths)):
        assert parts.keys() == theirs.keys()
        for key, part in parts.items():
            for name in part.keys():  # noqa: SIM118
                for one, other in zip(part[name].to_dense(), theirs[key][name].to_dense(), strict=True):
                    assert one.tolist() == other.tolist()
                assert part[name].lengths().tolist() == theirs[key][name].lengths().tolist()
                if name == "u":
                    assert part[name].weights().tolist() == theirs[key][name].weights().tolist()
    for key, dense in found.dense_features.items():
        assert dense.values().tolist() == expected.dense_features[key].values().tolist()
    for name, steps in found.sequence_dense_features.items():
        assert steps.values().tolist() == expected.sequence_dense_features[name].values().tolist()
        assert steps.lengths().tolist() == expected.sequence_dense_features[name].lengths().tolist()


def test_columns_of_both_sides() -> None:
    batch = _tiled()
    assert batch.tile is not None
    assert (batch.num_rows, batch.tile.user.num_rows, batch.tile.rows.tolist()) == (4, 3, ROWS)
    assert feature_names(batch) == ["i", "price"]
    assert feature_names(batch.tile.user) == ["u", "clicks", "tags", "age", "dt"]
    _assert_equal(untile_batch(batch), _written_out())
    assert untile_batch(batch).tile is None
    plain = _written_out()
    assert untile_batch(plain) is plain


def test_one_user_needs_no_rows() -> None:
    one = _encoded({name: values[:1] for name, values in USERS.items()})
    batch = tiled_from_encoded(FEATURES, one, _encoded(ITEMS), labels={"y": np.arange(4)}, sample_weights=np.ones(4, np.float32))
    assert batch.tile is not None
    assert batch.tile.rows.tolist() == [0, 0, 0, 0]
    assert (batch.tile.user.labels, batch.labels["y"].tolist()) == ({}, [0, 1, 2, 3])
    _assert_equal(untile_batch(batch), _written_out([0, 0, 0, 0]))
    assert untile_batch(batch).labels["y"].tolist() == [0, 1, 2, 3]
    with pytest.raises(DataError, match="the user side has 3 rows; say in rows which of them each of the 4 rows belongs to"):
        tiled_from_encoded(FEATURES, _encoded(USERS), _encoded(ITEMS))


def test_columns_on_the_wrong_side_or_missing() -> None:
    with pytest.raises(DataError, match="feature 'i' belongs on the item side, but came on the other"):
        tiled_from_encoded(FEATURES, _encoded(USERS | {"i": [1, 2, 3]}), _encoded(ITEMS), np.array(ROWS))
    with pytest.raises(DataError, match="feature 'age' is missing on the user side; it has clicks, dt, tags, u"):
        tiled_from_encoded(FEATURES, _encoded({name: USERS[name] for name in USERS if name != "age"}), _encoded(ITEMS), np.array(ROWS))
    for rows, words in (
        ([0, 0, 0], "has 3 numbers for 4 rows"),
        ([0, 0, 0, 3], "gives row 3 to user 3, but there are 3"),
        ([0.0] * 4, "not torch.float64"),
    ):
        with pytest.raises(DataError, match=words):
            _tiled(rows)


def test_another_device() -> None:
    moved = _tiled().to("meta").tile
    assert moved is not None
    assert (moved.rows.device.type, moved.user.dense_features[BASE_DATA_GROUP].values().device.type) == ("meta", "meta")


@given(rows=st.lists(st.integers(0, 2), max_size=8), given_users=st.booleans())
@settings(max_examples=40, deadline=None)
def test_tiling_and_back(rows: list[int], given_users: bool) -> None:
    repeated = {name: [values[row] for row in rows] for name, values in USERS.items()}
    items: Columns = {"i": list(range(len(rows))), "price": [float(row) for row in rows]}
    plain = batch_from_encoded(FEATURES, _encoded(repeated | items), {"y": np.arange(len(rows))})
    users = torch.tensor([50 * row - 7 for row in rows], dtype=torch.int64) if given_users else None
    tiled = tile_batch(plain, FEATURES, users)
    assert tiled.tile is not None
    assert tiled.tile.user.num_rows == len(set(rows))
    assert (tiled.tile.user.labels, tiled.labels["y"].tolist()) == ({}, list(range(len(rows))))
    _assert_equal(untile_batch(tiled), plain)


@pytest.mark.parametrize("name", list(USERS))
def test_rows_of_one_user_that_differ_are_refused(name: str) -> None:
    changed = {column: [*values[:2], values[0]] for column, values in USERS.items()}
    changed[name][2] = {"u": "1:0.5,2:1.5", "age": [1, 2.5], "clicks": "7;9", "tags": "1;2;3", "dt": "0.5;1.25"}[name]
    plain = batch_from_encoded(FEATURES, _encoded(changed | {"i": [1, 2, 3], "price": [1, 2, 3]}))
    with pytest.raises(DataError, match=f"feature '{name}' is the user's, but differs between rows 0 and 2 of one user"):
        tile_batch(plain, FEATURES, torch.tensor([4, 5, 4]))
    tiled = tile_batch(plain, FEATURES).tile
    assert tiled is not None
    assert tiled.user.num_rows == 3


def test_what_cannot_be_tiled() -> None:
    with pytest.raises(DataError, match="the batch is tiled already"):
        tile_batch(_tiled(), FEATURES)
    with pytest.raises(ConfigError, match="no feature is on the user's side"):
        tile_batch(_written_out(), FEATURES[5:])
    with pytest.raises(DataError, match="the batch has no age, clicks, dt, tags, u, of the user's side"):
        tile_batch(batch_from_encoded(FEATURES[5:], _encoded(ITEMS)), FEATURES)
    with pytest.raises(DataError, match="users has 2 numbers for 4 rows"):
        tile_batch(_written_out(), FEATURES, torch.tensor([1, 2]))
    short = _tiled()
    assert short.tile is not None
    with pytest.raises(DataError, match=r"tile.rows has 2 numbers for 4 rows"):
        untile_batch(replace(short, tile=replace(short.tile, rows=torch.tensor([0, 1]))))
    broken = replace(_tiled(), tile=Tile(Batch(), torch.tensor([0, 0, 0, 0])))
    with pytest.raises(DataError, match="gives row 0 to user 0, but there are 0 users"):
        untile_batch(broken)


def test_negatives_stay_with_the_rows() -> None:
    negative = replace(_feature("n", "item"), data_group=NEG_DATA_GROUP)
    features = [FEATURES[0], FEATURES[5], negative]
    specs = [feature.spec for feature in features]
    plain = batch_from_encoded(features, encode(specs, {"u": ["1:1", "1:1"], "i": [1, 2], "n": [3, 4]}))
    tiled = tile_batch(plain, features)
    assert tiled.tile is not None
    assert tiled.tile.user.sparse_features.keys() == {BASE_DATA_GROUP}
    assert tiled.sparse_features[NEG_DATA_GROUP].values().tolist() == [3, 4]
    assert tiled.sparse_features[BASE_DATA_GROUP].keys() == ["i"]


def test_taken_rows_come_with_all_their_items() -> None:
    assert item_places(torch.tensor([2, 0, 1]), torch.tensor([2, 2, 1, 0])).tolist() == [2, 2, 0, 1]
    _assert_equal(take_rows(_written_out(), torch.tensor([3, 0, 0])), batch_from_encoded(FEATURES, _encoded(_columns([3, 0, 0]))))
    assert take_rows(_written_out(), torch.zeros(0, dtype=torch.int64)).num_rows == 0


def _columns(order: list[int]) -> Columns:
    repeated = {name: [values[row] for row in ROWS] for name, values in USERS.items()}
    return {name: [values[row] for row in order] for name, values in (repeated | ITEMS).items()}
