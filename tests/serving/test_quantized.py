"""Stored number types: bytes against a loop over plain numbers, numbers and pooled answers against fbgemm."""

import math
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from emberline.serving.quantized import BITS, STORED_DTYPES, decode_rows, encode_rows, find_overflow, split_rows, stored_bytes, stored_width

_PATTERNS = np.arange(2**16, dtype=np.uint16).view(np.float16)
HALVES = np.unique(_PATTERNS[np.isfinite(_PATTERNS)].astype(np.float64)) + 0.0
"""Every finite float16, ascending."""
TINY = 2.0**-24
"""The least float16 above 0."""
QUANTIZED = sorted(BITS)
DIMS = (1, 2, 3, 4, 5, 7, 8, 16, 17)


def row_by_hand(numbers: Sequence[float], dtype: str) -> bytes:
    """A stored row: bias and scale looked up among all float16, whole numbers in exact arithmetic up to one float32 rounding each."""
    levels = 2 ** BITS[dtype] - 1
    bias = float(HALVES[np.searchsorted(HALVES, min(numbers), side="right") - 1])
    scale = float(HALVES[np.searchsorted(HALVES, (max(numbers) - bias) / levels, side="left")])
    codes = []
    for number in numbers:
        above = np.float32(number) - np.float32(bias)
        codes.append(min(levels, round(float(above / np.float32(scale)))) if scale > 0 else 0)
    if dtype == "int4":
        codes += [0] * (len(codes) % 2)
        codes = [low | high << 4 for low, high in zip(codes[0::2], codes[1::2], strict=True)]
    row = struct.pack("<ee", scale, bias) + bytes(codes)
    return row + b"\0" * (-len(row) % 4)


def mixed_rows(dim: int, seed: int = 0) -> Tensor:
    """Rows of every size, with constant, zero, shifted and tiny ones among them."""
    draw = torch.Generator().manual_seed(seed)
    rows = torch.randn(40, dim, generator=draw) * 10 ** torch.empty(40, 1).uniform_(-7, 3, generator=draw)
    rows[3], rows[7], rows[11] = 0, 0.1, -3.7
    rows[12] += 1000
    rows[13] = rows[13].abs() * 1e-9
    return rows


@pytest.mark.parametrize("dtype", QUANTIZED)
@given(
    rows=st.integers(1, 9).flatmap(
        lambda dim: st.lists(
            st.lists(st.floats(-65504, 65504, width=32) | st.floats(-1, 1, width=32) | st.just(0.25), min_size=dim, max_size=dim),
            min_size=1,
            max_size=4,
        )
    )
)
def test_bytes_are_those_of_a_loop_over_plain_numbers(dtype: str, rows: list[list[float]]) -> None:
    stored = encode_rows(torch.tensor(rows), dtype)
    assert [bytes(row) for row in stored.tolist()] == [row_by_hand(row, dtype) for row in rows]
    assert stored.shape == (len(rows), stored_width(len(rows[0]), dtype))


@pytest.mark.parametrize("dtype", QUANTIZED)
@pytest.mark.parametrize("dim", DIMS)
def test_no_number_is_further_away_than_half_a_scale(dtype: str, dim: int) -> None:
    rows = mixed_rows(dim)
    stored = encode_rows(rows, dtype)
    scales, biases, codes = split_rows(stored, dim, dtype)
    found = decode_rows(stored, dim, dtype)
    by_hand = codes.double() * scales.double()[:, None] + biases.double()[:, None]
    assert torch.equal(found, by_hand.float())
    room = scales.double()[:, None] * (0.5 + 2.0**-14) + rows.double().abs() * 2.0**-23
    assert bool(((found.double() - rows.double()).abs() <= room).all())
    assert torch.equal(found[3], torch.zeros(dim))
    assert codes.max() == 2 ** BITS[dtype] - 1


@pytest.mark.parametrize("dtype", QUANTIZED)
def test_rows_at_the_edges(dtype: str) -> None:
    levels = 2 ** BITS[dtype] - 1

    def stored(*numbers: float) -> tuple[float, float, list[int], list[float]]:
        packed = encode_rows(torch.tensor([numbers]), dtype)
        scales, biases, codes = split_rows(packed, len(numbers), dtype)
        return scales.item(), biases.item(), codes[0].tolist(), decode_rows(packed, len(numbers), dtype)[0].tolist()

    assert stored(0.25, 0.25, 0.25) == (0.0, 0.25, [0, 0, 0], [0.25] * 3)
    assert encode_rows(torch.tensor([[-0.0, 0.0], [-0.0, -0.0]]), dtype).tolist() == [[0] * 8] * 2
    assert stored(-0.0, 0.0) == (0.0, 0.0, [0, 0], [0.0, 0.0])
    assert stored(0.0, float(levels)) == (1.0, 0.0, [0, levels], [0.0, levels])
    assert stored(1e-9) == (TINY, 0.0, [0], [0.0])
    assert stored(0.75 * TINY) == (TINY, 0.0, [1], [TINY])
    assert stored(65504.0, 0.0)[1:3] == (0.0, [levels, 0])
    scale, bias, codes, (value,) = stored(70000.0)
    assert (bias, codes) == (65504.0, [levels])
    assert abs(value - 70000) <= scale / 2
    assert decode_rows(encode_rows(torch.tensor([[1.0, 2.0, 3.0]]), dtype), 3, dtype).tolist() == [pytest.approx([1, 2, 3], abs=1 / levels)]


@pytest.mark.parametrize("dtype", sorted(STORED_DTYPES))
def test_no_rows_and_blocks_are_stored_as_the_whole_is(dtype: str) -> None:
    rows = mixed_rows(5)
    whole = encode_rows(rows, dtype)
    blocks = [encode_rows(rows[start : start + 7], dtype) for start in range(0, 42, 7)]
    assert blocks[-1].shape[0] == 5
    assert torch.equal(torch.cat([*blocks, encode_rows(rows[:0], dtype)]).view(torch.uint8), whole.view(torch.uint8))
    assert decode_rows(whole[:0], 5, dtype).shape == (0, 5)
    assert whole.numel() * whole.itemsize == stored_bytes(40, 5, dtype)
    assert find_overflow(whole, dtype) is None
    assert find_overflow(whole[:0], dtype) is None


def test_sizes_are_those_of_the_layout() -> None:
    assert [stored_width(dim, "int8") for dim in (1, 4, 5, 64, 128)] == [8, 8, 12, 68, 132]
    assert [stored_width(dim, "int4") for dim in (1, 8, 9, 64, 128)] == [8, 8, 12, 36, 68]
    shares = {dtype: stored_bytes(1000, 64, dtype) / stored_bytes(1000, 64, "fp32") for dtype in STORED_DTYPES}
    assert shares == {"fp32": 1, "fp16": 0.5, "bf16": 0.5, "int8": 68 / 256, "int4": 36 / 256}


@pytest.mark.parametrize(("dtype", "torch_dtype"), [("fp32", torch.float32), ("fp16", torch.float16), ("bf16", torch.bfloat16)])
def test_other_types_are_torchs_own(dtype: str, torch_dtype: torch.dtype) -> None:
    rows = mixed_rows(3)
    assert torch.equal(encode_rows(rows, dtype), rows.to(torch_dtype))
    assert torch.equal(decode_rows(rows.to(torch_dtype), 3, dtype), rows.to(torch_dtype).float())


@pytest.mark.parametrize("dtype", QUANTIZED)
@pytest.mark.parametrize("trained", [torch.float16, torch.bfloat16])
def test_half_rows_are_stored_as_their_float32_values(dtype: str, trained: torch.dtype) -> None:
    rows = mixed_rows(6).to(trained)
    assert torch.equal(encode_rows(rows, dtype), encode_rows(rows.float(), dtype))


@pytest.mark.parametrize(
    ("dtype", "row", "fits"),
    [
        ("fp16", [65519.0, 0.0], True),
        ("fp16", [0.0, 65520.0], False),
        ("bf16", [3.3e38, 0.0], True),
        ("bf16", [3.4e38, 0.0], False),
        ("int8", [-65504.0, 65504.0 * 254], True),
        ("int8", [-65505.0, 0.0], False),
        ("int8", [0.0, 65504.0 * 255.5], False),
        ("int8", [-3e38, 3e38], False),
        ("int4", [0.0, 65504.0 * 15], True),
        ("int4", [0.0, 65504.0 * 15.1], False),
    ],
)
def test_rows_beyond_a_type_are_found(dtype: str, row: list[float], fits: bool) -> None:
    rows = torch.tensor([[1.0, 2.0], [3.0, 3.0], row, row])
    stored = encode_rows(rows, dtype)
    assert find_overflow(stored, dtype) == (None if fits else 2)
    if fits and dtype in BITS:
        scale = split_rows(stored, 2, dtype)[0][2].item()
        assert (decode_rows(stored, 2, dtype)[2].double() - rows[2].double()).abs().max() <= scale * 0.501


# --- fbgemm ----------------------------------------------------------------------------------------------------------


def _fbgemm_tables(stored: Sequence[tuple[Tensor, int]], dtype: str, pooling: str) -> Any:
    """The quantised tables of fbgemm on the CPU, holding these bytes; an odd dim of int4 is one wider there."""
    from fbgemm_gpu.split_embedding_configs import SparseType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
    from fbgemm_gpu.split_table_batched_embeddings_ops_inference import IntNBitTableBatchedEmbeddingBagsCodegen

    kind = SparseType.INT8 if dtype == "int8" else SparseType.INT4
    specs = [("", rows.shape[0], dim + dim % 2 * (dtype == "int4"), kind, EmbeddingLocation.HOST) for rows, dim in stored]
    tables = IntNBitTableBatchedEmbeddingBagsCodegen(
        specs, device="cpu", pooling_mode=PoolingMode[pooling], output_dtype=SparseType.FP32, row_alignment=4
    )
    tables.initialize_weights()
    for (weights, _), (rows, _) in zip(tables.split_embedding_weights(split_scale_shifts=False), stored, strict=True):
        weights.copy_(rows)
    return tables


@pytest.mark.parametrize("dtype", QUANTIZED)
@pytest.mark.parametrize(("pooling", "weighted"), [("SUM", False), ("MEAN", False), ("SUM", True)])
def test_fbgemm_pools_the_same_bytes_to_the_same_vectors(dtype: str, pooling: str, weighted: bool) -> None:
    dims, num_rows, num_bags = (4, 8, 3, 16, 1, 6, 33), 40, 9
    draw = np.random.default_rng(7)
    stored = [(encode_rows(mixed_rows(dim, seed=dim).clamp(-50, 50), dtype), dim) for dim in dims]
    lengths = draw.integers(0, 5, len(dims) * num_bags)
    lengths[:4] = 0
    ids = draw.integers(0, num_rows, lengths.sum())
    weights = draw.normal(1, 0.5, ids.size).astype(np.float32) if weighted else None
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    tables = _fbgemm_tables(stored, dtype, pooling)
    found = tables(
        torch.from_numpy(ids).int(), torch.from_numpy(offsets).int(), per_sample_weights=None if weights is None else torch.from_numpy(weights)
    )
    start = 0
    for table, (rows, dim) in enumerate(stored):
        vectors = decode_rows(rows, dim, dtype).double().numpy()
        for bag in range(num_bags):
            first, end = offsets[table * num_bags + bag], offsets[table * num_bags + bag + 1]
            wanted = np.zeros(dim)
            for place in range(first, end):
                wanted += vectors[ids[place]] * (1.0 if weights is None else float(weights[place]))
            if pooling == "MEAN":
                wanted /= max(1, end - first)
            np.testing.assert_allclose(found[bag, start : start + dim].numpy(), wanted, rtol=1e-5, atol=2e-5)
        start += dim + dim % 2 * (dtype == "int4")


@pytest.mark.parametrize("dtype", QUANTIZED)
@pytest.mark.parametrize("dim", [4, 8, 64])
def test_fbgemm_reads_the_same_numbers_and_rounds_no_better(dtype: str, dim: int) -> None:
    """Its operators keep scale and bias at the end of a row."""
    import fbgemm_gpu.sparse_ops  # noqa: F401 - registers the operators

    rows = mixed_rows(dim, seed=3)
    used = 4 + dim * BITS[dtype] // 8
    stored = encode_rows(rows, dtype)[:, :used]
    at_the_end = torch.cat([stored[:, 4:], stored[:, :4]], dim=1).contiguous()
    ours = decode_rows(encode_rows(rows, dtype), dim, dtype)
    assert torch.equal(torch.ops.fbgemm.FusedNBitRowwiseQuantizedSBHalfToFloat(at_the_end, BITS[dtype]), ours)
    theirs = torch.ops.fbgemm.FusedNBitRowwiseQuantizedSBHalfToFloat(
        torch.ops.fbgemm.FloatToFusedNBitRowwiseQuantizedSBHalf(rows, BITS[dtype]), BITS[dtype]
    )
    gaps = [
        math.sqrt(float((found.double() - rows.double()).square().div(rows.double().square().sum(1, True).clamp(min=1e-30)).mean()))
        for found in (ours, theirs)
    ]
    assert gaps[0] <= gaps[1] * 1.01
