"""Rows of a checkpoint's tables: in blocks, picked, and with other vectors in the place of some."""

from pathlib import Path

import pytest
import torch

from emberline.errors import CheckpointError, ExportError
from emberline.export.export import export_model
from emberline.export.opened import open_checkpoint
from emberline.export.row_source import RowSource
from emberline.export.unknown import mean_row
from emberline.train.checkpoint.tensors import save_tensors
from tests.export.conftest import SmallRun


def test_blocks_and_picked_rows(tmp_path: Path) -> None:
    table = torch.randn(10, 3).half()
    save_tensors(tmp_path / "t", {"tables/a/weight": table})
    source = RowSource(tmp_path / "t")
    assert (source.rows("a"), source.dim("a"), source.dtype("a")) == (10, 3, torch.float16)
    for most in (1, 4, 10, 99):
        blocks = list(source.blocks("a", most))
        assert [len(block) for block in blocks[:-1]] == [most] * (len(blocks) - 1)
        assert torch.equal(torch.cat(blocks), table)
    rows = torch.tensor([9, 0, 4])
    with source.instead({"a": (torch.tensor([4, 7]), torch.full((3,), 2.0).half()), "b": (rows, torch.zeros(3))}):
        assert torch.equal(source.take("a", rows), torch.stack([table[9], table[0], torch.full((3,), 2.0).half()]))
    assert torch.equal(source.take("a", rows), table[rows])
    with pytest.raises(CheckpointError, match="tables/c/weight is not in it"):
        source.rows("c")


def test_a_mean_of_rows(tmp_path: Path) -> None:
    table = torch.randn(9000, 3)
    save_tensors(tmp_path / "t", {"tables/a/weight": table})
    rows = torch.randperm(9000)[:5000]
    torch.testing.assert_close(mean_row(RowSource(tmp_path / "t"), "a", rows), table.double()[rows].mean(dim=0).float(), rtol=0, atol=1e-7)
    for bad in (-1, 9000):
        with pytest.raises(ExportError, match="table 'a': the id map in the checkpoint is damaged: rows points outside the table's 9000 rows"):
            mean_row(RowSource(tmp_path / "t"), "a", torch.tensor([3, bad]))


def test_an_opened_model_has_no_tables_and_answers_with_their_rows(small_run: SmallRun) -> None:
    trained = small_run.load().model
    weights = trained.embedding_group.table_weights()
    with open_checkpoint(small_run.path) as opened:
        for name, weight in opened.trained.model.embedding_group.table_weights().items():
            assert weight.is_meta, name
            assert torch.equal(torch.cat(list(opened.rows.blocks(name, 7))), weights[name])


def test_too_little_memory_is_refused(small_run: SmallRun, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="1000 bytes of memory for rows of tables are too few: give at least 1048576"):
        export_model(small_run.path, tmp_path, "small", memory=1000)
    assert not list(tmp_path.iterdir())
