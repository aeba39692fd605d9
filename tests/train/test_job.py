"""The training job in one process: it learns, it resumes bit for bit, and it refuses what it cannot do."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch

from emberline.errors import CheckpointError, ConfigError, DataError, TrainingError
from emberline.train.checkpoint import load_trained, store
from emberline.train.checkpoint.tensors import read_tensors
from emberline.train.config import PipelineConfig, load_config
from emberline.train.job import run_training
from tests.train.job_runs import StopAfter, assert_same_run, logged, measured, tensors_of

MakeConfig = Callable[..., PipelineConfig]
pytestmark = pytest.mark.usefixtures("one_thread")


def test_it_learns_and_writes_down_how(make_config: MakeConfig, tmp_path: Path) -> None:
    config = make_config(train="num_epochs: 3 keep_checkpoint_max: 2")
    config = replace(config, train=replace(config.need_train(), use_tensorboard=True))
    result = run_training(config, tmp_path / "run")
    assert (result.step, result.epoch, result.stopped) == (60, 3, False)
    assert result.metrics["auc"] > 0.75
    assert result.metrics["rows"] == 100
    assert store.list_steps(tmp_path / "run") == [56, 60]
    assert result.checkpoint == tmp_path / "run" / "step-60"
    written = json.loads((tmp_path / "run" / "result.json").read_text())
    assert written == {"step": 60, "epoch": 3, "loss": result.loss, **result.metrics}
    lines = logged(tmp_path / "run")
    assert [line["step"] for line in lines if line["kind"] == "train"] == list(range(5, 61, 5))
    assert [line["step"] for line in lines if line["kind"] == "eval"] == [20, 40, 60]
    assert lines[-1]["auc"] == result.metrics["auc"]
    assert lines[-2]["zch/user_emb/rows_in_use"] == 39
    assert lines[-2]["zch/user_emb/evicted"] > 0
    assert len(list((tmp_path / "run" / "tensorboard").iterdir())) == 1
    first, last = lines[0]["loss"], lines[-2]["loss"]
    assert last < first - 0.1


def test_it_says_what_it_trains_on(make_config: MakeConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_training(make_config(train="num_steps: 1"), tmp_path / "run")
    ranks, speeds, plan, heading, *tables = capsys.readouterr().out.splitlines()
    assert ranks.startswith("1 cpu rank, 1 a machine, each with ")
    assert speeds.startswith("GB/s: ddr 20 (assumed)")
    assert plan == "plan: 4 tables, 3.94 KiB without moments: 3 table_wise fused, 1 row_wise fused"
    assert heading.split() == ["table", "rows", "dim", "size", "sharding", "kernel", "ranks"]
    assert sorted(line.split()[0] for line in tables) == ["hour_emb", "item_emb", "tags_emb", "user_emb"]
    assert next(line for line in tables if "user" in line).split() == ["user_emb", "40", "8", "1.25", "KiB", "row_wise", "fused", "0"]


def test_frozen_tables_keep_their_values(make_config: MakeConfig, tmp_path: Path) -> None:
    run_training(make_config(train="num_epochs: 1", save=1), tmp_path / "run")
    first, last = (read_tensors(tmp_path / "run" / f"step-{step}" / "tensors", "tables/") for step in (1, 20))
    assert torch.equal(first["tables/hour_emb/weight"], last["tables/hour_emb/weight"])
    assert not torch.equal(first["tables/item_emb/weight"], last["tables/item_emb/weight"])


@pytest.mark.parametrize(
    ("sparse", "dense"),
    [
        ("adagrad_optimizer { lr: 0.05 }", "adam_optimizer { lr: 0.01 amsgrad: true }"),
        ("sgd_optimizer { lr: 0.1 }", "sgd_optimizer { lr: 0.05 momentum: 0.9 }"),
        ("rowwise_adagrad_optimizer { lr: 0.05 }", "rmsprop_optimizer { lr: 0.001 momentum: 0.5 }"),
    ],
)
def test_a_stopped_run_goes_on_bit_for_bit(make_config: MakeConfig, tmp_path: Path, sparse: str, dense: str) -> None:
    config = make_config(train="num_steps: 26", sparse=sparse, dense=dense)
    run_training(config, tmp_path / "whole")
    stopped = run_training(config, tmp_path / "parts", stop=StopAfter(13))
    assert stopped.stopped
    assert not (tmp_path / "parts" / "result.json").exists()
    assert stopped.checkpoint is not None
    resumed = run_training(config, tmp_path / "parts", resume=True)
    assert not resumed.stopped
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


def test_stops_at_every_step_change_nothing(make_config: MakeConfig, tmp_path: Path) -> None:
    config = make_config(train="num_epochs: 1", data_config="sample_weight_fields: 'weight'")
    run_training(config, tmp_path / "whole")
    result = run_training(config, tmp_path / "parts", stop=StopAfter(4))
    while result.step < 20:
        before = result.step
        result = run_training(config, tmp_path / "parts", resume=True, stop=StopAfter(4))
        assert result.step > before
    assert result.stopped
    run_training(config, tmp_path / "parts", resume=True)
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


def test_resuming_a_run_that_is_done_changes_nothing(make_config: MakeConfig, tmp_path: Path) -> None:
    config = make_config(train="num_steps: 9")
    first = run_training(config, tmp_path / "run")
    before = logged(tmp_path / "run")
    again = run_training(config, tmp_path / "run", resume=True)
    assert again == first
    assert logged(tmp_path / "run") == before
    assert store.list_steps(tmp_path / "run") == [8, 9]


def test_a_run_can_be_made_longer(make_config: MakeConfig, tmp_path: Path) -> None:
    run_training(make_config(train="num_steps: 30"), tmp_path / "whole")
    run_training(make_config(train="num_steps: 20"), tmp_path / "parts")
    run_training(make_config(train="num_steps: 30", save=10), tmp_path / "parts", resume=True)
    first, second = tensors_of(tmp_path / "whole"), tensors_of(tmp_path / "parts")
    assert [name for name in first if not torch.equal(first[name], second[name])] == []


@pytest.mark.parametrize(("asynchronous", "left"), [("false", []), ("true", [".lock", "metrics.jsonl"])])
def test_a_full_disk_is_one_plain_error(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asynchronous: str, left: list[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store, "write_manifest", full)
    with pytest.raises(CheckpointError, match=r"step-3 cannot be written: .*No space left on device"):
        run_training(make_config(train=f"num_steps: 3 save_checkpoints_async: {asynchronous}"), tmp_path / "run")
    assert sorted(path.name for path in (tmp_path / "run").glob("*")) == left


def test_nothing_to_resume_begins_anew(make_config: MakeConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = run_training(make_config(train="num_steps: 3"), tmp_path / "run", resume=True)
    assert result.step == 3
    assert "nothing to resume" in capsys.readouterr().out


def test_a_damaged_checkpoint_is_left_out(make_config: MakeConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = make_config(train="num_steps: 20")
    run_training(config, tmp_path / "run")
    whole = tensors_of(tmp_path / "run")
    data = next((tmp_path / "run" / "step-20" / "tensors").glob("*.distcp"))
    data.write_bytes(data.read_bytes()[:-1])
    result = run_training(config, tmp_path / "run", resume=True)
    assert "left out" in capsys.readouterr().out
    assert result.step == 20
    again = tensors_of(tmp_path / "run")
    assert [name for name in whole if not torch.equal(whole[name], again[name])] == []
    for step in store.list_steps(tmp_path / "run"):
        (tmp_path / "run" / f"step-{step}" / "state.json").write_text("")
    with pytest.raises(CheckpointError, match="every checkpoint of this run is damaged"):
        run_training(config, tmp_path / "run", resume=True)


def test_a_changed_config_is_refused_by_field(make_config: MakeConfig, tmp_path: Path) -> None:
    run_training(make_config(train="num_steps: 2"), tmp_path / "run")
    changed = make_config(train="num_steps: 4", sparse="adagrad_optimizer { lr: 0.5 }")
    with pytest.raises(CheckpointError, match=r"train\.sparse_optimizer\.optimizer\.lr: was 0\.05, is 0\.5"):
        run_training(changed, tmp_path / "run", resume=True)


def test_a_folder_that_is_not_empty_is_refused(make_config: MakeConfig, tmp_path: Path) -> None:
    config = make_config(train="num_steps: 2")
    run_training(config, tmp_path / "run")
    with pytest.raises(ConfigError, match=r"run is not empty \(metrics\.jsonl, result\.json, step-2\); add --resume"):
        run_training(config, tmp_path / "run")


def test_any_width_is_trained_on_a_cpu(make_config: MakeConfig, tmp_path: Path) -> None:
    features = """
    feature_configs { id_feature { feature_name: "item" expression: "item:item" embedding_dim: 6 hash_bucket_size: 50 } }
    feature_configs { id_feature { feature_name: "hour" expression: "context:hour" embedding_dim: 1 num_buckets: 24 } }
    """
    wide = 'feature_groups { group_name: "wide" group_type: WIDE feature_names: "item" }'
    groups = f'feature_groups {{ group_name: "deep" feature_names: "item" feature_names: "hour" }} {wide}'
    config = make_config(features=features, groups=groups, model="deepfm { deep { hidden_units: 4 } final { hidden_units: 4 } }")
    with pytest.raises(ConfigError) as error:
        run_training(config, tmp_path / "run")
    assert "every feature of the group 'deep' must have the same width" in str(error.value)
    groups = groups.replace('feature_names: "hour"', "")
    config = make_config(features=features, groups=groups, model="deepfm { deep { hidden_units: 4 } wide_embedding_dim: 2 }")
    run_training(config, tmp_path / "run")
    tables = load_trained(tmp_path / "run").model.embedding_group.table_weights()
    assert {name: tuple(weight.shape) for name, weight in tables.items()} == {"item_emb": (50, 6), "item_emb_wide": (50, 2)}


def test_what_a_run_needs_is_named(tmp_path: Path, train_data: Path) -> None:
    path = tmp_path / "features.config"
    path.write_text('feature_configs { raw_feature { feature_name: "age" } }\nfeature_groups { group_name: "g" feature_names: "age" }')
    with pytest.raises(ConfigError) as error:
        run_training(load_config(path), tmp_path / "run")
    model, train, data = error.value.problems
    assert model.startswith("model_config names no model")
    assert train.startswith("train_config is missing")
    assert data == "train_input_path is missing: name the training files"


def test_a_loss_that_is_not_finite_stops_the_run(make_config: MakeConfig, tmp_path: Path) -> None:
    config = make_config(train="num_epochs: 1", dense="sgd_optimizer { lr: 1e30 }")
    with pytest.raises(TrainingError, match="the loss is not finite at step 5"):
        run_training(config, tmp_path / "run")
    assert store.list_steps(tmp_path / "run") == []


def test_labels_that_make_no_sense_are_named(make_config: MakeConfig, tmp_path: Path, train_data: Path) -> None:
    config = make_config(train="num_epochs: 1")
    data = replace(config.data, label_fields=("grade",))
    with pytest.raises(DataError, match="label 'grade' must be between 0 and 1, found 2"):
        run_training(replace(config, data=data), tmp_path / "run")


def test_no_rows_is_an_error(make_config: MakeConfig, tmp_path: Path, train_data: Path) -> None:
    empty = tmp_path / "empty.parquet"
    pq.write_table(pq.read_table(train_data / "train.parquet").slice(0, 0), empty)
    config = replace(make_config(train="num_steps: 5"), train_input_path=str(empty))
    with pytest.raises(DataError, match="no batch in the training data"):
        run_training(config, tmp_path / "run")


def test_classes_and_values(make_config: MakeConfig, tmp_path: Path) -> None:
    model = "num_class: 3 losses { softmax_cross_entropy {} } metrics {} " + "dlrm { dense_mlp { hidden_units: 8 } final { hidden_units: 8 } }"
    model = model.replace("metrics {} ", "")
    config = make_config(train="num_epochs: 1", model=model)
    config = replace(config, data=replace(config.data, label_fields=("grade",)))
    result = run_training(config, tmp_path / "classes")
    assert set(result.metrics) == {"accuracy", "log_loss", "rows"}
    assert 0.9 < result.metrics["log_loss"] < 1.3
    model = "losses { l2_loss {} } dlrm { dense_mlp { hidden_units: 8 } final { hidden_units: 8 } }"
    result = run_training(make_config(train="num_epochs: 1", model=model), tmp_path / "values")
    assert set(result.metrics) == {"mean_squared_error", "rows"}
    assert math.isfinite(result.loss)


def test_a_trained_model_answers_as_training_evaluated(make_config: MakeConfig, tmp_path: Path) -> None:
    result = run_training(make_config(train="num_epochs: 1"), tmp_path / "run")
    trained = load_trained(tmp_path / "run")
    assert (trained.step, trained.model.training, trained.path) == (20, False, tmp_path / "run" / "step-20")
    found = measured(tmp_path / "run")
    assert found["auc"] == pytest.approx(result.metrics["auc"], abs=1e-6)
    assert found["log_loss"] == pytest.approx(result.metrics["log_loss"], abs=1e-6)


KINDS = {
    "numbers": (
        'feature_configs { raw_feature { feature_name: "age" expression: "user:age" } }',
        'feature_groups { group_name: "g" feature_names: "age" }',
    ),
    "zch": (
        """
        feature_configs { id_feature { feature_name: "user" expression: "user:user" embedding_dim: 8 zch { zch_size: 40 lfu {} } } }
        feature_configs { id_feature {
          feature_name: "again" expression: "user:user" embedding_name: "user_emb" embedding_dim: 8 zch { zch_size: 40 lfu {} }
        } }
        """,
        'feature_groups { group_name: "g" feature_names: "user" feature_names: "again" }',
    ),
}
HEAD = """
from torch import nn


class Head(nn.Module):
    def __init__(self, embedding_group):
        super().__init__()
        self.linear = nn.Linear(embedding_group.group_total_dim("g"), 1)

    def forward(self, groups):
        return {"logits": self.linear(groups["g"]).squeeze(1)}
"""


@pytest.mark.parametrize("kind", list(KINDS))
def test_models_with_no_tables_and_with_zch_tables_only(make_config: MakeConfig, tmp_path: Path, kind: str) -> None:
    (tmp_path / f"head_{kind}.py").write_text(HEAD)
    features, groups = KINDS[kind]
    config = make_config(features=features, groups=groups, model=f"custom_model {{ class_path: 'head_{kind}.Head' }}", train="num_steps: 12")
    run_training(config, tmp_path / "whole")
    assert run_training(config, tmp_path / "parts", stop=StopAfter(5)).stopped
    run_training(config, tmp_path / "parts", resume=True)
    assert_same_run(tmp_path / "whole", tmp_path / "parts")
    tables = load_trained(tmp_path / "whole").model.embedding_group.tables
    assert [table.name for table in tables] == ([] if kind == "numbers" else ["user_emb"])


def test_evaluation_sets_without_rows_or_with_one_class(make_config: MakeConfig, tmp_path: Path, train_data: Path) -> None:
    rows = pq.read_table(train_data / "eval.parquet")
    positive = [index for index, label in enumerate(rows["label"].to_pylist()) if label == 1][:5]
    for name, part in {"none": rows.slice(0, 0), "one": rows.take(positive)}.items():
        pq.write_table(part, tmp_path / f"{name}.parquet")
        config = replace(make_config(train="num_steps: 2"), eval_input_path=str(tmp_path / f"{name}.parquet"))
        result = run_training(config, tmp_path / name)
        assert math.isnan(result.metrics["auc"])
        assert result.metrics["rows"] == part.num_rows
        assert json.loads((tmp_path / name / "result.json").read_text())["auc"] is None
    assert math.isfinite(result.metrics["log_loss"])
    assert run_training(replace(config, eval_input_path=""), tmp_path / "without").metrics == {}
