"""The kernel of `fused.py` in the Triton language: from ids, raw or not, to pooled rows, for many lookups in one launch.

Letters: B bags of each feature, F features, N ids of all, L parts, M a program's bags, W its columns, U its ids of a bag at a time.

One program sums M bags of one part: up to W columns of one lookup. Of each of its bags it takes U ids at a time, finds their rows, and asks for all
M * U rows before it adds the first: memory answers them together. A row is read along its columns, so that neighbours in a warp read neighbours in
memory, 16 bytes each where rows are aligned. A bag is summed in float32, id after id, by fused multiply-adds, as `kernel.c` does: its sum depends on
nothing but its own ids and weights.

Importing this needs the package `triton`. Its functions have no types: Triton compiles them.
"""
# mypy: disable-error-code="assignment, import-not-found, import-untyped, no-untyped-def, untyped-decorator, no-untyped-call"

import triton
import triton.language as tl

from emberline.routing import FACTORS
from emberline.serving.remap.lines import FACTOR, NUMBERS, SLOTS

FP32, FP16, BF16, INT8, INT4 = 0, 1, 2, 3, 4
"""Number types; see `quantized.py`."""
SAME, BY_RANGE, ROUTED, MIXED = 0, 1, 2, 3
"""Where an id without a row of its own finds its fallback: all read one row; by ranges; or by `emberline.routing`."""
DESCRIBED = 20
"""int64 numbers that describe a part, in the order in which `pool_bags` reads them."""
_FP32, _FP16, _BF16, _INT8, _INT4 = tl.constexpr(FP32), tl.constexpr(FP16), tl.constexpr(BF16), tl.constexpr(INT8), tl.constexpr(INT4)
_BY_RANGE, _MIXED, _DESCRIBED = tl.constexpr(BY_RANGE), tl.constexpr(MIXED), tl.constexpr(DESCRIBED)
_SLOTS, _NUMBERS, _FACTOR = tl.constexpr(SLOTS), tl.constexpr(NUMBERS), tl.constexpr(FACTOR)
_MIX_0, _MIX_1 = tl.constexpr(FACTORS[0]), tl.constexpr(FACTORS[1])
_LOW_HALF, _BELOW_SIGN, _SIGN = tl.constexpr(2**32 - 1), tl.constexpr(2**63 - 1), tl.constexpr(-(2**63))


@triton.jit
def _numbers(part, first: tl.constexpr, end: tl.constexpr):
    """Some of the int64 numbers that describe a part."""
    found = ()
    for place in tl.static_range(first, end):
        found += (tl.load(part + place),)
    return found


@triton.jit
def _read_lines(lines, places, ids, wanted):
    """The row of each id [M] in one line of its own, or -1; and the line's reach. See `lines.py`."""
    lane = tl.arange(0, _NUMBERS)[None, :]
    numbers = tl.multiple_of(lines.to(tl.pointer_type(tl.int64)), 64) + places[:, None] * _NUMBERS + lane
    halves = lines.to(tl.pointer_type(tl.int32)) + places[:, None] * (2 * _NUMBERS) + 2 * _SLOTS + lane
    found = tl.load(numbers, mask=wanted[:, None], other=0)
    rows = tl.load(halves, mask=wanted[:, None] & (lane <= _SLOTS), other=-1)
    row = tl.max(tl.where((found == ids[:, None]) & (lane < _SLOTS), rows, -1), axis=1)
    reach = tl.max(tl.where(lane == _SLOTS, -1 - rows, 0), axis=1)
    return row, reach


@triton.jit
def _own_rows(lines, num_homes, seed, ids, wanted):
    """The row of each id [M], or -1, as `lines.find` has it."""
    mixed = ids ^ seed
    mixed = (mixed ^ ((mixed >> 32) & _LOW_HALF)) * _FACTOR
    mixed = (mixed ^ ((mixed >> 32) & _LOW_HALF)) * _FACTOR
    homes = (((mixed >> 32) & _LOW_HALF) * num_homes) >> 32
    rows, reach = _read_lines(lines, homes, ids, wanted)
    step = 1
    left = wanted & (rows < 0) & (reach >= step)
    while tl.max(left.to(tl.int32), axis=0) > 0:
        further, _ = _read_lines(lines, homes + step, ids, left)
        rows = tl.where(left, further, rows)
        step += 1
        left = wanted & (rows < 0) & (reach >= step)
    return rows


@triton.jit
def _owners(ids, mode, num_parts, size, beyond, remainder):
    """The part of each id, as `owner_of` of `emberline.routing` has it; the last three numbers are reckoned from `num_parts` before."""
    places = ids
    if mode == _MIXED:
        z = (ids & _BELOW_SIGN) ^ _BELOW_SIGN
        z = ((z ^ (z >> 30)) * _MIX_0) & _BELOW_SIGN
        z = ((z ^ (z >> 27)) * _MIX_1) & _BELOW_SIGN
        places = (ids & _SIGN) | ((z ^ (z >> 31)) ^ _BELOW_SIGN)
    low = places & _BELOW_SIGN
    by_remainder = (low % num_parts + remainder) % num_parts
    negative = tl.where(low < beyond, num_parts - 1, by_remainder)
    return tl.where(places < 0, negative, (low // size) % num_parts)


@triton.jit
def _fallback_rows(part, ids, wanted):
    """The row of each id [M] that has none of its own, as `FallbackRows` has it."""
    first, mode, num_parts, starts, rows, size, beyond, remainder = _numbers(part, 12, 20)
    found = ids * 0 + first
    if mode > 0:
        owners = ids * 0
        if mode == _BY_RANGE:
            begins = starts.to(tl.pointer_type(tl.int64))
            for place in range(1, num_parts):
                owners += tl.where(tl.load(begins + place) <= ids, 1, 0)
        else:
            owners = _owners(ids, mode, num_parts, size, beyond, remainder)
        found = tl.load(rows.to(tl.pointer_type(tl.int64)) + owners, mask=wanted, other=0)
    return found


@triton.jit
def _rows_of_raw(part, ids, places, is_id, rows_out, known_out, num_ids):
    """The row of each id [M, U] at these places, by the map of the part where it has one; and written where the part says so."""
    rows = tl.load(ids + places, mask=is_id, other=0)
    lines, slot, num_homes, seed = _numbers(part, 8, 12)
    if lines != 0:
        raw, wanted = tl.ravel(rows), tl.ravel(is_id)
        found = _own_rows(lines, num_homes, seed, raw, wanted)
        told = _fallback_rows(part, raw, wanted & (found < 0))
        rows = tl.reshape(tl.where(found < 0, told, found.to(tl.int64)), rows.shape)
        if slot >= 0:
            tl.store(rows_out + slot * num_ids + places, rows, mask=is_id)
            tl.store(known_out + slot * num_ids + places, tl.reshape(found >= 0, rows.shape).to(tl.uint8), mask=is_id)
    return rows


@triton.jit
def _header(table, starts, wanted):
    """Scale and bias of the rows that start at these bytes of a table, [M]: float32 [M] each."""
    word = tl.load(table.to(tl.pointer_type(tl.int32)) + starts // 4, mask=wanted, other=0)
    scale = (word & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    bias = ((word >> 16) & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    return scale, bias


@triton.jit
def _read_row(table, rows, wanted, kind: tl.constexpr, columns: tl.constexpr, aligned: tl.constexpr):
    """What is stored of the row of each bag [M] that is wanted, [M, W], and its scale and bias, of types that have them."""
    table, width, at, dim = table
    column, start = tl.arange(0, columns)[None, :], rows * width
    first, scale, bias = start + at, wanted, wanted
    if kind >= _INT8:
        scale, bias = _header(table, start, wanted)
        numbers = tl.multiple_of(table.to(tl.pointer_type(tl.uint8)), 4)
        first = tl.multiple_of(first, 4)
        codes = dim if kind == _INT8 else (dim + 1) // 2
        filled = (codes + 3) // 4 * 4  # rows are filled up to 4 bytes
    else:
        filled = dim
        if kind == _FP32:
            numbers = table.to(tl.pointer_type(tl.float32))
        elif kind == _FP16:
            numbers = table.to(tl.pointer_type(tl.float16))
        else:
            numbers = table.to(tl.pointer_type(tl.bfloat16))
        if aligned:  # so that rows may be read on to 16 bytes
            together: tl.constexpr = 4 if kind == _FP32 else 8
            numbers, first = tl.multiple_of(numbers, 16), tl.multiple_of(first, together)
            filled = (dim + together - 1) // together * together
    return tl.load(numbers + first[:, None] + column, mask=wanted[:, None] & (column < filled), other=0), scale, bias


@triton.jit
def _add_row(sums, high_sums, stored, scale, bias, factors, kind: tl.constexpr):
    """Add stored rows [M, W], times factors [M], to the sums of their bags; of `INT4` even columns to `sums`, odd ones to `high_sums`."""
    factors = factors[:, None]
    if kind == _INT8:
        sums = tl.fma(factors, tl.fma(scale[:, None], stored.to(tl.float32), bias[:, None]), sums)
    elif kind == _INT4:
        sums = tl.fma(factors, tl.fma(scale[:, None], (stored & 15).to(tl.float32), bias[:, None]), sums)
        high_sums = tl.fma(factors, tl.fma(scale[:, None], (stored >> 4).to(tl.float32), bias[:, None]), high_sums)
    else:
        sums = tl.fma(factors, stored.to(tl.float32), sums)
    return sums, high_sums


@triton.jit
def _row_at(ids, start, rows, turn: tl.constexpr, done, lengths, has_maps: tl.constexpr):
    """The row of one id of each bag [M], and whether there is such an id."""
    wanted = (done + turn) < lengths
    if has_maps:
        row = tl.sum(tl.where(tl.arange(0, rows.shape[1])[None, :] == turn, rows, 0), axis=1)
    else:
        row = tl.load(ids + start + (done + turn), mask=wanted, other=0)
    return row, wanted


@triton.jit
def _read_rows(
    table,
    ids,
    start,
    rows,
    done,
    lengths,
    kind: tl.constexpr,
    columns: tl.constexpr,
    unroll: tl.constexpr,
    has_maps: tl.constexpr,
    aligned: tl.constexpr,
):
    """Of U ids of each bag [M]: what `_read_row` has of their rows, and which there are.

    All are asked for before the first is added: a program waits in the order of its instructions.
    """
    read = ()
    for turn in tl.static_range(unroll):
        row, wanted = _row_at(ids, start, rows, turn, done, lengths, has_maps)
        stored, scale, bias = _read_row(table, row, wanted, kind, columns, aligned)
        read += ((stored, scale, bias, wanted),)
    return read


@triton.jit
def _factors_at(weights, start, place, wanted, factors, is_weighted, has_weights: tl.constexpr):
    """What a row of each bag counts in its sum: float32 [M]."""
    given = tl.full(wanted.shape, 1.0, tl.float32)
    if has_weights:
        given = tl.load(weights + start + place, mask=wanted & (is_weighted > 0), other=1.0)
    return tl.where(wanted, given.to(tl.float64) * factors, 0.0).to(tl.float32)


@triton.jit
def _factors(weights, start, lengths, longest):
    """1 over the sum of each bag's weights in float64 [M], 0 where that is 0."""
    sums = tl.zeros_like(lengths).to(tl.float64)
    for place in range(0, longest):
        sums += tl.load(weights + start + place, mask=place < lengths, other=0.0).to(tl.float64)
    return tl.where(sums == 0, 0.0, 1.0 / tl.where(sums == 0, 1.0, sums))


@triton.jit
def _spans(offsets, ends, feature, bag, is_bag, num_bags):
    """Where the ids of each bag [M] of a feature start, and how many it has: int64 [M] each."""
    own = offsets + feature * (num_bags + 1)
    start = tl.load(own + bag, mask=is_bag, other=0)
    lengths = tl.load(own + bag + 1, mask=is_bag, other=0) - start
    return start + (tl.load(ends + feature) - tl.load(own + num_bags)), lengths


_ARGUMENTS = ("ids", "offsets", "ends", "weights", "parts", "pooled", "rows_out", "known_out", "num_bags", "num_ids", "width")
"""Of which no kernel of its own is made for each value or alignment: none is to be compiled while a request waits."""


@triton.jit(do_not_specialize=_ARGUMENTS, do_not_specialize_on_alignment=_ARGUMENTS)
def pool_bags(
    ids,
    offsets,
    ends,
    weights,
    parts,
    pooled,
    rows_out,
    known_out,
    num_bags,
    num_ids,
    width,
    kind: tl.constexpr,
    bags: tl.constexpr,
    columns: tl.constexpr,
    unroll: tl.constexpr,
    has_maps: tl.constexpr,
    has_weights: tl.constexpr,
    aligned: tl.constexpr,
    aligned_out: tl.constexpr,
):
    """Pool the bags of some parts, whose tables are all of one number type.

    Args:
        ids: int64 [N], feature after feature, each bag after bag.
        offsets: int64 [F, B + 1] from 0 in each feature.
        ends: int64 [F], where each feature's ids end.
        weights: float32 [N]; not read unless `has_weights`.
        parts: int64 [L, DESCRIBED].
        pooled: float32 [B, width], written where the parts' columns are.
        rows_out: int64 [S, N], the row of each id, in the S of each part that has one; not written unless `has_maps`.
        known_out: bytes [S, N], whether that row is the id's own.
        num_bags: B.
        num_ids: N.
        width: of `pooled`.
        kind: the number type.
        bags: M, a power of 2.
        columns: W, a power of 2; of `INT4` the bytes that hold twice as many.
        unroll: U, 1 or 4.
        has_maps: whether some part's ids are raw.
        has_weights: whether weighted parts have weights; else all are 1.
        aligned: rows of numbers of their own begin at 16 bytes each, in all parts.
        aligned_out: columns of all parts and `width` are multiples of 4, and `pooled` begins at 16 bytes.
    """
    part = parts + tl.program_id(1) * _DESCRIBED
    feature, table, row_width, at, dim, out_column, is_mean, is_weighted = _numbers(part, 0, 8)
    dim = dim.to(tl.int32)
    bag = tl.program_id(0).to(tl.int64) * bags + tl.arange(0, bags)
    is_bag = bag < num_bags
    start, lengths = _spans(offsets, ends, feature, bag, is_bag, num_bags)
    longest = tl.max(lengths, axis=0).to(tl.int32)
    factors = tl.full((bags,), 1.0, tl.float64)
    if (is_mean > 0) & (is_weighted > 0):
        factors = 1.0 / tl.maximum(lengths, 1).to(tl.float64)
        if has_weights:
            factors = _factors(weights, start, lengths, longest)
    sums = tl.zeros((bags, columns), tl.float32)
    high_sums = tl.zeros((bags, columns if kind == _INT4 else 1), tl.float32)
    table = table, row_width, at.to(tl.int32), dim
    for done in range(0, longest, unroll):
        rows = tl.zeros((bags, unroll), tl.int64)
        if has_maps:
            place = done + tl.arange(0, unroll)[None, :]
            rows = _rows_of_raw(part, ids, start[:, None] + place, place < lengths[:, None], rows_out, known_out, num_ids)
        read = _read_rows(table, ids, start, rows, done, lengths, kind, columns, unroll, has_maps, aligned)
        for turn in tl.static_range(unroll):
            stored, scale, bias, wanted = read[turn]
            factor = _factors_at(weights, start, done + turn, wanted, factors, is_weighted, has_weights)
            sums, high_sums = _add_row(sums, high_sums, stored, scale, bias, factor, kind)
    if (is_mean > 0) & (is_weighted == 0):
        divisor = tl.maximum(lengths, 1).to(tl.float32)[:, None]
        sums, high_sums = tl.div_rn(sums, divisor + tl.zeros_like(sums)), tl.div_rn(high_sums, divisor + tl.zeros_like(high_sums))
    if kind == _INT4:
        sums = tl.interleave(sums, high_sums)
    column, first = tl.arange(0, sums.shape[1])[None, :], bag * width + out_column
    if aligned_out:
        first, dim, pooled = tl.multiple_of(first, 4), tl.multiple_of(dim, 4), tl.multiple_of(pooled, 16)
    tl.store(pooled + first[:, None] + column, sums, mask=is_bag[:, None] & (column < dim))


def is_interpreted() -> bool:
    """Whether Triton's interpreter runs kernels, on a CPU: to test their values, not to serve."""
    return not isinstance(pool_bags, triton.JITFunction)
