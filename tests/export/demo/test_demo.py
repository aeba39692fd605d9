"""The demo around its long steps: its folder, its config, its tables and its verdict."""

import re
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from emberline.cli import main
from emberline.errors import ExportError, MissingDependencyError, ParityError
from emberline.export.demo import demo
from emberline.export.demo.movielens import find_files
from emberline.export.demo.steps import Steps, table_lines
from emberline.train.config import load_config
from emberline.train.models import build_model
from emberline.train.models.build import features_of


def test_example_config_is_the_demos_and_builds_a_model(repository: Path) -> None:
    example = repository / "examples" / "movielens_deepfm.pbtxt"
    assert demo.CONFIG.read_text() == example.read_text()
    config = load_config(example)
    assert config.train_input_path.endswith(".demo/data/train.parquet")
    schema = build_model(config, features_of(config)).schema()
    assert [feature.name for feature in schema.features if feature.encoder.type == "raw_id"] == ["user_id", "item_id"]
    assert [output.name for output in schema.outputs] == ["logits", "probs"]


def test_folder_of_something_else_is_never_emptied(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.txt").write_text("keep")
    assert main(["demo", "--output", str(tmp_path)]) == 1
    assert "was not made by the demo" in capsys.readouterr().err
    assert (tmp_path / "mine.txt").read_text() == "keep"
    (tmp_path / "file").write_text("")
    assert main(["demo", "--output", str(tmp_path / "file")]) == 1
    assert "is a file, not a folder" in capsys.readouterr().err


def test_own_folder_is_made_anew(tmp_path: Path) -> None:
    paths = demo._prepare_folder(tmp_path / "demo")
    (paths.root / "old").write_text("")
    assert not (demo._prepare_folder(tmp_path / "demo").root / "old").exists()


def test_one_answer_that_differs_is_named() -> None:
    wanted: demo.Answers = {"probs": np.array([0.5, 0.25], np.float32), "lookup.deep": np.zeros((2, 3), np.float32)}
    near = {**wanted, "probs": wanted["probs"] + np.float32(5e-7)}
    assert 0 < demo._largest_difference(wanted, {"a": wanted, "b": near}) <= 1e-6
    far = {**wanted, "lookup.deep": wanted["lookup.deep"] + np.float32(1e-4)}
    with pytest.raises(ParityError, match=re.escape("b: lookup.deep differs from the trained model's by 0.0001, over the bound of 1e-06")):
        demo._largest_difference(wanted, {"a": wanted, "b": far})
    with pytest.raises(ParityError, match="probs differs"):
        demo._largest_difference(wanted, {"a": {**wanted, "probs": np.full(2, np.nan, np.float32)}})
    with pytest.raises(ParityError, match=r"probs has shape \(1,\), the trained model's \(2,\)"):
        demo._largest_difference(wanted, {"a": {**wanted, "probs": wanted["probs"][:1]}})


def test_answers_fit_an_eighty_column_terminal() -> None:
    answers = {
        f"{server} {protocol}": {"probs": np.full(6, 0.1234567, np.float32)} for server in ("Triton", "embedded") for protocol in ("HTTP", "gRPC")
    }
    rows: list[demo.Row] = [{"user_id": 2**63 - 1, "item_id": -(2**63)}] * 6
    lines = demo._answer_lines(rows, answers["Triton HTTP"], answers)
    assert max(len(line) for line in lines) <= 80 - len("      ")
    assert lines[-1].split() == ["922..07", "/", "-92..08", *["0.1234567"] * 5]


def test_steps_are_numbered_and_timed() -> None:
    said: list[str] = []
    steps = Steps(2, said.append)
    with steps.step("First"):
        steps.note("a note")
    with pytest.raises(ExportError), steps.step("Second"):
        raise ExportError("no")
    assert said[:2] == ["\n[1/2] First", "      a note"]
    assert re.fullmatch(r"      done in \d+\.\d s", said[2])
    assert said[3:] == ["\n[2/2] Second"]


def test_table_lines_align() -> None:
    assert table_lines([("name", "n")], [("a", "10"), ("longer", "2")]) == ["name     n", "------  --", "a       10", "longer   2"]


def test_the_data_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        find_files()
    except MissingDependencyError as error:
        pytest.skip(str(error))
    folder = tmp_path / "movielens"
    assert main(["demo", "--output", str(folder), "--data-only"]) == 0
    assert capsys.readouterr().out == (
        f"80,367 ratings to train with, 19,633 newer ones to test with: {folder / 'data'}\nconfig: {folder / 'config.pbtxt'}\n"
    )
    assert sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.*")) == [
        ".emberline-demo",
        "config.pbtxt",
        "data/test.parquet",
        "data/train.parquet",
    ]
    config = load_config(folder / "config.pbtxt")
    assert pq.read_metadata(config.train_input_path).num_rows == 80_367
