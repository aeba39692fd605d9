"""Rows of stored tensors, read by ranges of bytes: of tensors of any shape and type, of those that lie otherwise, and of damaged ones."""

from pathlib import Path

import pytest
import torch

from emberline.errors import CheckpointError
from emberline.train.checkpoint.chunks import Chunk, Chunks
from emberline.train.checkpoint.stored_rows import StoredRows
from emberline.train.checkpoint.tensors import save_tensors

SHAPES = ((9,), (9, 1), (9, 5), (9, 2, 3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8])
def test_tensors_of_any_shape_and_type(tmp_path: Path, dtype: torch.dtype) -> None:
    whole = {str(shape): torch.randint(0, 200, shape).to(dtype) for shape in SHAPES}
    save_tensors(tmp_path / "t", whole)
    rows = torch.tensor([8, 0, 3, 3])
    for name, tensor in whole.items():
        stored = StoredRows(tmp_path / "t", name)
        assert (stored.shape, stored.dtype) == (tuple(tensor.shape), dtype)
        assert torch.equal(stored.take(rows), tensor[rows])
        assert torch.equal(stored.read(2, 7), tensor[2:7])
        assert torch.equal(stored.read(9, 9), tensor[:0])


def test_pieces_side_by_side_and_below_each_other(tmp_path: Path) -> None:
    whole = torch.randn(20, 10)
    parts = [Chunk((top, left), whole[top : top + 8, left : left + 4]) for top in (0, 8, 16) for left in (0, 4, 8)]
    save_tensors(tmp_path / "t", {"a": Chunks(whole.shape, whole.dtype, parts)})
    stored = StoredRows(tmp_path / "t", "a")
    assert torch.equal(stored.read(3, 19), whole[3:19])
    assert torch.equal(stored.take(torch.arange(19, -1, -1)), whole.flip(0))


def test_a_tensor_that_was_stored_column_after_column(tmp_path: Path) -> None:
    whole = torch.randn(5, 7).t().contiguous().t()
    assert not whole.is_contiguous()
    save_tensors(tmp_path / "t", {"a": whole})
    stored = StoredRows(tmp_path / "t", "a")
    assert torch.equal(stored.read(1, 4), whole[1:4])
    assert torch.equal(stored.take(torch.tensor([4, 0, 0])), whole[[4, 0, 0]])


def test_what_is_not_whole_is_refused(tmp_path: Path) -> None:
    save_tensors(tmp_path / "t", {"a": Chunks((4, 2), torch.float32, [Chunk((0, 0), torch.zeros(3, 2))])})
    with pytest.raises(CheckpointError, match="the pieces of a are not the whole of it"):
        StoredRows(tmp_path / "t", "a")
    save_tensors(tmp_path / "u", {"a": torch.zeros(400, 2)})
    stored = StoredRows(tmp_path / "u", "a")
    stored.read(0, 1)
    file = next((tmp_path / "u").glob("*.distcp"))
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match=r"distcp cannot be read: .* ends after 1000 bytes"):
        stored.read(0, 400)
    with pytest.raises(CheckpointError, match="distcp cannot be read"):
        stored.take(torch.tensor([399]))
