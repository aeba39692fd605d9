"""Whole numbers and decimal text, both ways, for many at once."""

import numpy as np
import numpy.typing as npt

from emberline.encoding.texts import Bools, Bytes, Ints, Texts

_MOST_DIGITS = 20
_MOST_NUMBER_BYTES = 64
_CHUNK = 10_000
_ZERO, _NINE, _MINUS = 48, 57, 45
_FOUR_DIGITS = (np.arange(_CHUNK)[:, None] // np.array([1000, 100, 10, 1]) % 10 + _ZERO).astype(np.uint8)
_POWERS = np.array([10**exponent for exponent in range(_MOST_DIGITS)], dtype=np.uint64)
_NUMBER_BYTES = np.isin(np.arange(256), np.frombuffer(b"0123456789+-.eE", dtype=np.uint8))


def _magnitude(values: Ints) -> npt.NDArray[np.uint64]:
    """Absolute values as uint64: that of -2**63 fits too."""
    bits = values.view(np.uint64)
    return np.where(values < 0, ~bits + np.uint64(1), bits)


def integers_to_texts(values: Ints) -> Texts:
    """The decimal text of each int64, as `str` gives it."""
    rest = _magnitude(values)
    chunks = max(-(-len(str(int(rest.max(initial=0)))) // 4), 1)
    width = 4 * chunks + 1
    buffer: Bytes = np.empty((values.size, width), dtype=np.uint8)
    sizes = np.searchsorted(_POWERS[1:], rest, side="right") + 1
    for chunk in range(chunks, 0, -1):
        above = rest // np.uint64(_CHUNK)
        buffer[:, 4 * chunk - 3 : 4 * chunk + 1] = _FOUR_DIGITS[(rest - above * np.uint64(_CHUNK)).astype(np.int64)]
        rest = above
    negative = np.flatnonzero(values < 0)
    sizes[negative] += 1
    ends = np.arange(1, values.size + 1, dtype=np.int64) * width
    starts = ends - sizes
    flat = buffer.reshape(-1)
    flat[starts[negative]] = _MINUS
    return Texts(flat, starts, ends)


def _padded(texts: Texts, width: int) -> npt.NDArray[np.uint8]:
    """uint8 [N, width]: each text at the left, zero bytes after it; no text is longer than `width`."""
    out: Bytes = np.zeros((len(texts), width), dtype=np.uint8)
    sizes = texts.sizes
    for column in range(width):
        there = sizes > column
        if there.all():
            out[:, column] = texts.buffer[texts.starts + column]
        else:
            index = np.flatnonzero(there)
            out[index, column] = texts.buffer[texts.starts[index] + column]
    return out


def texts_to_integers(texts: Texts) -> tuple[Ints, Bools]:
    """The int64 of each text that is canonical decimal: what `str` would print, so no plus, no leading zero, not "-0", in range.

    Returns:
        int64 [N] (0 where the text isn't canonical), and bool [N]: whether it is.
    """
    values, good = np.zeros(len(texts), dtype=np.int64), np.zeros(len(texts), dtype=np.bool_)
    sizes = texts.sizes
    fits = np.flatnonzero((sizes > 0) & (sizes <= _MOST_DIGITS))
    if not fits.size:
        return values, good
    first, last = texts.buffer[texts.starts[fits]], texts.buffer[texts.ends[fits] - 1]
    fits = fits[((first == _MINUS) | ((first >= _ZERO) & (first <= _NINE))) & (last >= _ZERO) & (last <= _NINE)]
    if not fits.size:
        return values, good
    negative = texts.buffer[texts.starts[fits]] == _MINUS
    numbers = Texts(texts.buffer, texts.starts[fits] + negative, texts.ends[fits])
    total, digits_only = _sum_digits(numbers)
    lead = numbers.buffer[np.minimum(numbers.starts, numbers.ends - 1)]
    canonical = digits_only & (numbers.sizes < _MOST_DIGITS) & ((lead != _ZERO) | ((numbers.sizes == 1) & ~negative))
    limit = np.where(negative, np.uint64(2**63), np.uint64(2**63 - 1))
    canonical &= total <= limit
    signed = np.where(negative, ~total + np.uint64(1), total).view(np.int64)
    good[fits] = canonical
    values[fits] = np.where(canonical, signed, 0)
    return values, good


def _sum_digits(texts: Texts) -> tuple[npt.NDArray[np.uint64], Bools]:
    """The number that each text's digits spell, and whether all its bytes are digits. At most 19 digits count: more wrap."""
    sizes = texts.sizes
    width = int(sizes.max())
    digits = _padded(texts, width) - np.uint8(_ZERO)
    inside = np.arange(width) < sizes[:, None]
    digits_only = ((digits <= 9) | ~inside).all(axis=1) & (sizes > 0)
    total = np.zeros(len(texts), dtype=np.uint64)
    for column in range(width):
        total = np.where(inside[:, column], total * np.uint64(10) + digits[:, column], total)
    return total, digits_only


def texts_to_floats(texts: Texts) -> tuple[npt.NDArray[np.float64], Bools]:
    """The float64 nearest to each text that is a decimal number of at most 64 characters, such as `-12`, `.5` or `1e-3`.

    Returns:
        float64 [N] (NaN where it isn't a number), and bool [N]: whether it is. Words such as `nan` and `inf` are no numbers.
    """
    values, good = np.full(len(texts), np.nan), np.zeros(len(texts), dtype=np.bool_)
    fits = np.flatnonzero((texts.sizes > 0) & (texts.sizes <= _MOST_NUMBER_BYTES))
    if not fits.size:
        return values, good
    short = texts.take(fits)
    padded = _padded(short, int(short.sizes.max()))
    allowed = (_NUMBER_BYTES[padded] | (np.arange(padded.shape[1]) >= short.sizes[:, None])).all(axis=1)
    fits, padded = fits[allowed], padded[allowed]
    words = np.ascontiguousarray(padded).view(f"S{padded.shape[1]}")[:, 0]
    try:
        values[fits] = words.astype(np.float64)
        good[fits] = True
    except ValueError:
        for index, word in zip(fits.tolist(), words.tolist(), strict=True):
            number = _float_or_none(word)
            if number is not None:
                values[index], good[index] = number, True
    return values, good


def _float_or_none(word: bytes) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None
