"""Checkpoint directories: whole or not there, checked, found, pruned."""

import json
from pathlib import Path

import pytest

from emberline.errors import CheckpointError
from emberline.manifest import MANIFEST_NAME, write_manifest
from emberline.train.checkpoint import store


def make(run: Path, step: int, text: str = "weights") -> Path:
    with store.write_checkpoint(run, step, {"torch": "2"}) as draft:
        (draft / "tensors").mkdir()
        (draft / "tensors" / "a.bin").write_text(text)
        (draft / "state.json").write_text("{}")
    return store.step_path(run, step)


def test_what_was_written_is_found_and_verified(tmp_path: Path) -> None:
    run = tmp_path / "run"
    path = make(run, 7)
    info = store.verify_checkpoint(path)
    assert (info.step, sorted(info.files), info.versions) == (7, ["state.json", "tensors/a.bin"], {"torch": "2"})
    assert [entry.name for entry in run.iterdir()] == ["step-7"]


def test_an_error_midway_leaves_nothing(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with pytest.raises(FileNotFoundError), store.write_checkpoint(run, 3, {}) as draft:
        (draft / "half").write_text("x" + (draft / "nothing").read_text())
    assert list(run.iterdir()) == []


def test_an_error_midway_keeps_what_was_there(tmp_path: Path) -> None:
    run = tmp_path / "run"
    make(run, 3, "old")
    with pytest.raises(KeyError), store.write_checkpoint(run, 3, {}):
        raise KeyError
    assert (store.step_path(run, 3) / "tensors" / "a.bin").read_text() == "old"


def test_drafts_of_a_killed_write_are_no_checkpoints_and_go_away(tmp_path: Path) -> None:
    run = tmp_path / "run"
    draft = run / ".draft-step-9"
    draft.mkdir(parents=True)
    write_manifest(draft, {"format": store.CHECKPOINT_FORMAT, "step": 9, "versions": {}, "files": {}})
    (run / ".draft-result.json").write_text("")
    assert store.list_steps(run) == []
    make(run, 10)
    assert sorted(entry.name for entry in run.iterdir()) == [".draft-result.json", "step-10"]
    store.remove_drafts(run)
    assert sorted(entry.name for entry in run.iterdir()) == ["step-10"]


def test_steps_sort_as_numbers_and_strangers_are_left_out(tmp_path: Path) -> None:
    for step in (9, 10, 100):
        make(tmp_path, step)
    (tmp_path / "step-200").mkdir()
    (tmp_path / "step-007").mkdir()
    (tmp_path / "step-x").mkdir()
    assert store.list_steps(tmp_path) == [9, 10, 100]
    assert store.find_checkpoint(tmp_path).name == "step-100"
    assert store.find_checkpoint(tmp_path, 9).name == "step-9"
    assert store.find_checkpoint(tmp_path / "step-10").name == "step-10"
    with pytest.raises(CheckpointError, match="no checkpoint of step 11; there are 9, 10, 100"):
        store.find_checkpoint(tmp_path, 11)
    with pytest.raises(CheckpointError, match="is the checkpoint of step 10, not 9"):
        store.find_checkpoint(tmp_path / "step-10", 9)


def test_pruning_keeps_the_newest(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        make(tmp_path, step)
    assert store.prune_checkpoints(tmp_path, 0) == []
    assert store.prune_checkpoints(tmp_path, 5) == []
    assert store.prune_checkpoints(tmp_path, 2, protected=(1, 9)) == [2]
    assert store.prune_checkpoints(tmp_path, 2) == [1]
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["step-3", "step-4"]


def test_a_link_is_made_and_pointed_elsewhere(tmp_path: Path) -> None:
    for step in (1, 2):
        make(tmp_path, step, text=str(step))
        store.write_link(tmp_path / "best", f"step-{step}")
        assert (tmp_path / "best" / "tensors" / "a.bin").read_text() == str(step)
    assert store.find_checkpoint(tmp_path / "best").resolve() == (tmp_path / "step-2").resolve()
    assert store.list_steps(tmp_path) == [1, 2]
    (tmp_path / ".draft-best").symlink_to("step-1")
    store.remove_drafts(tmp_path)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["best", "step-1", "step-2"]


def test_damage_is_named(tmp_path: Path) -> None:
    path = make(tmp_path, 1)
    (path / "tensors" / "a.bin").write_text("weightz")
    (path / "extra").write_text("")
    (path / "state.json").unlink()
    with pytest.raises(CheckpointError, match=r"state\.json is missing; extra is not listed in the manifest; tensors/a\.bin was changed"):
        store.verify_checkpoint(path)


def test_resume_falls_back_past_damage_and_says_so(tmp_path: Path) -> None:
    make(tmp_path, 1)
    newest = make(tmp_path, 2)
    assert store.find_intact(tmp_path / "none") == (None, [])
    (newest / "tensors" / "a.bin").write_text("short")
    found, problems = store.find_intact(tmp_path)
    assert found is not None
    assert found.step == 1
    assert problems == [f"{newest} is damaged: tensors/a.bin has 5 bytes, not 7"]
    (tmp_path / "step-1" / "state.json").unlink()
    with pytest.raises(CheckpointError, match="every checkpoint of this run is damaged"):
        store.find_intact(tmp_path)


def test_a_damaged_step_is_written_anew(tmp_path: Path) -> None:
    path = make(tmp_path, 2)
    (path / MANIFEST_NAME).unlink()
    make(tmp_path, 2, "again")
    assert (store.verify_checkpoint(path).path / "tensors" / "a.bin").read_text() == "again"


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such directory"):
        store.find_checkpoint(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match="no complete checkpoint here"):
        store.find_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match="not a complete checkpoint"):
        store.read_checkpoint(tmp_path)
    write_manifest(tmp_path, {"format": "something else"})
    with pytest.raises(CheckpointError, match="format 'something else' is not"):
        store.read_checkpoint(tmp_path)
    write_manifest(tmp_path, {"format": store.CHECKPOINT_FORMAT})
    with pytest.raises(CheckpointError, match=r"manifest\.json cannot be read"):
        store.read_checkpoint(tmp_path)
    (tmp_path / MANIFEST_NAME).write_text("{")
    with pytest.raises(CheckpointError, match=r"manifest\.json cannot be read"):
        store.read_checkpoint(tmp_path)
    (tmp_path / MANIFEST_NAME).write_text(json.dumps([1]))
    with pytest.raises(CheckpointError, match=r"manifest\.json cannot be read"):
        store.read_checkpoint(tmp_path)


def test_text_files_are_written_whole(tmp_path: Path) -> None:
    store.write_text(tmp_path / "result.json", "{}")
    store.write_text(tmp_path / "result.json", '{"a": 1}')
    assert store.read_json(tmp_path / "result.json") == {"a": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["result.json"]
    (tmp_path / "result.json").write_text("{")
    with pytest.raises(CheckpointError, match="cannot be read"):
        store.read_json(tmp_path / "result.json")
