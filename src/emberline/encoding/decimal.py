"""Whole numbers and decimal text, both ways, for many at once."""

import re

import numpy as np
import numpy.typing as npt

from emberline.encoding.texts import Bools, Bytes, Ints, Texts, Words, find_last, words_at, words_before

_FEW = 32
_MOST_DIGITS = 19
_MOST_NUMBER_BYTES = 64
_CHUNK = 10_000
_ZERO, _NINE, _MINUS = 48, 57, 45
_FOUR_DIGITS = (np.arange(_CHUNK)[:, None] // np.array([1000, 100, 10, 1]) % 10 + _ZERO).astype(np.uint8).view(np.uint32)[:, 0]
_CANONICAL = re.compile(rb"0|-?[1-9][0-9]{0,18}")
_NUMBER = re.compile(rb"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|nan|NaN|NAN")
_EXACT_DIGITS = 15
_POWERS = np.array([10**exponent for exponent in range(_EXACT_DIGITS + 1)], dtype=np.uint64)
Floats = npt.NDArray[np.float64]


def _u(value: int) -> np.uint64:
    return np.uint64(value)


_ZEROS, _HIGH_NIBBLES, _SIXES, _THREES = _u(0x3030303030303030), _u(0xF0F0F0F0F0F0F0F0), _u(0x0606060606060606), _u(0x3333333333333333)
_PAIRS, _TOP_PAIRS, _LOW_PAIRS = _u(0x000000FF000000FF), _u(0x000F424000000064), _u(0x0000271000000001)


def integers_to_texts(values: Ints) -> Texts:
    """The decimal text of each int64, as `str` gives it."""
    if values.size <= _FEW:
        return Texts.from_strings(list(map(str, values.tolist())))
    negative = np.flatnonzero(values < 0)
    bits = values.view(np.uint64)
    rest = np.where(values < 0, ~bits + _u(1), bits) if negative.size else bits
    digits = len(str(int(rest.max())))
    sizes = np.ones(values.size, dtype=np.int64)
    for more in range(1, digits):
        sizes += rest >= _u(10**more)
    chunks = -(-digits // 4)
    words = np.empty((values.size, chunks + 1), dtype=np.uint32)
    for chunk in range(chunks, 0, -1):
        above = rest // _u(_CHUNK)
        words[:, chunk] = _FOUR_DIGITS[(rest - above * _u(_CHUNK)).view(np.int64)]
        rest = above
    sizes[negative] += 1
    ends = np.arange(1, values.size + 1, dtype=np.int64) * words.itemsize * (chunks + 1)
    starts = ends - sizes
    buffer: Bytes = words.view(np.uint8).reshape(-1)
    buffer[starts[negative]] = _MINUS
    return Texts(buffer, starts, ends)


def texts_to_integers(texts: Texts) -> tuple[Ints, Bools]:
    """The int64 of each text that is canonical decimal: what `str` would print, so no plus, no leading zero, not "-0", in range.

    Returns:
        int64 [N] (0 where the text isn't canonical), and bool [N]: whether it is.
    """
    if len(texts) <= _FEW:
        return _few_integers(texts)
    values, good = np.zeros(len(texts), dtype=np.int64), np.zeros(len(texts), dtype=np.bool_)
    sizes = texts.sizes
    fits = np.flatnonzero((sizes > 0) & (sizes <= _MOST_DIGITS + 1))
    if not fits.size:
        return values, good
    short = texts if fits.size == len(texts) else texts.take(fits)
    first = short.buffer[short.starts]
    negative = first == _MINUS
    starts = short.starts + negative
    sizes = short.ends - starts
    total, canonical = _sum_digits(short.buffer, short.ends, sizes)
    if negative.any():
        first = short.buffer[np.minimum(starts, short.ends - 1)]
    canonical &= (sizes > 0) & (sizes <= _MOST_DIGITS) & ((first != _ZERO) | ((sizes == 1) & ~negative))
    canonical &= total <= np.where(negative, _u(2**63), _u(2**63 - 1))
    total = np.where(negative, ~total + _u(1), total)
    good[fits] = canonical
    values[fits] = np.where(canonical, total.view(np.int64), 0)
    return values, good


def _few_integers(texts: Texts) -> tuple[Ints, Bools]:
    spans = zip(texts.starts.tolist(), texts.ends.tolist(), strict=True)
    found = [_integer_or_none(texts.buffer[start:end].tobytes()) for start, end in spans]
    return np.array([value or 0 for value in found], dtype=np.int64), np.array([value is not None for value in found], dtype=np.bool_)


def _integer_or_none(text: bytes) -> int | None:
    if not _CANONICAL.fullmatch(text):
        return None
    value = int(text)
    return value if -(2**63) <= value < 2**63 else None


def _sum_digits(buffer: Bytes, ends: Ints, sizes: Ints) -> tuple[Words, Bools]:
    """The number that the last `sizes` bytes (at most 20) before each end spell, and whether they are all digits. Over 19 digits wrap.

    Eight digits at a time, as bytes of one word: https://lemire.me/blog/2022/01/21/swar-explained-parsing-eight-digits/
    """
    total, digits_only = np.zeros(ends.size, dtype=np.uint64), np.ones(ends.size, dtype=np.bool_)
    for number in range(-(-int(sizes.max(initial=0)) // 8)):
        unused = (64 - 8 * np.clip(sizes - 8 * number, 0, 8)).view(np.uint64)
        word = ((words_before(buffer, ends - 8 * number) >> unused) << unused) | (_ZEROS & ~(~_u(0) << unused))
        digits_only &= ((word & _HIGH_NIBBLES) | (((word + _SIXES) & _HIGH_NIBBLES) >> _u(4))) == _THREES
        word -= _ZEROS
        word = word * _u(10) + (word >> _u(8))
        word = ((word & _PAIRS) * _TOP_PAIRS + ((word >> _u(16)) & _PAIRS) * _LOW_PAIRS) >> _u(32)
        total += word * _u(10 ** (8 * number))
    return total, digits_only


def _padded(texts: Texts, width: int) -> Bytes:
    """Each text at the left of its row, zero bytes after it: uint8 [N, width]. No text is longer than `width`, a multiple of 8."""
    sizes = texts.sizes
    words = np.zeros((len(texts), width // 8), dtype="<u8")
    buffer = texts.buffer if texts.buffer.shape[0] >= 8 else np.concatenate([texts.buffer, np.zeros(8, dtype=np.uint8)])
    last = buffer.shape[0] - 8
    for number in range(width // 8):
        index = np.flatnonzero(sizes > 8 * number)
        at = texts.starts[index] + 8 * number
        late = np.maximum(at - last, 0)
        word = words_at(buffer, 8)[at - late] >> (8 * late).view(np.uint64)
        unused = (64 - 8 * np.minimum(sizes[index] - 8 * number, 8)).view(np.uint64)
        words[index, number] = (word << unused) >> unused
    return words.view(np.uint8)


def texts_to_floats(texts: Texts) -> tuple[Floats, Bools]:
    """The float64 nearest to each text that is a decimal number of at most 64 characters, such as `-12`, `.5` or `1e-3`, or `nan`.

    Returns:
        float64 [N] (NaN where it isn't a number), and bool [N]: whether it is. No spaces, no infinity.
    """
    if len(texts) <= _FEW:
        spans = zip(texts.starts.tolist(), texts.ends.tolist(), strict=True)
        return _parse_floats([texts.buffer[start:end].tobytes() for start, end in spans])
    values, good = _short_floats(texts)
    rest = np.flatnonzero(~good & (texts.sizes > 0) & (texts.sizes <= _MOST_NUMBER_BYTES))
    if rest.size:
        hard = texts.take(rest)
        padded = _padded(hard, -(-int(hard.sizes.max()) // 8) * 8)
        words = padded.view(f"S{padded.shape[1]}")[:, 0]
        whole = np.flatnonzero((padded != 0).sum(axis=1) == hard.sizes)
        values[rest[whole]], good[rest[whole]] = _parse_floats(words[whole].tolist())
    return values, good


def _short_floats(texts: Texts) -> tuple[Floats, Bools]:
    """Plain decimals such as `-12.5` with at most 15 digits in all: their digits and the power of ten are exact, so one division rounds right."""
    texts, dots = find_last(texts, ".")
    buffer, ends = texts.buffer, texts.ends
    if not buffer.shape[0]:
        return np.full(len(texts), np.nan), np.zeros(len(texts), dtype=np.bool_)
    negative = buffer[np.minimum(texts.starts, buffer.shape[0] - 1)] == _MINUS
    dots = np.where(dots < 0, ends, dots)
    sizes = np.maximum(dots - texts.starts - negative, 0)
    decimals = np.maximum(ends - dots - 1, 0)
    good = (sizes + decimals > 0) & (sizes + decimals <= _EXACT_DIGITS) & (ends - texts.starts > negative)
    sizes, decimals = np.where(good, sizes, 0), np.where(good, decimals, 0)
    whole, whole_digits = _sum_digits(buffer, dots, sizes)
    part, part_digits = _sum_digits(buffer, ends, decimals)
    good &= whole_digits & part_digits
    power = _POWERS[decimals]
    values = (whole * power + part).astype(np.float64) / power.astype(np.float64)
    return np.where(good, np.where(negative, -values, values), np.nan), good


def _parse_floats(words: list[bytes]) -> tuple[Floats, Bools]:
    found = [float(word) if len(word) <= _MOST_NUMBER_BYTES and _NUMBER.fullmatch(word) else None for word in words]
    values = np.array([np.nan if value is None else value for value in found], dtype=np.float64)
    return values, np.array([value is not None for value in found], dtype=np.bool_)
