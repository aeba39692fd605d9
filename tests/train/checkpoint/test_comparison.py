"""A checkpoint that is compared while somebody reads it: damage is told, before the work or after it, and instead of what it led to."""

from pathlib import Path

import pytest

from emberline.errors import CheckpointError
from emberline.train.checkpoint import comparison, store
from emberline.train.checkpoint.comparison import Comparison


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One small file and one that counts as large."""
    monkeypatch.setattr(comparison, "_SMALL_BYTES", 100)
    with store.write_checkpoint(tmp_path, 3, {}) as draft:
        (draft / "small").write_bytes(b"s" * 100)
        (draft / "large").write_bytes(b"l" * 101)
    return store.step_path(tmp_path, 3)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[50] ^= 1
    path.write_bytes(data)


def test_a_whole_one_is_let_pass(checkpoint: Path) -> None:
    with Comparison(checkpoint) as found:
        assert (found.info.step, sorted(found.info.files)) == (3, ["large", "small"])
        found.finish()
    with pytest.raises(KeyError, match="own"), Comparison(checkpoint):
        raise KeyError("own")


def test_small_and_missing_files_are_told_at_once(checkpoint: Path) -> None:
    flip(checkpoint / "small")
    with pytest.raises(CheckpointError, match="step-3 is damaged: small was changed: its sha256 differs"):
        Comparison(checkpoint)
    (checkpoint / "large").unlink()
    with pytest.raises(CheckpointError, match="large is missing"):
        Comparison(checkpoint)


def test_large_files_are_told_at_the_end_and_instead_of_what_they_led_to(checkpoint: Path) -> None:
    flip(checkpoint / "large")
    with pytest.raises(CheckpointError, match="large was changed"), Comparison(checkpoint) as found:
        found.finish()
    with pytest.raises(CheckpointError, match="large was changed"), Comparison(checkpoint):
        pass
    with pytest.raises(CheckpointError, match="large was changed"), Comparison(checkpoint):
        raise KeyError("the work fails on what is damaged")
    with pytest.raises(KeyboardInterrupt), Comparison(checkpoint):
        raise KeyboardInterrupt
