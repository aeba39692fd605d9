"""Runs that go on with other data: refused by the files' names, or accepted, and then the pass under way begins anew."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from emberline.cli import main
from emberline.errors import CheckpointError
from emberline.train.checkpoint import store
from emberline.train.checkpoint.run_state import read_progress
from emberline.train.config import PipelineConfig, load_config
from emberline.train.data.files import DataFile
from emberline.train.job import run_training
from tests.train.conftest import make_table
from tests.train.job_runs import assert_same_end, logged

MakeRun = Callable[..., PipelineConfig]
pytestmark = pytest.mark.usefixtures("one_thread")


def write(path: Path, rows: int, seed: int = 1) -> int:
    path.parent.mkdir(exist_ok=True)
    pq.write_table(make_table(rows, seed), path, row_group_size=50)
    return path.stat().st_size


@pytest.fixture
def run_config(make_config: Callable[..., PipelineConfig], tmp_path: Path) -> MakeRun:
    """A run over the files of a folder, 32 rows a step, without evaluation."""

    def make(data: str = "data", **parts: str) -> PipelineConfig:
        path = Path(make_config(**parts).source)
        lines = [line for line in path.read_text().splitlines() if not line.startswith(("train_input_path", "eval_input_path"))]
        path.write_text("\n".join([f'train_input_path: "{tmp_path / data}"', *lines]))
        return load_config(path)

    return make


def test_a_replaced_file_is_refused_with_its_rows_and_accepted_when_asked(
    run_config: MakeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = write(tmp_path / "data" / "a.parquet", 200)
    run_training(run_config(train="num_steps: 5"), tmp_path / "run")
    progress = read_progress(tmp_path / "run" / "step-5")
    assert (progress.rows, progress.files) == (160, {"train_input_path": (DataFile(name="a.parquet", bytes=before, rows=200),)})

    now = write(tmp_path / "data" / "a.parquet", 70, seed=9)
    config = run_config(train="num_steps: 7")
    message = f"train_input_path: a.parquet had 200 rows in {before} bytes, and has 70 rows in {now} bytes. Undo that, or add --accept-data-changes"
    with pytest.raises(CheckpointError, match=message):
        run_training(config, tmp_path / "run", resume=True)
    assert store.list_steps(tmp_path / "run") == [5]
    capsys.readouterr()
    arguments = ["train", "--config", config.source, "--output", str(tmp_path / "run"), "--resume", "--accept-data-changes"]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert f"accepted: train_input_path: a.parquet had 200 rows in {before} bytes" in out
    assert "epoch 0 begins anew, after 160 rows of the data before" in out
    progress = read_progress(tmp_path / "run" / "step-7")
    assert (progress.epoch, progress.rows, progress.step) == (0, 64, 7)
    assert main(arguments) == 0  # these data are the run's now
    assert "accepted" not in capsys.readouterr().out


def test_files_that_are_added_come_with_the_next_pass(run_config: MakeRun, tmp_path: Path) -> None:
    write(tmp_path / "data" / "a.parquet", 64)
    run_training(run_config(train="num_epochs: 1"), tmp_path / "run")
    write(tmp_path / "data" / "b.parquet", 32, seed=2)
    more = run_config(train="num_epochs: 2")
    with pytest.raises(CheckpointError, match=r"train_input_path: b\.parquet is new, with 32 rows in"):
        run_training(more, tmp_path / "run", resume=True)
    result = run_training(more, tmp_path / "run", resume=True, accept_data_changes=True)
    assert (result.step, result.epoch) == (2 + 3, 2)


def test_moved_and_touched_files_are_the_same(run_config: MakeRun, tmp_path: Path) -> None:
    for name, rows in (("a", 100), ("b", 60)):
        write(tmp_path / "data" / f"{name}.parquet", rows)
    run_training(run_config(train="num_steps: 9"), tmp_path / "whole")
    run_training(run_config(train="num_steps: 3"), tmp_path / "parts")
    os.utime(tmp_path / "data" / "a.parquet", (1, 1))
    shutil.move(tmp_path / "data", tmp_path / "elsewhere")
    run_training(run_config("elsewhere/*.parquet", train="num_steps: 9"), tmp_path / "parts", resume=True)
    assert_same_end(tmp_path / "whole", tmp_path / "parts")


def test_csv_files_are_told_apart_by_their_bytes(run_config: MakeRun, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    path, head = tmp_path / "data" / "a.csv", "user,item,hour,age,price,label\n"
    path.write_text(head + "1,a,2,30,0.5,1\n" * 64)

    def config(steps: int) -> PipelineConfig:
        whole = run_config(train=f"num_steps: {steps}")
        text = whole.text.replace("ParquetDataset shuffle: true", "CsvDataset with_header: true").replace("weighted: true", "")
        text = text.replace('expression: "item:tags"', 'expression: "context:hour"').replace("num_buckets: 12", "num_buckets: 24")
        Path(whole.source).write_text(text)
        return load_config(whole.source)

    run_training(config(1), tmp_path / "run")
    assert read_progress(tmp_path / "run" / "step-1").files == {"train_input_path": (DataFile(name="a.csv", bytes=len(head) + 15 * 64),)}
    path.write_text(head + "1,a,2,30,0.5,1\n" * 63)
    with pytest.raises(CheckpointError, match=r"a\.csv had 991 bytes, and has 976 bytes"):
        run_training(config(2), tmp_path / "run", resume=True)


def test_checkpoints_that_did_not_note_their_files_load(run_config: MakeRun, tmp_path: Path) -> None:
    write(tmp_path / "data" / "a.parquet", 200)
    run_training(run_config(train="num_steps: 2"), tmp_path / "run")
    draft = tmp_path / "old"
    with store.write_checkpoint(draft, 2, {}, store.read_checkpoint(tmp_path / "run" / "step-2").notes) as folder:
        shutil.copytree(tmp_path / "run" / "step-2", folder, dirs_exist_ok=True)
        (folder / "manifest.json").unlink()
        state = json.loads((folder / "state.json").read_text())
        del state["files"]
        (folder / "state.json").write_text(json.dumps(state))
    write(tmp_path / "other" / "a.parquet", 200)
    with pytest.raises(CheckpointError, match=r"train_input_path: was '.*/data', is '.*/other'"):
        run_training(run_config("other", train="num_steps: 4"), draft, resume=True)
    run_training(run_config(train="num_steps: 4"), tmp_path / "run", resume=True)
    run_training(run_config(train="num_steps: 4"), draft, resume=True)
    assert_same_end(tmp_path / "run", draft)


def test_a_pass_that_begins_anew_owes_no_evaluation(run_config: MakeRun, tmp_path: Path) -> None:
    write(tmp_path / "data" / "a.parquet", 64)
    path = write(tmp_path / "eval" / "e.parquet", 32) and tmp_path / "eval"

    def config(steps: int) -> PipelineConfig:
        whole = run_config(train=f"num_steps: {steps}")
        Path(whole.source).write_text(f'eval_input_path: "{path}"\n{whole.text}')
        return load_config(whole.source)

    run_training(config(3), tmp_path / "run")
    write(tmp_path / "data" / "a.parquet", 96)
    run_training(config(5), tmp_path / "run", resume=True, accept_data_changes=True)
    assert [line["step"] for line in logged(tmp_path / "run") if line["kind"] == "eval"] == [2, 3, 5]


def test_the_option_is_for_resume(run_config: MakeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "data" / "a.parquet", 64)
    source = run_config(train="num_steps: 1").source
    assert main(["train", "--config", source, "--output", str(tmp_path / "run"), "--accept-data-changes"]) == 2
    assert "--accept-data-changes is for --resume and --with-progress" in capsys.readouterr().err
