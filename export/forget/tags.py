"""Tags of ids: 128 bits that tell, with the key, whether an id is among those that were forgotten, and without it nothing.

A tag is two SipHash-2-4 of the id's eight bytes (Aumasson and Bernstein, 2012: a keyed function for short inputs that nobody can tell from a random
one without its key of 128 bits), with keys that are drawn out of one secret by keyed BLAKE2b, others for each feature. The first half is reckoned of
all ids of a table at once by numpy; the second of those few whose first half is found.
"""

import hashlib
from collections.abc import Collection

import numpy as np
import numpy.typing as npt

KEY_BYTES = 32
_AT_ONCE = 1 << 16
"""Ids whose four words of state stay in the processor's cache."""
Words = npt.NDArray[np.uint64]
_START = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)


def siphash(key: bytes, ids: npt.NDArray[np.int64]) -> Words:
    """SipHash-2-4 of the eight bytes of each id, the lowest first: uint64 [N].

    Args:
        key: 16 bytes.
        ids: int64 [N].
    """
    found = np.empty(ids.size, np.uint64)
    for first in range(0, ids.size, _AT_ONCE):
        found[first : first + _AT_ONCE] = _siphash(key, ids[first : first + _AT_ONCE].astype("<i8").view("<u8").astype(np.uint64))
    return found


def tags_of(secret: bytes, space: str, ids: npt.NDArray[np.int64]) -> list[str]:
    """The tag of each id, 32 hexadecimal digits.

    Args:
        secret: of the model, `KEY_BYTES`.
        space: what the ids are of; the same id has another tag in another space.
        ids: int64 [N].
    """
    halves = (siphash(key, ids) for key in _keys(secret, space))
    return [f"{first:016x}{second:016x}" for first, second in zip(*(half.tolist() for half in halves), strict=True)]


def find_tagged(secret: bytes, space: str, ids: npt.NDArray[np.int64], tags: Collection[str]) -> npt.NDArray[np.bool_]:
    """Which ids have one of some tags: bool [N]; arguments as for `tags_of`."""
    if not tags or not ids.size:
        return np.zeros(ids.size, np.bool_)
    halves = np.array([int(tag[:16], 16) for tag in tags], np.uint64)
    found: npt.NDArray[np.bool_] = np.isin(siphash(_keys(secret, space)[0], ids), halves)
    at = np.flatnonzero(found)
    wanted = frozenset(tags)
    found[at] = [tag in wanted for tag in tags_of(secret, space, ids[at])]
    return found


def key_name(secret: bytes) -> str:
    """What tells one key from another, and nothing of it: 16 hexadecimal digits."""
    return hashlib.blake2b(b"name", key=secret, digest_size=8).hexdigest()


def _keys(secret: bytes, space: str) -> tuple[bytes, bytes]:
    drawn = hashlib.blake2b(space.encode(), key=secret, digest_size=32, person=b"emberline forget").digest()
    return drawn[:16], drawn[16:]


def _siphash(key: bytes, words: Words) -> Words:
    halves = [int.from_bytes(part, "little") for part in (key[:8], key[8:])]
    state = [np.full_like(words, start ^ half) for start, half in zip(_START, halves * 2, strict=True)]
    for word in (words, np.uint64(8 << 56)):  # the second word has the length of the message
        state[3] ^= word
        _mix(state, rounds=2)
        state[0] ^= word
    state[2] ^= np.uint64(0xFF)
    _mix(state, rounds=4)
    mixed: Words = state[0] ^ state[1] ^ state[2] ^ state[3]
    return mixed


def _mix(state: list[Words], rounds: int) -> None:
    """Rounds of the function, in place; sums wrap."""
    for _ in range(rounds):
        for first, second, bits, half in ((0, 1, 13, True), (2, 3, 16, False), (0, 3, 21, False), (2, 1, 17, True)):
            state[first] += state[second]
            _turn(state[second], bits)
            state[second] ^= state[first]
            if half:
                _turn(state[first], 32)


def _turn(words: Words, bits: int) -> None:
    low = words >> np.uint64(64 - bits)
    words <<= np.uint64(bits)
    words |= low
