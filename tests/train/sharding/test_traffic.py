"""Ids a row, counted in data."""

import random
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from emberline.errors import DataError
from emberline.train.config import parse_config
from emberline.train.data import DataReader
from emberline.train.models import features_of
from emberline.train.sharding.constraints import Traffic
from emberline.train.sharding.hardware import Hardware
from emberline.train.sharding.traffic import batches_to_sample, count_traffic, measure_traffic
from tests.train.sharding.cases import cpus, gpus

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


TRAIN = "train_config { sparse_optimizer { sgd_optimizer {} } dense_optimizer { sgd_optimizer {} } %s }"


@pytest.mark.parametrize(
    ("hardware", "said", "batch_size", "batches"),
    [
        (cpus(2), "", 4, 8),
        (gpus(1), "", 4, 8),
        (cpus(1), "", 4, 0),
        (cpus(2), "", 1 << 14, 4),
        (cpus(2), "", 1 << 20, 1),
        (cpus(2), "planner { sample_batches: 0 }", 4, 0),
        (cpus(1), "planner { sample_batches: 3 }", 4, 3),
        (cpus(2), "global_embedding_constraints { pooling_factor: 2 }", 4, 0),
    ],
)
def test_a_job_counts_in_a_few_batches_where_that_could_decide_something(hardware: Hardware, said: str, batch_size: int, batches: int) -> None:
    config = parse_config(TEXT.format(path="x").replace("batch_size: 4", f"batch_size: {batch_size}") + TRAIN % said)
    assert batches_to_sample(config, features_of(config), hardware) == batches


def test_nothing_is_counted_where_all_features_say_what_they_have() -> None:
    text = TEXT.format(path="x").replace("num_buckets: 9", "num_buckets: 9 embedding_constraints { pooling_factor: 2 }")
    config = parse_config(text + TRAIN % "")
    assert batches_to_sample(config, features_of(config), cpus(2)) == 0
    one_does_not = parse_config(text.replace("pooling_factor: 2", "", 1) + TRAIN % "")
    assert batches_to_sample(one_does_not, features_of(one_does_not), cpus(2)) == 8


def test_counting_draws_nothing_and_moves_no_reader(data: Path) -> None:
    config = parse_config(TEXT.format(path=data))
    features = tuple(features_of(config))
    reader = DataReader(config.data, features, config.train_input_path, seed=1)
    first = [batch.labels["label"].shape[0] for batch in islice(reader, 1)]
    states = torch.get_rng_state(), np.random.get_state(legacy=False)["state"]["key"].tolist(), random.getstate()
    position = reader.position
    measure_traffic(config, features, 2)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.random.get_state(legacy=False)["state"]["key"].tolist() == states[1]
    assert random.getstate() == states[2]
    assert (reader.position, first) == (position, [4])
