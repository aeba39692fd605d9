"""Which part of a zero-collision table a raw id belongs to: what training's exchange of ids decides, and serving must decide alike.

A table of S parts (one a training rank) gives each part a range of the ids of [0, 2^63-1), all of one size; negative ids, taken as unsigned, go by
their remainder. Ids that are small numbers would all lie in the first range, so by default ids are *mixed* before the ranges are cut:

    raw ids 0, 1, 2, ...   ──mix──►   spread over [0, 2^63)   ──ranges──►   parts

The functions take numpy arrays and torch tensors alike: int64, of one dimension or more, any values.
"""

from typing import Any, TypeVar

BY_RANGE = "range"
"""Ids are cut into ranges as they are."""
MIXED = "mixed"
"""Ids are mixed first."""
ROUTINGS = (MIXED, BY_RANGE)

_LOW = 2**63 - 1
_SIGN = -(2**63)
FACTORS = tuple(factor & _LOW for factor in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
"""Of `mix`, below the sign."""
_INVERSES = tuple(pow(factor, -1, 2**63) for factor in FACTORS)
Ids = TypeVar("Ids", bound=Any)


def mix(ids: Ids) -> Ids:
    """Each id's place: a bijection of int64 that keeps the sign and 2^63-1, and spreads other ids evenly, whatever they are.

    The finaliser of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014), on the 63 bits below the sign.
    They are inverted before and after, as the finaliser keeps 0, and 2^63-1 is to stay.
    """
    z = (ids & _LOW) ^ _LOW
    z = ((z ^ (z >> 30)) * FACTORS[0]) & _LOW
    z = ((z ^ (z >> 27)) * FACTORS[1]) & _LOW
    mixed: Ids = (ids & _SIGN) | ((z ^ (z >> 31)) ^ _LOW)
    return mixed


def unmix(places: Ids) -> Ids:
    """The ids of places that `mix` gave."""
    z = (places & _LOW) ^ _LOW
    z = ((z ^ (z >> 31) ^ (z >> 62)) * _INVERSES[1]) & _LOW
    z = ((z ^ (z >> 27) ^ (z >> 54)) * _INVERSES[0]) & _LOW
    ids: Ids = (places & _SIGN) | ((z ^ (z >> 30) ^ (z >> 60)) ^ _LOW)
    return ids


def range_size(num_parts: int) -> int:
    """Ids of one range; the last may be smaller by a few."""
    return -(-_LOW // num_parts)


def owner_of(ids: Ids, num_parts: int, routing: str) -> Ids:
    """The part of each id, int64, from 0.

    Args:
        ids: any.
        num_parts: S, at least 1.
        routing: `BY_RANGE` or `MIXED`.
    """
    assert routing in ROUTINGS, routing
    places = mix(ids) if routing == MIXED else ids
    size = range_size(num_parts)
    negative = (places >> 63) & 1
    low = places & _LOW
    beyond = size * num_parts - 2**63  # the ranges' sizes are rounded up, so that a few unsigned numbers above 2^63 still are in the last one
    in_last = (low < beyond) & (negative == 1)
    by_remainder = (low % num_parts + 2**63 % num_parts) % num_parts
    by_range = (low // size) % num_parts  # a 2^63-1 that the ranges just leave out goes by its remainder, 0
    owners: Ids = by_range * (1 - negative) + by_remainder * negative * ~in_last + (num_parts - 1) * (negative * in_last)
    return owners
