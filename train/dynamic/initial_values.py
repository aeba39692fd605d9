"""First vectors as numbers that are looked up, not drawn: each depends on the run's seed, the table, the key and the column alone.

So it doesn't matter which rank draws a vector, in which order, or how often: a key that lost its row and comes back begins with the same one.
Only additions, multiplications, divisions and roots are used, which every machine rounds alike.
"""

import hashlib
import math
from typing import Any

import numpy as np

from emberline.train.dynamic.options import ZEROS, DynamicEmbOptions, Initializer, InitializerMode
from emberline.train.dynamic.slots import KERNEL, Spread, compiled_vectors

Numbers = np.ndarray[Any, np.dtype[Any]]
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FACTORS = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_CENTRE = 0.425
"""Within this of a half, the normal distribution's inverse needs no logarithm."""
_NEAR = 5.0
_INVERSE = (
    (  # within the centre: numerator and denominator, lowest power first
        (
            3.3871328727963665,
            133.14166789178438,
            1971.5909503065513,
            13731.69376550946,
            45921.95393154987,
            67265.7709270087,
            33430.57558358813,
            2509.0809287301227,
        ),
        (1.0, 42.31333070160091, 687.1870074920579, 5394.196021424751, 21213.794301586597, 39307.89580009271, 28729.085735721943, 5226.495278852854),
    ),
    (
        (
            1.4234371107496835,
            4.630337846156546,
            5.769497221460691,
            3.6478483247632045,
            1.2704582524523684,
            0.2417807251774506,
            0.022723844989269184,
            0.0007745450142783414,
        ),
        (
            1.0,
            2.053191626637759,
            1.6763848301838038,
            0.6897673349851,
            0.14810397642748008,
            0.015198666563616457,
            0.0005475938084995345,
            1.0507500716444169e-09,
        ),
    ),
    (
        (
            6.657904643501103,
            5.463784911164114,
            1.7848265399172913,
            0.29656057182850487,
            0.026532189526576124,
            0.0012426609473880784,
            2.7115555687434876e-05,
            2.0103343992922881e-07,
        ),
        (
            1.0,
            0.599832206555888,
            0.1369298809227358,
            0.014875361290850615,
            0.0007868691311456133,
            1.8463183175100548e-05,
            1.421511758316446e-07,
            2.0442631033899397e-15,
        ),
    ),
)
_POLYNOMIALS = np.array(_INVERSE).ravel()


def stream(seed: int, table: str, purpose: str) -> int:
    """A number of 64 bits that stands for what is drawn."""
    return int.from_bytes(hashlib.sha256(f"{seed}\n{purpose}\n{table}".encode()).digest()[:8], "little")


def fixed_vectors(seed: int, table: str, dim: int, options: DynamicEmbOptions) -> Numbers:
    """float32 [2, dim]: what unknown ids of a table read in evaluation, and what training reads of ids that are not admitted yet."""
    admission, key = options.admission, np.zeros(1, dtype=np.int64)
    drawn = ((options.eval_initializer, "default"), (ZEROS if admission is None else admission.initializer, "unadmitted"))
    return np.concatenate([first_vectors(initializer, stream(seed, table, purpose), key, dim) for initializer, purpose in drawn])


def first_vectors(initializer: Initializer, stream: int, keys: Numbers, dim: int) -> Numbers:
    """[n, dim] float32; the same bits with and without the compiled kernel.

    Args:
        initializer: how numbers are spread.
        stream: what they are for.
        keys: int64 [n].
        dim: at least 1.
    """
    if initializer.mode == InitializerMode.CONSTANT:
        return np.full((len(keys), dim), initializer.value, dtype=np.float32)
    spread, library = _spread(initializer), KERNEL.get()
    if library is not None:
        return compiled_vectors(library, spread, _POLYNOMIALS, stream, np.ascontiguousarray(keys, dtype=np.int64), dim)
    drawn = spread.first + _shares(stream, keys, dim) * (spread.last - spread.first)
    if spread.is_normal:
        drawn = (spread.centre + spread.scale * _normal(drawn)).clip(spread.lower, spread.upper)
    vectors: Numbers = drawn.astype(np.float32)
    return vectors


def _spread(initializer: Initializer) -> Spread:
    if initializer.mode == InitializerMode.UNIFORM:
        return Spread(0, initializer.lower, initializer.upper)
    if initializer.mode == InitializerMode.NORMAL:
        return Spread(1, 0.0, 1.0, initializer.mean, initializer.std_dev, -math.inf, math.inf)
    low, high = ((bound - initializer.mean) / initializer.std_dev for bound in (initializer.lower, initializer.upper))
    sign = 1.0
    if low > 0:  # numbers near 0 are told apart better than numbers near 1
        low, high, sign = -high, -low, -1.0
    first, last = (0.5 * math.erfc(-bound / math.sqrt(2)) for bound in (low, high))
    return Spread(1, first, last, initializer.mean, sign * initializer.std_dev, initializer.lower, initializer.upper)


def _shares(stream: int, keys: Numbers, dim: int) -> Numbers:
    """[n, dim] float64 within (0, 1), of 2^53 even steps: SplitMix64, begun at the mixed key."""
    with np.errstate(over="ignore"):
        start = _mixed(_mixed(keys.astype(np.int64, copy=False).view(np.uint64) ^ np.uint64(stream)) + np.uint64(stream))
        places = np.arange(1, dim + 1, dtype=np.uint64) * _GOLDEN
        bits = _mixed(start[:, None] + places)
    return ((bits >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


def _mixed(z: Numbers) -> Numbers:
    """The finaliser of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014)."""
    z = (z ^ (z >> np.uint64(30))) * _FACTORS[0]
    z = (z ^ (z >> np.uint64(27))) * _FACTORS[1]
    mixed: Numbers = z ^ (z >> np.uint64(31))
    return mixed


def _normal(shares: Numbers) -> Numbers:
    """The normal distribution's inverse (Wichura: Algorithm AS 241, 1988), of numbers within (0, 1)."""
    offset = shares - 0.5
    below = np.minimum(shares, 1.0 - shares)
    root = np.sqrt(-_log(np.maximum(below, 2.0**-1000)))
    centre = offset * _ratio(_INVERSE[0], 0.180625 - offset * offset)
    tail = np.where(root <= _NEAR, _ratio(_INVERSE[1], root - 1.6), _ratio(_INVERSE[2], root - _NEAR))
    values: Numbers = np.where(np.abs(offset) <= _CENTRE, centre, np.where(offset < 0, -tail, tail))
    return values


def _ratio(polynomials: tuple[tuple[float, ...], tuple[float, ...]], x: Numbers) -> Numbers:
    above, below = (np.full_like(x, powers[-1]) for powers in polynomials)
    for high, low in zip(reversed(polynomials[0][:-1]), reversed(polynomials[1][:-1]), strict=True):
        above, below = above * x + high, below * x + low
    ratio: Numbers = above / below
    return ratio


def _log(x: Numbers) -> Numbers:
    """The natural logarithm of numbers above 0, by the series of atanh: C libraries differ in its last bit."""
    mantissa, exponent = np.frexp(x)
    small = mantissa < math.sqrt(0.5)
    mantissa, exponent = np.where(small, 2.0 * mantissa, mantissa), exponent - small
    s = (mantissa - 1.0) / (mantissa + 1.0)
    squared, total = s * s, np.zeros_like(s)
    for power in range(21, 0, -2):
        total = total * squared + 1.0 / power
    logarithm: Numbers = exponent * math.log(2) + 2.0 * s * total
    return logarithm
