"""Metrics of two that answer: those of each task, on the rows that were asked for, or a reason why there are none."""

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import Tensor

from emberline.encoding import EncodedColumns
from emberline.errors import DataError, ExportError
from emberline.export.evaluation import EvaluationPlan
from emberline.train.checkpoint import Trained
from emberline.train.config import parse_config
from emberline.train.data import batch_from_encoded
from emberline.train.models import build_model
from emberline.train.models.build import features_of

ROWS = 50
CONFIG = """
{eval_path}
data_config {{ fg_mode: FG_NORMAL {labels} batch_size: 16 }}
feature_configs {{ id_feature {{ feature_name: "user" num_buckets: 9 embedding_dim: 4 }} }}
feature_configs {{ id_feature {{ feature_name: "item" num_buckets: 9 embedding_dim: 4 }} }}
model_config {{ {model} }}
"""
DEEP = 'feature_groups { group_name: "all" feature_names: "user" feature_names: "item" }'
SIDES = 'feature_groups { group_name: "u" feature_names: "user" } feature_groups { group_name: "i" feature_names: "item" }'
TASKS = f"""{DEEP} mmoe {{ expert_mlp {{ hidden_units: [4] }} num_expert: 2
  task_towers {{ tower_name: "ctr" label_name: "click" }}
  task_towers {{ tower_name: "grade" label_name: "grade" num_class: 3 losses {{ softmax_cross_entropy {{}} }} }}
  task_towers {{ tower_name: "spend" label_name: "spent" losses {{ l2_loss {{}} }} }}
}}"""
MATCH = f"""{SIDES} losses {{ softmax_cross_entropy {{}} }} dssm {{
  user_tower {{ input: "u" mlp {{ hidden_units: [4] }} }} item_tower {{ input: "i" mlp {{ hidden_units: [4] }} }}
  output_dim: 3 in_batch_negative: true
}}"""
WIDE = 'feature_groups { group_name: "wide" group_type: WIDE feature_names: "user" } '
PLAIN = WIDE + DEEP.replace('"all"', '"deep"') + " wide_and_deep { deep { hidden_units: [4] } } "
MODELS = {"click": PLAIN, "spent": PLAIN + "losses { l2_loss {} }", "click grade spent": TASKS, "click ": MATCH}


def trained(tmp_path: Path, labels: str, eval_path: Path | None = None) -> Trained:
    """A model that was not trained, as if it had been."""
    text = CONFIG.format(
        eval_path=f'eval_input_path: "{eval_path}"' if eval_path else "",
        labels=" ".join(f'label_fields: "{name}"' for name in labels.split()),
        model=MODELS[labels],
    )
    config = parse_config(text)
    torch.manual_seed(0)
    features = tuple(features_of(config))
    return Trained(config, features, build_model(config, features).eval(), 1, tmp_path)


def write_rows(path: Path, rows: int = ROWS, drop: str = "") -> Path:
    draw = np.random.default_rng(rows)
    columns = {
        "user": draw.integers(0, 9, rows),
        "item": draw.integers(0, 9, rows),
        "click": draw.integers(0, 2, rows),
        "grade": draw.integers(0, 3, rows),
        "spent": draw.normal(size=rows).astype(np.float32),
    }
    pq.write_table(pa.table({name: values for name, values in columns.items() if name != drop}), path)
    return path


class Answers:
    """What a model answers, worse by `noise`; counts rows."""

    def __init__(self, model: Trained, noise: float = 0.0) -> None:
        self.model, self.noise, self.rows = model, noise, 0
        self.asked: list[int] = []

    def __call__(self, encoded: EncodedColumns) -> Mapping[str, Tensor]:
        self.asked.append(encoded.num_rows)
        with torch.no_grad():
            outputs = self.model.model(batch_from_encoded(self.model.features, encoded))
        shift = self.noise * torch.arange(encoded.num_rows).float().sin()
        return {name: value + (shift if value.dim() == 1 else shift[:, None]) for name, value in outputs.items()}


def test_numbers_are_those_of_all_rows_at_once(tmp_path: Path) -> None:
    data, model = write_rows(tmp_path / "rows.parquet"), trained(tmp_path, "click grade spent")
    before, after = Answers(model), Answers(model, 0.5)
    found = EvaluationPlan.of(model, str(data)).evaluate(model, before, after)
    assert list(found.trained) == ["auc_ctr", "log_loss_ctr", "accuracy_grade", "log_loss_grade", "mean_squared_error_spend"]
    assert (found.rows, found.data, found.note) == (ROWS, str(data), "")
    assert before.asked == after.asked == [16, 16, 16, 2]
    table = pq.read_table(data)
    spent = [model.model(batch_from_encoded(model.features, encoded))["y_spend"].detach() for encoded in batches_of(model, data)]
    labels = torch.from_numpy(table["spent"].to_numpy().copy()).double()
    assert found.trained["mean_squared_error_spend"] == pytest.approx((torch.cat(spent).double() - labels).square().mean().item())
    noise = torch.cat([0.5 * torch.arange(count).float().sin() for count in before.asked])
    assert found.artifact["mean_squared_error_spend"] == pytest.approx(((torch.cat(spent) + noise).double() - labels).square().mean().item())
    assert found.change == {name: found.artifact[name] - number for name, number in found.trained.items()}
    assert found.auc_drops == {"auc_ctr": -found.change["auc_ctr"]}
    assert found.change["auc_ctr"] != 0


def batches_of(model: Trained, data: Path) -> list[EncodedColumns]:
    return [rows.columns for rows in EvaluationPlan.of(model, str(data))._batches(model)]


@pytest.mark.parametrize(("most", "asked"), [(1, [1]), (16, [16]), (20, [16, 4]), (50, [16, 16, 16, 2]), (1000, [16, 16, 16, 2])])
def test_no_more_rows_are_looked_at_than_were_asked_for(tmp_path: Path, most: int, asked: list[int]) -> None:
    model, data = trained(tmp_path, "click"), write_rows(tmp_path / "rows.parquet")
    answers = Answers(model)
    assert EvaluationPlan.of(model, str(data), most).evaluate(model, answers, answers).rows == min(most, ROWS)
    assert answers.asked == [count for count in asked for _ in range(2)]


def test_towers_are_measured_by_recall_among_the_rows_of_a_batch(tmp_path: Path) -> None:
    model, data = trained(tmp_path, "click "), write_rows(tmp_path / "rows.parquet")
    found = EvaluationPlan.of(model, str(data)).evaluate(model, Answers(model), Answers(model))
    assert set(found.trained) == {"recall_at_1", "log_loss"}
    assert found.note == "Candidates of a row are the items of its batch, 16 rows at most."
    assert 0 < found.trained["recall_at_1"] < 1
    assert found.change == {"recall_at_1": 0, "log_loss": 0}


@pytest.mark.parametrize(
    ("labels", "told"),
    [("spent", "its metrics are mean_squared_error, rows"), ("click ", "its metrics are recall_at_1, log_loss, rows")],
)
def test_a_limit_needs_an_auc(tmp_path: Path, labels: str, told: str) -> None:
    model, data = trained(tmp_path, labels), write_rows(tmp_path / "rows.parquet")
    with pytest.raises(ExportError, match=f"--max-auc-drop needs an AUC, and the model's task has none: {told}"):
        EvaluationPlan.of(model, str(data), max_auc_drop=0.1)
    assert EvaluationPlan.of(trained(tmp_path, "click grade spent"), str(data), max_auc_drop=0.1).max_auc_drop == 0.1


def test_rows_come_of_the_config_where_none_are_given(tmp_path: Path) -> None:
    data = write_rows(tmp_path / "eval.parquet")
    assert EvaluationPlan.of(trained(tmp_path, "click", data), None).data == str(data)
    other = write_rows(tmp_path / "other.parquet", 3)
    model = trained(tmp_path, "click", data)
    assert EvaluationPlan.of(model, str(other)).evaluate(model, Answers(model), Answers(model)).rows == 3


def test_a_reason_where_there_are_no_numbers(tmp_path: Path) -> None:
    model = trained(tmp_path, "click", tmp_path / "gone.parquet")
    assert EvaluationPlan.of(model, None).missing.startswith("there is no evaluation data: ")
    assert EvaluationPlan.of(trained(tmp_path, "click"), None).missing == "the config names no evaluation data; name some with --parity-rows"
    unlabelled = write_rows(tmp_path / "rows.parquet", drop="click")
    plan = EvaluationPlan.of(model, str(unlabelled))
    assert "'click'" in plan.missing
    assert plan.evaluate(model, Answers(model), Answers(model)).to_dict() == {"missing": plan.missing}
    empty = write_rows(tmp_path / "empty.parquet", 0)
    found = EvaluationPlan.of(model, str(empty)).evaluate(model, Answers(model), Answers(model))
    assert found.missing == f"{empty} has no rows"
    assert EvaluationPlan.of(model, str(empty), 0).missing == "--quality-rows is 0"


def test_one_kind_of_labels_gives_no_auc_but_a_loss(tmp_path: Path) -> None:
    model, data = trained(tmp_path, "click"), tmp_path / "rows.parquet"
    pq.write_table(pa.table({"user": [1, 2], "item": [3, 4], "click": [1, 1]}), data)
    found = EvaluationPlan.of(model, str(data)).evaluate(model, Answers(model), Answers(model))
    assert math.isnan(found.trained["auc"])
    assert found.to_dict()["change"] == {"auc": None, "log_loss": 0.0}


def test_labels_that_make_no_sense_are_refused_with_their_value(tmp_path: Path) -> None:
    model, data = trained(tmp_path, "click"), tmp_path / "rows.parquet"
    pq.write_table(pa.table({"user": [1, 2], "item": [3, 4], "click": [1, 7]}), data)
    with pytest.raises(DataError, match=r"'click'.*7"):
        EvaluationPlan.of(model, str(data)).evaluate(model, Answers(model), Answers(model))
