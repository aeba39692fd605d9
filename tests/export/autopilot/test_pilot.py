"""Types that are chosen, of a small trained model with tables of every kind."""

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch

from emberline.cli import main
from emberline.encoding import columns_from_rows, encode
from emberline.errors import ExportError, QualityError
from emberline.export.autopilot.measure import Measurer
from emberline.export.autopilot.options import Goal
from emberline.export.autopilot.pilot import choose_types
from emberline.export.autopilot.report import TypeChoice
from emberline.export.evaluation import EvaluationPlan
from emberline.export.opened import OpenedCheckpoint, open_checkpoint
from emberline.serving.artifact import load_manifest
from emberline.serving.quantized import decode_rows, encode_rows, stored_bytes
from emberline.train.data import batch_from_encoded
from tests.export.conftest import SmallRun

ROWS = 64
"""Of the data, that are looked at."""


@pytest.fixture(scope="module")
def opened(small_run: SmallRun) -> Iterator[OpenedCheckpoint]:
    with open_checkpoint(small_run.path) as found:
        found.trained.model.eval()
        yield found


def choose(opened: OpenedCheckpoint, goal: Goal, fixed: Mapping[str, str] | None = None, quality_rows: int = ROWS) -> TypeChoice:
    evaluation = EvaluationPlan.of(opened.trained, None, quality_rows, goal.max_auc_drop)
    tables = opened.trained.model.embedding_group.tables
    return choose_types(opened.trained, tables, opened.rows, evaluation, goal, fixed or {}, lambda line: None)


@pytest.fixture(scope="module")
def free(opened: OpenedCheckpoint) -> TypeChoice:
    """The choice where there is room for all."""
    return choose(opened, Goal(memory_budget=1 << 30))


def outputs_with(small_run: SmallRun, types: Mapping[str, str]) -> dict[str, torch.Tensor]:
    """What the trained model answers to all rows, some of its tables stored in other types."""
    trained = small_run.load()
    for name, weight in trained.model.embedding_group.table_weights().items():
        if name in types:
            weight.data = decode_rows(encode_rows(weight.detach(), types[name]), weight.shape[1], types[name])
    features = trained.model.schema().features
    encoded = encode(features, *columns_from_rows(features, small_run.rows[:ROWS]))
    with torch.no_grad():
        found: dict[str, torch.Tensor] = trained.model(batch_from_encoded(trained.features, encoded))
    return found


def test_what_each_type_costs_is_what_a_model_with_that_table_answers(opened: OpenedCheckpoint, small_run: SmallRun, free: TypeChoice) -> None:
    trained = outputs_with(small_run, {})
    tables = {spec.name: spec for spec in opened.trained.model.embedding_group.tables}
    assert set(free.options) == set(tables)
    assert free.rows == ROWS
    for table, name in (("uid_emb", "fp16"), ("tags_emb", "int8"), ("tags_emb", "int4"), ("cross_emb", "fp16")):
        one = next(one for one in free.options[table] if one.type == name)
        assert one.num_bytes == stored_bytes(tables[table].rows, tables[table].dim, name)
        found, shares = outputs_with(small_run, {table: name}), []
        for output, wanted in trained.items():
            before, after = wanted.double(), found[output].double()
            shares.append(float((after - before).square().mean() / before.var(correction=0)))
        assert one.output_change == pytest.approx(math.sqrt(sum(shares) / len(shares)), rel=1e-3)
        weight = small_run.load().model.embedding_group.table_weights()[table].detach().double()
        stored = decode_rows(encode_rows(weight.float(), name), weight.shape[1], name).double()
        assert one.relative_error == pytest.approx(float((stored - weight).norm() / weight.norm()), rel=1e-6)
        assert 0 < abs(one.metrics["log_loss"]) < 0.1
    assert {one.type for one in free.chosen.values()} == {"fp32"}, "with room for all, nothing is narrowed"


def test_a_budget_is_held_to_the_byte(opened: OpenedCheckpoint, free: TypeChoice) -> None:
    assert free.index_bytes == 23 * (40 + 40 + 16)
    narrowest = free.index_bytes + sum(min(one.num_bytes for one in options) for options in free.options.values())
    assert choose(opened, Goal(memory_budget=narrowest)).num_bytes == narrowest
    told = f"--memory-budget is {narrowest - 1:,} bytes, but the narrowest types take {narrowest:,}: rows .*, the index of raw ids 2,208"
    with pytest.raises(ExportError, match=told):
        choose(opened, Goal(memory_budget=narrowest - 1), quality_rows=0)


def test_named_tables_keep_what_is_said_of_them(opened: OpenedCheckpoint, free: TypeChoice) -> None:
    choice = choose(opened, Goal(memory_budget=free.num_bytes - 1000), {"cross_emb": "fp32", "uid_emb": "int4"})
    assert not {"cross_emb", "uid_emb"} & set(choice.chosen)
    assert choice.fixed == {"cross_emb": 64 * 4 * 4, "uid_emb": stored_bytes(40, 4, "int4")}
    assert choice.num_bytes <= free.num_bytes - 1000
    assert "  uid_emb: as --quantize says" in choice.to_lines()[-2:]


def test_tables_become_as_narrow_as_an_auc_allows(opened: OpenedCheckpoint) -> None:
    any_drop, most = choose(opened, Goal(max_auc_drop=1.0)), 1e-3
    assert all(any_drop.chosen[table] == options[-1] for table, options in any_drop.options.items())
    choice = choose(opened, Goal(max_auc_drop=most))
    assert choice.auc_drop is None or choice.auc_drop <= most
    assert choice.next_drop is None or choice.next_drop > most
    assert any_drop.num_bytes <= choice.num_bytes
    types = {table: one.type for table, one in choice.chosen.items()}
    evaluation = EvaluationPlan.of(opened.trained, None, ROWS)
    _, (before, after) = Measurer(opened.trained, opened.rows, evaluation).metrics([types])
    assert before["auc"] - after["auc"] == (choice.auc_drop or 0.0)


def test_without_data_the_errors_of_rows_decide(opened: OpenedCheckpoint) -> None:
    free = choose(opened, Goal(memory_budget=1 << 30), quality_rows=0)
    assert (free.rows, free.without_data) == (0, "--quality-rows is 0")
    choice = choose(opened, Goal(memory_budget=free.num_bytes - 200), quality_rows=0)
    narrowed = {table: one for table, one in choice.chosen.items() if one.type != "fp32"}
    assert narrowed
    assert all(math.isnan(one.output_change) for one in narrowed.values())
    assert "by the errors of rows alone: --quality-rows is 0" in choice.to_lines()[0]


def test_the_command_publishes_the_types_and_tells_why(small_run: SmallRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["export", "--checkpoint", str(small_run.path), "--output", str(tmp_path), "--name", "m"]
    assert main([*command, "--memory-budget", "6KiB", "--quantize", "tags_emb=fp32", "--quality-rows", str(ROWS)]) == 0
    told = capsys.readouterr().out
    assert "of a budget of 6,144, measured on " in told
    quality = json.loads((tmp_path / "m" / "1" / "quality.json").read_text())
    chosen = {one["table"]: one["chosen"] for one in quality["choice"]["tables"]}
    stored = {entry.table: entry.dtype for entry in load_manifest(tmp_path / "m" / "1").tables}
    assert stored == {**chosen, "tags_emb": "fp32"}
    assert len(set(stored.values())) > 1
    assert quality["choice"]["bytes"] <= 6144
    assert quality["choice"]["bytes"] - quality["choice"]["index_bytes"] == quality["bytes_stored"]
    assert "## Why these types" in (tmp_path / "m" / "1" / "quality.md").read_text()
    assert main([*command, "--quantize", "auto"]) == 1
    assert "--quantize auto needs to know what for" in capsys.readouterr().err
    assert main([*command, "--quantize", "int8", "--memory-budget", "6KiB"]) == 1
    assert "--quantize int8 is for all tables, but their types are to be chosen" in capsys.readouterr().err
    assert main([*command, "--delta-from", "1", "--memory-budget", "6KiB"]) == 2
    assert "leave them out with --delta-from" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "m").iterdir() if path.name.isdigit()] == ["1"]


def test_an_auc_that_is_not_defined_is_no_reason(opened: OpenedCheckpoint, small_run: SmallRun, tmp_path: Path) -> None:
    rows = pq.read_table(small_run.data)
    ones = tmp_path / "ones.parquet"
    pq.write_table(rows.filter(rows["label"].to_numpy() == 1), ones)
    evaluation = EvaluationPlan.of(opened.trained, str(ones), 32, 0.1)
    with pytest.raises(QualityError, match="labels are of one kind only"):
        choose_types(
            opened.trained, opened.trained.model.embedding_group.tables, opened.rows, evaluation, Goal(max_auc_drop=0.1), {}, lambda line: None
        )
