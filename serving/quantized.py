"""Number types that tables are stored in, and the arithmetic between them and float32.

`fp32`, `fp16` and `bf16` hold each number by itself. `int8` and `int4` hold a row as whole numbers q of 8 or 4 bits, with a scale and a bias of
its own: value = scale * q + bias, reckoned in float32, where scale * q is exact. A row's bytes, which are fbgemm's for table-batched lookups:

    scale  float16 | bias  float16 | dim numbers q of 8 bits, or of 4 bits, two a byte, the first in the low half | zeros up to 4 bytes

The bias is the largest float16 at or below the row's least number, the scale the least float16 by which all of the row can be reached: no
number is further from what is stored than half a scale (fbgemm rounds both to the nearest, and cuts off what cannot be reached).
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

BITS: Mapping[str, int] = {"int8": 8, "int4": 4}
"""The row-wise types, and the bits of a number."""
STORED_DTYPES: Mapping[str, torch.dtype] = {
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "int8": torch.uint8,
    "int4": torch.uint8,
}
"""The type of the tensor that holds a table's rows, by number type."""
_HEADER_BYTES = 4
_ALIGNMENT = 4


def stored_width(dim: int, dtype: str) -> int:
    """Elements of a stored row of `dim` numbers: as many, or the bytes of a row-wise type, a multiple of 4."""
    if dtype not in BITS:
        return dim
    used = _HEADER_BYTES + -(-dim * BITS[dtype] // 8)
    return -(-used // _ALIGNMENT) * _ALIGNMENT


def stored_bytes(rows: int, dim: int, dtype: str) -> int:
    """Bytes of a table's rows."""
    return rows * stored_width(dim, dtype) * STORED_DTYPES[dtype].itemsize


def encode_rows(rows: Tensor, dtype: str) -> Tensor:
    """Rows as they are stored. Each row is looked at by itself, so that blocks of a table give what the whole gives.

    Args:
        rows: finite numbers of any float type, [n, dim], on the CPU.
        dtype: a name of `STORED_DTYPES`.

    Returns:
        [n, stored_width]. Rows that the type cannot hold are no good: `find_overflow` tells.
    """
    if dtype not in BITS:
        return rows.to(STORED_DTYPES[dtype])
    values, levels = rows.float(), 2 ** BITS[dtype] - 1
    least, largest = torch.aminmax(values, dim=1)
    bias = _to_half(least.double(), upwards=False)
    scale = _to_half((largest.double() - bias.double()) / levels, upwards=True)
    divisor = scale.float().masked_fill(scale == 0, torch.inf)
    codes = (values - bias.float().unsqueeze(1)).div_(divisor.unsqueeze(1)).round_().clamp_(0, levels).to(torch.uint8)
    packed = torch.zeros(rows.shape[0], stored_width(rows.shape[1], dtype), dtype=torch.uint8)
    packed[:, :_HEADER_BYTES] = torch.stack([scale, bias], dim=1).view(torch.uint8)
    if BITS[dtype] == 4:
        low, high = codes[:, 0::2], codes[:, 1::2]
        packed[:, _HEADER_BYTES : _HEADER_BYTES + low.shape[1]] = low
        packed[:, _HEADER_BYTES : _HEADER_BYTES + high.shape[1]] |= high << 4
    else:
        packed[:, _HEADER_BYTES : _HEADER_BYTES + codes.shape[1]] = codes
    return packed


def find_overflow(stored: Tensor, dtype: str) -> int | None:
    """The first of some stored rows that holds more than the type can hold; None where all are well."""
    numbers = _headers(stored) if dtype in BITS else stored
    finite = numbers.isfinite()
    return None if bool(finite.all()) else int((~finite.all(dim=1)).nonzero()[0])


def decode_rows(stored: Tensor, dim: int, dtype: str) -> Tensor:
    """The numbers of stored rows [n, stored_width], on whatever device they are: float32 [n, dim]."""
    if dtype not in BITS:
        return stored.float()
    scales, biases, codes = split_rows(stored, dim, dtype)
    return codes.float().mul_(scales.unsqueeze(1)).add_(biases.unsqueeze(1))


def split_rows(stored: Tensor, dim: int, dtype: str) -> tuple[Tensor, Tensor, Tensor]:
    """What rows of a row-wise type hold: scales float32 [n], biases float32 [n], and the whole numbers, uint8 [n, dim]."""
    headers = _headers(stored).float()
    codes = stored[:, _HEADER_BYTES:]
    if BITS[dtype] == 4:
        codes = torch.stack([codes & 15, codes >> 4], dim=2).flatten(1)
    return headers[:, 0], headers[:, 1], codes[:, :dim]


def _headers(stored: Tensor) -> Tensor:
    """Scale and bias of each row: float16 [n, 2]."""
    return stored[:, :_HEADER_BYTES].contiguous().view(torch.float16)


def _to_half(values: Tensor, *, upwards: bool) -> Tensor:
    """The nearest float16 at or above each number of float64 [n], or at or below it; never a negative zero."""
    found = (values + 0.0).half()
    missed = found.double() < values if upwards else found.double() > values
    with np.errstate(over="ignore"):
        found[missed] = torch.from_numpy(np.nextafter(found[missed].numpy(), np.float16(np.inf if upwards else -np.inf)))
    return found
