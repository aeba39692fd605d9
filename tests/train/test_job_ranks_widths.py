"""Tables cut into shards of odd widths, on CPUs: trained on two ranks, taken up by one, they end as if nobody had cut them."""

from pathlib import Path

import pytest
import torch

from emberline.train.checkpoint import load_trained
from emberline.train.config import load_config
from emberline.train.job import run_training
from tests.train.job_runs import tensors_of
from tests.train.jobs import Job
from tests.train.rank_cases import make_data
from tests.train.rank_runs import run_forked

pytestmark = pytest.mark.usefixtures("one_thread")


def config_text(data: Path, batch_size: int, steps: int) -> str:
    cut = 'embedding_constraints { sharding_types: "column_wise" }'
    start = 'init_fn: "nn.init.normal_,std=0.3"'
    return f"""
    train_input_path: "{data}/193.parquet"
    data_config {{ batch_size: {batch_size} label_fields: "label" fg_mode: FG_NONE dataset_type: ParquetDataset }}
    train_config {{
      sparse_optimizer {{ adam_optimizer {{ lr: 0.05 }} }} dense_optimizer {{ sgd_optimizer {{ lr: 0.1 }} }}
      num_steps: {steps} save_checkpoints_steps: 3 use_tensorboard: false planner {{ sample_batches: 2 }}
    }}
    feature_configs {{ id_feature {{ feature_name: "f0" expression: "f0" embedding_dim: 6 num_buckets: 11 {start} {cut} }} }}
    feature_configs {{ id_feature {{ feature_name: "f1" expression: "f1" embedding_dim: 10 num_buckets: 11 {start} {cut} }} }}
    feature_configs {{ sequence_id_feature {{ feature_name: "s0" expression: "s0" embedding_dim: 14 num_buckets: 11 {start} {cut} }} }}
    model_config {{
      feature_groups {{ group_name: "deep" feature_names: ["f0", "f1"]
        sequence_groups {{ group_name: "s" feature_names: "s0" }} sequence_encoders {{ pooling_encoder {{}} }} }}
      feature_groups {{ group_name: "wide" group_type: WIDE feature_names: ["f0", "f1"] }}
      wide_and_deep {{ deep {{ hidden_units: [8] }} final {{ hidden_units: [6] }} wide_embedding_dim: 1 }}
    }}"""


def test_odd_shards_are_trained_saved_and_taken_up_whole(tmp_path: Path) -> None:
    make_data(tmp_path)
    path, run = tmp_path / "two.config", tmp_path / "run"
    path.write_text(config_text(tmp_path, 8, 3))
    (printed,) = run_forked(tmp_path, [Job(2, ["train", "--config", str(path), "--output", str(run)])])
    assert "ids a row: counted in the first batches of the training data, 2 at most" in printed[0]
    lines = [line.split() for line in printed[0].splitlines()]
    found = {line[0]: line[-3] for line in lines if line and line[0].endswith(("_emb", "_wide"))}
    assert {name: found[name] for name in ("f0_emb", "f1_emb", "s0_emb")} == dict.fromkeys(("f0_emb", "f1_emb", "s0_emb"), "column_wise")
    assert {found["f0_emb_wide"], found["f1_emb_wide"]} <= {"table_wise", "row_wise"}  # one column can't be cut
    path.write_text(config_text(tmp_path, 8, 6))
    (tmp_path / "one.config").write_text(config_text(tmp_path, 16, 6))
    alone = tmp_path / "alone"
    alone.mkdir()
    (alone / "step-3").symlink_to(run / "step-3")
    run_training(load_config(tmp_path / "one.config"), alone, resume=True)
    run_forked(tmp_path, [Job(2, ["train", "--config", str(path), "--output", str(run), "--resume"])])
    one, two = ({name: tensor for name, tensor in tensors_of(end).items() if not name.startswith("rng/")} for end in (alone, run))
    assert sorted(one) == sorted(two)
    tables = [name for name in one if name.startswith("tables/") and one[name].dim() == 2]
    assert {one[name].shape[1] for name in tables} >= {1, 6, 10, 14}
    for name in one:
        if one[name].is_floating_point():
            torch.testing.assert_close(two[name], one[name], atol=1e-5, rtol=1e-5, msg=name)
    whole = load_trained(run).model.embedding_group.table_weights()
    assert {name: weight.shape[1] for name, weight in whole.items()} == {"f0_emb": 6, "f1_emb": 10, "s0_emb": 14, "f0_emb_wide": 1, "f1_emb_wide": 1}
