"""Tensors on disk: what was saved comes back, bit for bit; what does not fit is refused by name."""

import os
import pickle
from pathlib import Path

import pytest
import torch

from emberline.errors import CheckpointError
from emberline.train.checkpoint.tensors import TensorInfo, describe_tensors, load_tensors, read_tensors, save_tensors


def sample() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return {
        "tables/a b/weight": torch.randn(5, 4, generator=generator),
        "zch/a b/history": torch.zeros(0, dtype=torch.int64),
        "zch/a b/ids": torch.tensor([-(2**63), 2**63 - 1, 0]),
        "dense_optim/head.weight/step": torch.tensor(3.0),
        "flag": torch.tensor([True, False]),
        "half": torch.tensor([1.5, float("nan")], dtype=torch.bfloat16),
        "rng/torch": torch.get_rng_state(),
    }


def test_round_trip_is_exact(tmp_path: Path) -> None:
    tensors = sample()
    save_tensors(tmp_path / "tensors", tensors)
    assert describe_tensors(tmp_path / "tensors") == {name: TensorInfo(tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}
    back = read_tensors(tmp_path / "tensors")
    assert sorted(back) == sorted(tensors)
    for name, tensor in tensors.items():
        assert torch.equal(back[name].reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8)), name


def test_reads_by_prefix(tmp_path: Path) -> None:
    save_tensors(tmp_path / "tensors", sample())
    assert sorted(read_tensors(tmp_path / "tensors", "zch/")) == ["zch/a b/history", "zch/a b/ids"]
    assert read_tensors(tmp_path / "tensors", "nothing/") == {}


def test_what_does_not_fit_is_named_and_nothing_is_filled(tmp_path: Path) -> None:
    save_tensors(tmp_path / "tensors", sample())
    into = {"tables/a b/weight": torch.zeros(5, 4), "flag": torch.zeros(3, dtype=torch.bool), "half": torch.zeros(2), "new": torch.zeros(1)}
    with pytest.raises(CheckpointError) as error:
        load_tensors(tmp_path / "tensors", into)
    assert "flag is bool [2] there, but bool [3] in the model" in str(error.value)
    assert "half is bfloat16 [2] there, but float32 [2] in the model; new is not in it" in str(error.value)
    assert torch.equal(into["tables/a b/weight"], torch.zeros(5, 4))


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("true",)


@pytest.mark.parametrize("index", [pickle.dumps(Evil()), b"", b"no pickle", pickle.dumps([1, 2])])
def test_an_index_that_is_none_is_refused(tmp_path: Path, index: bytes) -> None:
    save_tensors(tmp_path / "tensors", sample())
    (tmp_path / "tensors" / ".metadata").write_bytes(index)
    with pytest.raises(CheckpointError, match=r"\.metadata cannot be read"):
        describe_tensors(tmp_path / "tensors")


def test_a_missing_index_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"\.metadata is missing"):
        describe_tensors(tmp_path)


def test_what_cannot_be_written_or_read_is_one_plain_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"file/tensors cannot be written: .*Not a directory"):
        save_tensors(tmp_path / "file" / "tensors", sample())
    save_tensors(tmp_path / "tensors", sample())
    data = next((tmp_path / "tensors").glob("*.distcp"))
    data.write_bytes(data.read_bytes()[:100])
    with pytest.raises(CheckpointError, match="tensors cannot be read: "):
        read_tensors(tmp_path / "tensors")
