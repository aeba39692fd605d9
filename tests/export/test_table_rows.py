"""A table's rows in blocks, out of a checkpoint: as they are stored, whatever the size of the blocks."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from emberline.errors import ExportError
from emberline.export.row_source import RowSource
from emberline.export.table_errors import TableErrors
from emberline.export.table_rows import _BLOCKS_AT_ONCE, TableRows
from emberline.schema import TableSpec
from emberline.serving.quantized import STORED_DTYPES, decode_rows, encode_rows, stored_width
from emberline.train.checkpoint.tensors import save_tensors

NAMES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}


def rows_of(folder: Path, rows: Tensor, stored: str, more: tuple[Tensor, ...] = (), *, block_rows: int) -> tuple[TableRows, TableErrors]:
    """The table, in blocks of so many rows, and what takes in its errors."""
    folder.mkdir(exist_ok=True)
    save_tensors(folder, {"tables/t/weight": rows})
    spec = TableSpec(name="t", rows=rows.shape[0], dim=rows.shape[1], dtype=NAMES[rows.dtype])
    errors = TableErrors(spec, stored or spec.dtype)
    table = TableRows(spec, RowSource(folder), _BLOCKS_AT_ONCE * block_rows * rows.shape[1] * rows.itemsize, more, stored, errors)
    assert table.block_rows == block_rows
    return table, errors


@pytest.mark.parametrize("stored", ["", *STORED_DTYPES])
@pytest.mark.parametrize("trained", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("dim", [1, 6])
def test_blocks_and_rows_are_the_encoded_whole(tmp_path: Path, stored: str, trained: torch.dtype, dim: int) -> None:
    rows = torch.randn(50, dim, generator=torch.Generator().manual_seed(dim)).to(trained)
    more = (torch.zeros(dim, dtype=trained), rows.float().mean(0).to(trained))
    table, errors = rows_of(tmp_path / "c", rows, stored, more, block_rows=7)
    number_type = stored or NAMES[trained]
    whole = encode_rows(torch.cat([rows, torch.stack(more)]), number_type)
    blocks = list(table.blocks())
    assert [len(block) for block in blocks] == [7] * 7 + [1, 2]
    assert torch.equal(torch.cat(blocks).view(torch.uint8), whole.view(torch.uint8))
    places = torch.tensor([0, 3, 3, 49, 50, 51])
    assert torch.equal(table.take(places).view(torch.uint8), whole[places].view(torch.uint8))
    assert (table.width, table.dtype, table.number_type) == (stored_width(dim, number_type), whole.dtype, number_type)
    assert (table.num_rows, errors.result().is_changed) == (52, number_type != NAMES[trained])
    gap = (decode_rows(whole[:50], dim, number_type).double() - rows.double()).abs().max().item()
    assert errors.result().max_abs_error == gap


@pytest.mark.parametrize(
    ("stored", "value", "message"),
    [
        ("fp16", 65520.0, r"table 't': row 33 holds 65520, which is more than fp16 can hold; leave it as it was trained: --quantize t=fp32"),
        ("bf16", -3.4e38, r"row 33 holds 3.4e\+38, which is more than bf16 can hold"),
        ("int8", -65505.0, "row 33 holds 65505, which is more than int8 can hold"),
        ("int4", 1e6, r"row 33 holds 1e\+06, which is more than int4 can hold"),
        ("int8", float("nan"), "table 't': row 33 holds NaN or infinity"),
        ("fp16", float("inf"), "table 't': row 33 holds NaN or infinity"),
    ],
)
def test_a_row_that_does_not_fit_is_refused_by_its_number(tmp_path: Path, stored: str, value: float, message: str) -> None:
    rows = torch.randn(40, 3)
    rows[33, 1] = value
    table, _ = rows_of(tmp_path / "c", rows, stored, block_rows=5)
    with pytest.raises(ExportError, match=message):
        list(table.blocks())
    if abs(value) < 1e39:
        with pytest.raises(ExportError, match=message):
            table.take(torch.tensor([1, 33]))
