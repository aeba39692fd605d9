"""Folders of chunks: what is whole comes back, what is not is named."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from emberline.errors import CheckpointError
from emberline.train.checkpoint.tensors import TensorInfo, save_tensors
from emberline.train.interop.stored import Chunk, StoredTensor, StoredTensors, rank_ends


@pytest.fixture
def stored(tmp_path: Path) -> StoredTensors:
    save_tensors(tmp_path / "x", {"a": torch.arange(6.0).view(3, 2), "n": torch.tensor(7), "e": torch.zeros(0, 2), "h": torch.ones(2).half()})
    return StoredTensors(tmp_path / "x")


def test_reads_what_was_written(stored: StoredTensors) -> None:
    assert stored.problems(stored.tensors) == []
    assert stored.infos["h"] == TensorInfo((2,), torch.float16)
    assert stored.read("a").tolist() == [[0, 1], [2, 3], [4, 5]]
    assert stored.read("n").item() == 7
    assert stored.read("e").shape == (0, 2)
    assert stored.equals("a", torch.arange(6.0).view(3, 2))
    assert not stored.equals("a", torch.zeros(3, 2))


def with_chunks(stored: StoredTensors, *chunks: Chunk) -> StoredTensors:
    stored.tensors["a"] = StoredTensor(stored.tensors["a"].info, chunks)
    return stored


def test_chunks_that_do_not_make_up_the_tensor_are_named(stored: StoredTensors) -> None:
    (whole,) = stored.tensors["a"].chunks
    top, below = replace(whole, sizes=(2, 2)), replace(whole, offsets=(2, 0), sizes=(1, 2))
    assert with_chunks(stored, top, below).problems(["a"]) == []
    left, right = replace(whole, sizes=(3, 1)), replace(whole, offsets=(0, 1), sizes=(3, 1))
    assert with_chunks(stored, left, right).problems(["a"]) == []
    assert with_chunks(stored).problems(["a"]) == ["a: its 0 chunks leave a part out"]
    assert with_chunks(stored, top).problems(["a"]) == ["a: its 1 chunks leave a part out"]
    assert with_chunks(stored, top, replace(below, offsets=(1, 0))).problems(["a"]) == ["a: its 2 chunks leave a part out"]
    assert with_chunks(stored, whole, top).problems(["a"]) == ["a: its 2 chunks hold a part twice"]
    assert with_chunks(stored, replace(whole, offsets=(1, 0))).problems(["a"]) == ["a: the index has a chunk [3, 2] at [1, 0] of a tensor [3, 2]"]
    assert with_chunks(stored, replace(whole, sizes=(6,))).problems(["a"]) == ["a: the index has a chunk [6] at [0, 0] of a tensor [3, 2]"]


def test_files_outside_of_the_folder_are_refused(stored: StoredTensors) -> None:
    (whole,) = stored.tensors["a"].chunks
    assert with_chunks(stored, replace(whole, file="../secret")).problems(["a"]) == ["'../secret' is no file of this folder"]
    assert with_chunks(stored, replace(whole, start=-1)).problems(["a"]) == ["a: the index has no place for one of its chunks"]


def test_a_chunk_of_another_shape_or_type_is_refused(stored: StoredTensors) -> None:
    (whole,) = stored.tensors["a"].chunks
    (half,) = stored.tensors["h"].chunks
    with_chunks(stored, replace(half, offsets=(0, 0), sizes=(3, 2)))
    with pytest.raises(CheckpointError, match=r"it holds something else for a than a tensor \[3, 2\] of torch\.float32"):
        stored.read("a")
    with_chunks(stored, replace(whole, start=whole.start + 8))
    with pytest.raises(CheckpointError, match=r"bytes \d+ to \d+ cannot be read"):
        stored.read("a")


def test_rank_ends() -> None:
    chunks = [Chunk((5,), (6,), "b", 0, 1), Chunk((0,), (5,), "a", 0, 1), Chunk((11,), (0,), "c", 0, 1)]
    assert rank_ends(chunks) == (5, 11)


@pytest.mark.parametrize("pattern", [".metadata", "*.distcp"])
def test_changed_bytes_are_read_or_refused(stored: StoredTensors, pattern: str) -> None:
    """Whatever a damaged file makes the readers underneath do, the error is ours; bytes that only change a number come back changed."""
    (path,) = stored.folder.glob(pattern)
    whole, generator = path.read_bytes(), random.Random(5)
    outcomes: set[bool | str] = set()
    for _ in range(250):
        damaged = bytearray(whole)
        for _ in range(generator.choice([1, 3])):
            damaged[generator.randrange(len(damaged))] = generator.randrange(256)
        path.write_bytes(damaged)
        try:
            found = StoredTensors(stored.folder)
            outcomes.add(found.problems(found.tensors) == [] and [found.read(name).shape for name in found.tensors] != [])
        except CheckpointError:
            outcomes.add("refused")
    assert {True, "refused"} <= outcomes
