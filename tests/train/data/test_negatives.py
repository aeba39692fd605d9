"""Negatives that rows bring along: read, cut and shuffled with their rows."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from emberline.errors import DataError
from emberline.train.config import parse_config
from emberline.train.config.data_config import DataConfig
from emberline.train.data import Batch, DataReader
from emberline.train.features import Feature
from emberline.train.models import features_of

TEXT = """
data_config { fg_mode: FG_NORMAL label_fields: "label" negative_columns {
  num_negatives: 3 columns { key: "item" value: "other_items" } columns { key: "price" value: "other_prices" }
} }
feature_configs { id_feature { feature_name: "user" expression: "user:user" embedding_dim: 4 num_buckets: 100 } }
feature_configs { id_feature { feature_name: "item" expression: "item:item" embedding_dim: 4 num_buckets: 1000 } }
feature_configs { raw_feature { feature_name: "price" expression: "item:price" } }
feature_configs { combo_feature { feature_name: "both" expression: "user:user" expression: "item:item" embedding_dim: 4 hash_bucket_size: 900 } }
"""
ROWS, EACH = 23, 3
Config = tuple[DataConfig, list[Feature]]


def make_table() -> pa.Table:
    rows = np.arange(ROWS)
    others = [[int(row * 10 + place + 100) for place in range(EACH)] for row in rows]
    return pa.table(
        {
            "user": pa.array(rows),
            "item": pa.array(rows + 50),
            "price": pa.array(rows.astype(np.float32)),
            "other_items": pa.array(others, pa.list_(pa.int64())),
            "other_prices": pa.array([[-float(one) for one in row] for row in others], pa.list_(pa.float32(), EACH)),
            "label": pa.array(rows % 2),
        }
    )


@pytest.fixture
def config() -> Config:
    read = parse_config(TEXT)
    return read.data, features_of(read)


@pytest.fixture
def write(tmp_path: Path) -> Callable[[pa.Table], Path]:
    def save(table: pa.Table) -> Path:
        pq.write_table(table, tmp_path / "data.parquet", row_group_size=7)
        return tmp_path / "data.parquet"

    return save


def check(batch: Batch) -> list[int]:
    """Each row's negatives are its own; returns the users."""
    users = batch.sparse_features["__BASE__"]["user"].values().tolist()
    rows = len(users)
    items = batch.sparse_features["__NEG__"]["item"].values().tolist()
    prices = batch.dense_features["__NEG__"]["price"][:, 0].tolist()
    assert items[:rows] == [user + 50 for user in users]
    assert prices[:rows] == users
    assert items[rows:] == [user * 10 + place + 100 for user in users for place in range(EACH)]
    assert prices[rows:] == [-float(item) for item in items[rows:]]
    assert batch.labels["label"].tolist() == [user % 2 for user in users]
    assert batch.num_rows == rows
    crossed = batch.sparse_features["__CNEG__"]["both"]
    assert crossed.lengths().tolist() == [1] * rows * (1 + EACH)
    return [int(user) for user in users]


def test_features_that_read_negatives_are_apart(config: Config) -> None:
    groups = {feature.name: feature.data_group for feature in config[1]}
    assert groups == {"user": "__BASE__", "item": "__NEG__", "price": "__NEG__", "both": "__CNEG__"}


@pytest.mark.parametrize("batch_size", [1, 4, 9, 100])
@pytest.mark.parametrize("shuffle", [False, True])
def test_negatives_stay_with_their_rows(config: Config, write: Callable[[pa.Table], Path], batch_size: int, shuffle: bool) -> None:
    data, features = config
    reader = DataReader(data, features, str(write(make_table())), batch_size=batch_size, shuffle=shuffle, seed=5)
    users = [user for batch in reader for user in check(batch)]
    assert sorted(users) == list(range(ROWS))
    assert (users != list(range(ROWS))) == shuffle


def test_crosses_of_a_negative_are_those_of_a_row_with_it(config: Config, write: Callable[[pa.Table], Path]) -> None:
    data, features = config
    table = make_table()
    whole = next(iter(DataReader(data, features, str(write(table)), batch_size=ROWS)))
    crossed = whole.sparse_features["__CNEG__"]["both"].values()[ROWS:].reshape(ROWS, EACH)
    for place in range(EACH):
        swapped = table.set_column(1, "item", pa.array([row[place] for row in table.column("other_items").to_pylist()]))
        batch = next(iter(DataReader(data, features, str(write(swapped)), batch_size=ROWS)))
        assert batch.sparse_features["__CNEG__"]["both"].values()[:ROWS].tolist() == crossed[:, place].tolist()


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        (
            "other_items",
            pa.array([[1, 2, 3]] * 20 + [[1, 2]] + [[1, 2, 3]] * 2),
            "row 20: column 'other_items': the row has 2 negatives, but num_negatives is 3",
        ),
        ("other_items", pa.array([[1, 2, 3]] * 3 + [None] + [[1, 2, 3]] * 19), "row 3: column 'other_items': the row has 0 negatives"),
        ("other_items", pa.array([1] * ROWS), "column 'other_items': negatives are a list in each row, but the column has type int64"),
        ("other_items", pa.array([[1, 2, 3]] * 9 + [[1, 2, 5000]] + [[1, 2, 3]] * 13), r"row 9: feature 'item': id 5000 is outside"),
    ],
)
def test_rows_with_wrong_negatives_are_named(config: Config, write: Callable[[pa.Table], Path], column: str, value: pa.Array, message: str) -> None:
    data, features = config
    table = make_table()
    table = table.set_column(table.schema.names.index(column), column, value)
    with pytest.raises(DataError, match=message):
        list(DataReader(data, features, str(write(table)), batch_size=5))


def test_a_missing_column_of_negatives_is_named(config: Config, write: Callable[[pa.Table], Path]) -> None:
    data, features = config
    with pytest.raises(DataError, match="other_prices"):
        DataReader(data, features, str(write(make_table().drop_columns(["other_prices"]))))
