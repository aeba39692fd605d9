"""Tensor files: what is written is what safetensors itself reads, aligned and mapped."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from emberline.errors import ArtifactError
from emberline.serving.files import ALIGNMENT, InBlocks, map_tensors, write_tensors


def test_safetensors_reads_what_is_written(tmp_path: Path) -> None:
    tensors = {
        "rows": torch.randn(5, 3),
        "half": torch.randn(4).half(),
        "brain": torch.randn(2, 2).bfloat16(),
        "ids": torch.tensor([2**63 - 1, -(2**63)]),
        "small": torch.tensor([1, 2, 3], dtype=torch.int32),
        "mask": torch.tensor([True, False]),
        "empty": torch.empty(0, 4),
        "from_numpy": torch.from_numpy(np.empty(0, np.int64)),  # of stride 0
        "strided": torch.arange(12.0).view(3, 4).t(),
    }
    write_tensors(tmp_path / "a.safetensors", tensors)
    for read in (load_file(tmp_path / "a.safetensors"), map_tensors(tmp_path / "a.safetensors")):
        assert sorted(read) == sorted(tensors)
        for name, value in tensors.items():
            assert read[name].dtype == value.dtype
            assert torch.equal(read[name], value), name


@pytest.mark.parametrize("name", ["x", "a_longer_name", "n" * 61])
def test_data_starts_on_a_cache_line(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.safetensors"
    write_tensors(path, {name: torch.arange(16.0)})
    assert (path.stat().st_size - 16 * 4) % ALIGNMENT == 0
    assert map_tensors(path)[name].data_ptr() % ALIGNMENT == 0


def test_tensors_are_mapped_not_copied(tmp_path: Path) -> None:
    path = tmp_path / "big.safetensors"
    write_tensors(path, {"rows": torch.zeros(1 << 18)})
    rows = map_tensors(path)["rows"]
    ranges = [line.split()[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith(str(path))]
    assert any(int(low, 16) <= rows.data_ptr() < int(high, 16) for low, high in ranges)


@pytest.mark.parametrize("damage", [b"", b"12345678", b"\xff" * 64])
def test_a_file_that_is_not_safetensors_is_named(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "bad.safetensors").write_bytes(damage)
    with pytest.raises(ArtifactError, match=r"^bad\.safetensors is not a readable safetensors file: "):
        map_tensors(tmp_path / "bad.safetensors")


def test_a_file_cut_short_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cut.safetensors"
    write_tensors(path, {"rows": torch.zeros(100)})
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(ArtifactError, match=r"cut\.safetensors"):
        map_tensors(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"none\.safetensors"):
        map_tensors(tmp_path / "none.safetensors")


@pytest.mark.parametrize("sizes", [[], [0], [5], [2, 0, 3]])
def test_blocks_are_written_as_one_tensor(tmp_path: Path, sizes: list[int]) -> None:
    whole = torch.randn(sum(sizes), 3).bfloat16()
    blocks = InBlocks(tuple(whole.shape), whole.dtype, iter(torch.split(whole, sizes) if sizes else []))
    write_tensors(tmp_path / "a.safetensors", {"first": torch.arange(3), "rows": blocks, "last": torch.arange(2)})
    found = map_tensors(tmp_path / "a.safetensors")
    assert torch.equal(found["rows"], whole)
    assert (found["first"].tolist(), found["last"].tolist()) == ([0, 1, 2], [0, 1])
