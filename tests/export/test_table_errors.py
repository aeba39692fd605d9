"""Errors of tables, gathered block by block, against the whole at once in float64."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from emberline.export.table_errors import TableErrors, TableQuality
from emberline.schema import TableSpec
from emberline.serving.quantized import decode_rows, encode_rows, stored_bytes


def measure(rows: torch.Tensor, found: torch.Tensor, block: int, stored: str = "int8") -> TableQuality:
    names = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
    errors = TableErrors(TableSpec(name="t", rows=rows.shape[0], dim=rows.shape[1], dtype=names[rows.dtype]), stored)
    for start in range(0, rows.shape[0], block):
        errors.add(rows[start : start + block], found[start : start + block])
    return errors.result()


@pytest.mark.parametrize("stored", ["fp16", "bf16", "int8", "int4"])
@given(num_rows=st.integers(1, 30), dim=st.integers(1, 9), block=st.integers(1, 31), seed=st.integers(0, 999))
def test_blocks_give_what_the_whole_gives(stored: str, num_rows: int, dim: int, block: int, seed: int) -> None:
    rows = torch.randn(num_rows, dim, generator=torch.Generator().manual_seed(seed))
    rows[seed % num_rows] = 0
    found = decode_rows(encode_rows(rows, stored), dim, stored)
    quality = measure(rows, found, block, stored)
    wanted, have = rows.numpy().astype(np.float64), found.numpy().astype(np.float64)
    gap = have - wanted
    cosines = [
        float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b))) if a.any() and b.any() else float(a.any() == b.any())
        for a, b in zip(wanted, have, strict=True)
    ]
    size = float(np.square(wanted).sum())
    assert quality.max_abs_error == np.abs(gap).max()
    assert quality.mean_squared_error == pytest.approx(np.square(gap).mean(), rel=1e-12)
    assert quality.relative_error == pytest.approx(np.sqrt(np.square(gap).sum() / size) if size else 0, rel=1e-12)
    assert quality.mean_cosine == pytest.approx(np.mean(cosines), abs=1e-12)
    assert quality.min_cosine == pytest.approx(min(cosines), abs=1e-12)
    assert cosines[quality.min_cosine_row] == pytest.approx(min(cosines), abs=1e-12)
    assert (quality.bytes_trained, quality.bytes_stored) == (num_rows * dim * 4, stored_bytes(num_rows, dim, stored))
    assert quality.is_changed


def test_rows_of_zeros_and_rows_that_become_zeros() -> None:
    rows = torch.tensor([[0.0, 0.0], [1.0, 0.0], [3.0, 4.0]])
    quality = measure(rows, torch.tensor([[0.0, 0.0], [0.0, 0.0], [4.0, -3.0]]), 2)
    assert (quality.mean_cosine, quality.min_cosine, quality.min_cosine_row) == (1 / 3, 0.0, 1)
    assert quality.max_abs_error == 7.0
    assert quality.relative_error == pytest.approx((51 / 26) ** 0.5)


def test_half_tables_that_stay_have_no_errors() -> None:
    rows = torch.randn(5, 3).half()
    quality = measure(rows, rows.float(), 2, "fp16")
    assert not quality.is_changed
    assert (quality.max_abs_error, quality.mean_squared_error, quality.relative_error) == (0, 0, 0)
    assert quality.min_cosine == pytest.approx(1)
    assert quality.mean_cosine == pytest.approx(1)
    assert (quality.bytes_trained, quality.bytes_stored) == (30, 30)


def test_without_rows_there_are_no_errors() -> None:
    quality = TableErrors(TableSpec(name="t", rows=2, dim=1), "int8").result()
    assert (quality.max_abs_error, quality.mean_cosine, quality.min_cosine) == (0.0, 1.0, 1.0)
    assert (quality.bytes_trained, quality.bytes_stored) == (8, 16)
