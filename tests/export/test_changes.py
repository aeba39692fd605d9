"""Rows that changed: found bit by bit in blocks of any size, out of the files of an artifact and of a checkpoint."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from emberline.delta_manifest import TableChange
from emberline.export.changes import Changes, find_changed_rows, write_changes
from emberline.export.row_source import RowSource
from emberline.export.table_rows import TableRows
from emberline.manifest import hash_file
from emberline.schema import TableKind, TableSpec
from emberline.serving.deltas import ChangedRows
from emberline.serving.files import map_tensors
from emberline.serving.rows_on_disk import RowsOnDisk
from emberline.serving.tables import TABLE_DTYPES, write_table
from emberline.train.checkpoint.tensors import save_tensors


def on_disk(folder: Path, rows: Tensor) -> RowsOnDisk:
    write_table(folder / "before.safetensors", rows)
    return RowsOnDisk.find(folder / "before.safetensors")


def trained(folder: Path, rows: Tensor, more: Sequence[Tensor] = (), memory: int = 1 << 20) -> TableRows:
    save_tensors(folder / "tensors", {"tables/t/weight": rows})
    dtype = next(name for name, found in TABLE_DTYPES.items() if found == rows.dtype)
    spec = TableSpec(name="t", rows=rows.shape[0], dim=rows.shape[1], dtype=dtype, kind=TableKind.STATIC)
    return TableRows(spec, RowSource(folder / "tensors"), memory, more)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("num_more", [0, 2])
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_rows_that_differ_by_a_bit_and_no_others_are_found(
    dtype: torch.dtype, num_more: int, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    num_rows = data.draw(st.integers(num_more + 1, 30))
    before = torch.randn(num_rows, 3, generator=torch.Generator().manual_seed(num_rows)).to(dtype)
    changed = sorted(data.draw(st.sets(st.integers(0, num_rows - 1))))
    after = before.clone()
    for row in changed:
        after[row, row % 3] = -0.0 if bool(after[row, row % 3] == 0) else -after[row, row % 3]
    folder = tmp_path_factory.mktemp("rows")
    now = trained(folder, after[: num_rows - num_more], after[num_rows - num_more :].unbind(0), data.draw(st.sampled_from([1, 500, 1 << 20])))
    places = find_changed_rows(on_disk(folder, before), now)
    assert places.tolist() == changed
    change = Changes(now, places)
    assert write_changes(folder / "changed", [change]) == hash_file(folder / "changed")
    described = change.described("changed")
    assert described == TableChange(table="t", file="changed" if changed else None, rows=len(changed), prefix="t/")
    written = {name.removeprefix("t/"): part for name, part in map_tensors(folder / "changed").items()}
    assert bool(written) == bool(changed)
    if written:
        ChangedRows(**written).write_to(before)
    assert torch.equal(before.view(torch.uint8), after.view(torch.uint8))


def test_a_zero_that_changed_its_sign_has_changed(tmp_path: Path) -> None:
    now = trained(tmp_path, torch.tensor([[0.0, 0.0], [0.0, -0.0], [0.0, 0.0]]))
    assert find_changed_rows(on_disk(tmp_path, torch.zeros(3, 2)), now).tolist() == [1]
