"""Tags are SipHash-2-4, tell ids apart, and need the key."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emberline.export.forget.tags import find_tagged, key_name, siphash, tags_of

KEY = bytes(range(16))
SECRET = bytes(range(32))
M = 2**64 - 1


def by_hand(key: bytes, one: int) -> int:
    """SipHash-2-4 of eight bytes in Python's own numbers, as the paper writes it."""
    k0, k1 = (int.from_bytes(part, "little") for part in (key[:8], key[8:]))
    v0, v1, v2, v3 = k0 ^ 0x736F6D6570736575, k1 ^ 0x646F72616E646F6D, k0 ^ 0x6C7967656E657261, k1 ^ 0x7465646279746573

    def turn(value: int, bits: int) -> int:
        return (value << bits | value >> (64 - bits)) & M

    def mix() -> None:
        nonlocal v0, v1, v2, v3
        v0, v2 = (v0 + v1) & M, (v2 + v3) & M
        v1, v3 = turn(v1, 13) ^ v0, turn(v3, 16) ^ v2
        v0 = turn(v0, 32)
        v2, v0 = (v2 + v1) & M, (v0 + v3) & M
        v1, v3 = turn(v1, 17) ^ v2, turn(v3, 21) ^ v0
        v2 = turn(v2, 32)

    for word in (one & M, 8 << 56):
        v3 ^= word
        mix()
        mix()
        v0 ^= word
    v2 ^= 0xFF
    for _ in range(4):
        mix()
    return v0 ^ v1 ^ v2 ^ v3


def test_the_published_vector() -> None:
    assert siphash(KEY, np.frombuffer(bytes(range(8)), "<i8")).tolist() == [0x93F5F5799A932462]


@given(st.binary(min_size=16, max_size=16), st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20))
def test_many_at_once_are_each_by_hand(key: bytes, ids: list[int]) -> None:
    assert siphash(key, np.array(ids, np.int64)).tolist() == [by_hand(key, one) for one in ids]


def test_more_ids_than_are_looked_at_together() -> None:
    ids = np.arange(-70_000, 70_000)
    found = siphash(KEY, ids)
    for place in (0, 65_535, 65_536, 139_999):
        assert int(found[place]) == by_hand(KEY, int(ids[place]))


def test_ids_are_found_by_their_tags_in_their_space_and_with_their_key_only() -> None:
    ids = np.array([5, -5, 2**63 - 1, -(2**63), 0])
    tags = tags_of(SECRET, "uid", ids[1:4])
    assert find_tagged(SECRET, "uid", ids, tags).tolist() == [False, True, True, True, False]
    assert not find_tagged(SECRET, "other", ids, tags).any()
    assert not find_tagged(bytes(32), "uid", ids, tags).any()
    assert find_tagged(SECRET, "uid", ids, []).tolist() == [False] * 5
    assert find_tagged(SECRET, "uid", ids[:0], tags).tolist() == []


def test_half_a_tag_is_not_enough() -> None:
    (tag,) = tags_of(SECRET, "uid", np.array([7]))
    assert not find_tagged(SECRET, "uid", np.array([7]), [tag[:16] + "0" * 16]).any()


@pytest.mark.parametrize("secret", [bytes(32), SECRET])
def test_a_keys_name_is_not_the_key(secret: bytes) -> None:
    assert len(key_name(secret)) == 16
    assert key_name(secret) not in secret.hex()
