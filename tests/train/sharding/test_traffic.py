"""Ids a row, counted in data."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from emberline.errors import DataError
from emberline.train.config import parse_config
from emberline.train.models import features_of
from emberline.train.sharding.constraints import Traffic
from emberline.train.sharding.traffic import count_traffic, measure_traffic

TEXT = """
feature_configs {{ id_feature {{ feature_name: "one" embedding_dim: 4 num_buckets: 9 }} }}
feature_configs {{ id_feature {{ feature_name: "many" embedding_dim: 4 num_buckets: 9 }} }}
feature_configs {{ sequence_id_feature {{ feature_name: "steps" embedding_dim: 4 num_buckets: 9 }} }}
feature_groups {{ group_name: "g" feature_names: ["one", "many"] }}
feature_groups {{ group_name: "s" group_type: SEQUENCE feature_names: "steps" }}
train_input_path: "{path}"
data_config {{ batch_size: 4 label_fields: "label" fg_mode: FG_NORMAL dataset_type: ParquetDataset }}
"""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rows = 10
    columns = {
        "one": [*range(rows - 2), None, None],
        "many": [[1] * (row % 4) for row in range(rows)],
        "steps": [";".join("3" * row) for row in range(rows)],
        "label": [0] * rows,
    }
    types = {"one": pa.int64(), "many": pa.list_(pa.int64()), "steps": pa.string(), "label": pa.int64()}
    pq.write_table(pa.table({name: pa.array(values, types[name]) for name, values in columns.items()}), tmp_path / "rows.parquet")
    return tmp_path / "rows.parquet"


@pytest.mark.parametrize("batches", [1, 2, 3, 100])
def test_means_are_those_of_the_first_batches(data: Path, batches: int) -> None:
    config = parse_config(TEXT.format(path=data))
    found = measure_traffic(config, features_of(config), batches)
    rows = min(4 * batches, 10)
    a_batch = rows / min(batches, 3)
    assert found == {
        "one": Traffic(min(rows, 8) / rows, a_batch),
        "many": Traffic(sum(row % 4 for row in range(rows)) / rows, a_batch),
        "steps": Traffic(sum(range(rows)) / rows, a_batch),
    }


def test_data_that_is_not_there_is_told(tmp_path: Path) -> None:
    config = parse_config(TEXT.format(path=tmp_path / "none.parquet"))
    with pytest.raises(DataError, match=r"none\.parquet"):
        measure_traffic(config, features_of(config), 1)


def test_nothing_was_seen_in_no_batch() -> None:
    assert count_traffic([]) == {}
