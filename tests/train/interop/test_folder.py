from pathlib import Path

import pytest

from emberline.errors import CheckpointError
from emberline.train.interop.folder import find_torcheasyrec_checkpoint


def make(root: Path, *names: str) -> None:
    for name in names:
        (root / name / "model").mkdir(parents=True)


def test_the_newest_of_several(tmp_path: Path) -> None:
    make(tmp_path, "model.ckpt-5", "model.ckpt-20")
    (tmp_path / "model.ckpt-100").mkdir()  # without model/
    (tmp_path / "pipeline.config").write_text("")
    (tmp_path / "model.ckpt-20" / "optimizer").mkdir()
    (tmp_path / "model.ckpt-20" / "dense_ema").mkdir()
    found = find_torcheasyrec_checkpoint(tmp_path)
    assert (found.step, found.path, found.config) == (20, tmp_path / "model.ckpt-20", tmp_path / "pipeline.config")
    assert (found.optimizer, found.left_out) == (tmp_path / "model.ckpt-20" / "optimizer", ("the averaged weights (dense_ema)",))
    assert find_torcheasyrec_checkpoint(tmp_path, 5).step == 5
    assert find_torcheasyrec_checkpoint(tmp_path / "model.ckpt-5").optimizer is None


def test_a_folder_of_another_name_needs_its_step(tmp_path: Path) -> None:
    make(tmp_path, "best")
    with pytest.raises(CheckpointError, match=r"does not say how many steps were trained, as model\.ckpt-1000 would; add --step"):
        find_torcheasyrec_checkpoint(tmp_path / "best")
    assert find_torcheasyrec_checkpoint(tmp_path / "best", 0).step == 0


@pytest.mark.parametrize(
    ("name", "step", "message"),
    [
        ("nothing", None, "no such directory; give a model.ckpt-STEP folder"),
        ("", 7, r"no checkpoint of step 7; there are 5, 20"),
        ("model.ckpt-5", 7, r"is of step 5, not 7; leave --step out"),
        ("empty", None, r"neither a folder model/ nor folders model\.ckpt-STEP"),
    ],
)
def test_what_is_not_there_is_named(tmp_path: Path, name: str, step: int | None, message: str) -> None:
    make(tmp_path, "model.ckpt-5", "model.ckpt-20")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match=message):
        find_torcheasyrec_checkpoint(tmp_path / name, step)
