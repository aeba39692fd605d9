"""Parts of tensors: saved under any cut, loaded under any other, and read by row."""

import itertools
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from emberline.errors import CheckpointError
from emberline.train.checkpoint import chunks
from emberline.train.checkpoint.chunks import Chunk, Chunks
from emberline.train.checkpoint.stored_rows import read_rows
from emberline.train.checkpoint.tensors import load_tensors, read_tensors, save_tensors

CUTS = st.lists(st.integers(0, 12), max_size=3)


def cut(tensor: Tensor, rows: list[int], columns: list[int]) -> Chunks:
    """The whole tensor, cut before these rows and columns; parts without numbers may arise."""
    row_ends = sorted([0, len(tensor), *(row for row in rows if row < len(tensor))])
    column_ends = sorted([0, 5, *(column for column in columns if column < 5)])
    parts = [
        Chunk((top, left), tensor[top:bottom, left:right])
        for top, bottom in itertools.pairwise(row_ends)
        for left, right in itertools.pairwise(column_ends)
    ]
    return Chunks(tensor.shape, tensor.dtype, parts)


@settings(max_examples=25, deadline=None)
@given(saved=st.tuples(CUTS, CUTS), loaded=st.tuples(CUTS, CUTS), piece_bytes=st.sampled_from([1, 50, 1 << 20]), seed=st.integers(0, 9))
def test_any_cut_is_read_as_any_other(
    saved: tuple[list[int], list[int]], loaded: tuple[list[int], list[int]], piece_bytes: int, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("t") / "tensors"
    whole = torch.randn(13, 5, generator=torch.Generator().manual_seed(seed))
    into = torch.zeros(13, 5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "MAX_PIECE_BYTES", piece_bytes)
        save_tensors(folder, {"a": cut(whole, *saved), "b": whole[0].clone()})
        load_tensors(folder, {"a": cut(into, *loaded)})
    assert torch.equal(into, whole)
    assert torch.equal(read_tensors(folder, "a")["a"], whole)
    rows = torch.randint(13, (20,), generator=torch.Generator().manual_seed(seed))
    assert torch.equal(read_rows(folder, "a", rows), whole[rows])
    assert read_rows(folder, "a", rows[:0]).shape == (0, 5)


def test_a_part_is_filled_and_no_more(tmp_path: Path) -> None:
    whole, into = torch.arange(40.0).view(8, 5), torch.zeros(8, 5)
    save_tensors(tmp_path / "t", {"a": whole})
    load_tensors(tmp_path / "t", {"a": Chunks((8, 5), torch.float32, [Chunk((2, 1), into[2:5, 1:3])])})
    assert torch.equal(into[2:5, 1:3], whole[2:5, 1:3])
    assert into.count_nonzero() == 6


def test_what_is_not_there_is_told(tmp_path: Path) -> None:
    save_tensors(tmp_path / "t", {"a": torch.zeros(2, 3)})
    with pytest.raises(CheckpointError, match="b is not in it"):
        read_rows(tmp_path / "t", "b", torch.tensor([0]))
    with pytest.raises(CheckpointError, match=r"a is float32 \[2, 3\] there, but float32 \[3, 3\] in the model"):
        load_tensors(tmp_path / "t", {"a": Chunks((3, 3), torch.float32, [])})


def test_the_only_part_is_the_whole() -> None:
    tensor = torch.arange(6.0).view(2, 3)
    assert Chunks((2, 3), torch.float32, [Chunk((0, 0), tensor)]).whole() is tensor
    copy = Chunks((2, 3), torch.float32, [Chunk((0, 0), tensor)]).like([tensor + 1])
    assert torch.equal(copy.whole(), tensor + 1)
