"""Which checkpoints stay: the newest and the best, whatever comes in whichever order."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from emberline.errors import CheckpointError, ConfigError
from emberline.train.checkpoint import store
from emberline.train.checkpoint.keeping import BestBy, CheckpointKeeper, best_checkpoint

NUMBERS = st.lists(st.sampled_from([0.5, 0.7, 0.6, math.nan, -1.0, math.inf, None]), max_size=6)


def make(run: Path, step: int) -> None:
    with store.write_checkpoint(run, step, {}) as draft:
        (draft / "a").write_text(str(step))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(numbers=NUMBERS, keep=st.integers(0, 3), larger=st.booleans(), restart=st.integers(0, 6))
def test_the_newest_and_the_best_stay(
    numbers: list[float | None], keep: int, larger: bool, restart: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    run = tmp_path_factory.mktemp("run")
    keeper = CheckpointKeeper(run, keep, BestBy(metric="auc", larger=larger))
    there: list[int] = []
    known: dict[int, float] = {}
    for step, number in enumerate(numbers, 1):
        if step == restart:
            keeper = CheckpointKeeper(run, keep, BestBy(metric="auc", larger=larger))
            if not (run / "best").is_symlink():
                known = {}
        make(run, step)
        keeper.tidy()
        if number is not None:
            keeper.note(step, {"loss": 1.0, "auc": number})
            if math.isfinite(number):
                known[step] = number
        there.append(step)
        for _ in range(2):  # a checkpoint is tidied twice: when it is complete, and when it has its number
            candidates = [one for one in there if one in known and (number is not None or one != step)]
            best = (max if larger else min)(candidates, key=lambda one: known[one], default=None)
            newest = there[-keep:] if keep else there
            there = [one for one in there if one in newest or one == best]
        assert store.list_steps(run) == there
        if best is not None:
            assert best_checkpoint(run) == run / f"step-{best}"
            assert (run / "best" / "a").read_text() == str(best)


def test_numbers_are_written_down(tmp_path: Path) -> None:
    keeper = CheckpointKeeper(tmp_path, 1, BestBy(metric="log_loss", larger=False))
    for step, number in ((1, 0.4), (2, 0.3), (3, 0.6), (4, math.nan)):
        make(tmp_path, step)
        keeper.tidy()
        keeper.note(step, {"log_loss": number})
    assert store.list_steps(tmp_path) == [2, 4]
    whole = json.loads((tmp_path / "best.json").read_text())
    assert (whole["step"], whole["metric"], whole["larger_is_better"]) == (2, "log_loss", False)
    assert whole["numbers"] == {"1": 0.4, "2": 0.3, "3": 0.6, "4": None}
    assert store.find_checkpoint(tmp_path / "best") == tmp_path / "best"
    assert store.read_checkpoint(tmp_path / "best").step == 2


def test_without_a_metric_none_is_the_best(tmp_path: Path) -> None:
    keeper = CheckpointKeeper(tmp_path, 1)
    for step in (1, 2):
        make(tmp_path, step)
        keeper.note(step, {"auc": 1.0})
        keeper.tidy()
    assert store.list_steps(tmp_path) == [2]
    with pytest.raises(CheckpointError, match="no checkpoint is the best"):
        best_checkpoint(tmp_path)


def test_a_metric_that_is_not_there_is_named(tmp_path: Path) -> None:
    keeper = CheckpointKeeper(tmp_path, 1, BestBy(metric="recall"))
    with pytest.raises(ConfigError, match="the evaluation has no 'recall', only auc, log_loss"):
        keeper.note(1, {"auc": 1.0, "log_loss": 1.0})


@pytest.mark.parametrize("text", ["{", "{}", '{"metric": "auc", "numbers": {"x": 1}}', "[]"])
def test_numbers_that_cannot_be_read_are_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "best.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"best\.json: cannot be read"):
        CheckpointKeeper(tmp_path, 1, BestBy(metric="auc"))


def test_another_metric_begins_anew(tmp_path: Path) -> None:
    make(tmp_path, 1)
    CheckpointKeeper(tmp_path, 1, BestBy(metric="auc")).note(1, {"auc": 0.9})
    keeper = CheckpointKeeper(tmp_path, 1, BestBy(metric="log_loss", larger=False))
    make(tmp_path, 2)
    keeper.note(2, {"log_loss": 5.0})
    assert store.list_steps(tmp_path) == [2]
    assert best_checkpoint(tmp_path) == tmp_path / "step-2"
