"""The parts of a run: what is looked at before the tables are placed."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from emberline.errors import DataError
from emberline.train.config import PipelineConfig
from emberline.train.job import run_training
from emberline.train.job_build import build_parts
from emberline.train.sharding import process_group
from tests.train.job_runs import assert_same_run

MakeConfig = Callable[..., PipelineConfig]
pytestmark = pytest.mark.usefixtures("one_thread")


def test_only_training_looks_at_its_data_and_at_the_machine(make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """So a model can be scored where its training data is not."""
    measured: list[str] = []

    def measure(device: str, local_world_size: int) -> dict[str, float]:
        measured.append(device)
        return {"ddr": 3.0}

    monkeypatch.setattr("emberline.train.sharding.found.measure_bandwidths", measure)
    config = replace(make_config(train="planner { sample_batches: 3 measure_bandwidths: true }"), train_input_path="/none/rows.parquet")
    with process_group():
        parts = build_parts(config, bound=False)
        assert (measured, parts.samples, parts.hardware.speeds.ddr) == ([], 0, 20.0)
        assert len(parts.planned_for) == 2
        with pytest.raises(DataError, match="/none/rows"):
            build_parts(config, measured=True)
        assert measured == ["cpu"]


def test_counting_ids_changes_no_result(make_config: MakeConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for batches in (0, 3):
        run_training(make_config(train=f"num_steps: 7 planner {{ sample_batches: {batches} }}"), tmp_path / str(batches))
        told = "ids a row: counted in the first batches of the training data, 3 at most"
        assert (told in capsys.readouterr().out.splitlines()) == (batches > 0)
    assert_same_run(tmp_path / "0", tmp_path / "3")
