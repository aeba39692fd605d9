"""XXH64, seed 0, over many texts at once (https://github.com/Cyan4973/xxHash, `doc/xxhash_spec.md`).

All texts take each step of the algorithm together; those that are too short for a step leave the batch. A handful of texts goes
through plain integers instead, where numpy's cost for each call would dominate.
"""

import sys
from collections.abc import Sequence

import numpy as np

from emberline.encoding.texts import Bytes, Ints, Texts, Words, words_at, words_before

Hashes = Words

_P1, _P2, _P3, _P4, _P5 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
_MASK = 0xFFFFFFFFFFFFFFFF
_STRIPE = 32
_FEW_TEXTS = 32
_LANE_TURNS = (1, 7, 12, 18)
_LANE_SEEDS = ((_P1 + _P2) & _MASK, _P2, 0, -_P1 & _MASK)


def _u(value: int) -> np.uint64:
    return np.uint64(value)


_LOW_32, _LOW_8 = _u(0xFFFFFFFF), _u(0xFF)
_U1, _U2, _U3, _U4, _U5 = _u(_P1), _u(_P2), _u(_P3), _u(_P4), _u(_P5)
_SHIFTS = [_u(bits) for bits in range(65)]


def _rotate(x: Hashes, bits: int) -> Hashes:
    """Rotate left, in place: the arrays of one step stay in the processor's cache."""
    high = x >> _SHIFTS[64 - bits]
    x <<= _SHIFTS[bits]
    x |= high
    return x


def _mix(lane: Hashes, word: Hashes) -> Hashes:
    """A lane after one more word."""
    word = word * _U2
    word += lane
    word = _rotate(word, 31)
    word *= _U1
    return word


def _hash_stripes(buffer: Bytes, starts: Ints, sizes: Ints) -> Hashes:
    """The state after all whole 32-byte stripes, for texts of at least one stripe. Texts leave as they run out of stripes."""
    order = np.argsort(-(sizes // _STRIPE), kind="stable")
    stripes = (sizes // _STRIPE)[order]
    at, words = starts[order], words_at(buffer, 8)
    lanes = [np.full(order.size, seed, dtype=np.uint64) for seed in _LANE_SEEDS]
    active = order.size
    for stripe in range(int(stripes[0])):
        active = int(np.searchsorted(-stripes[:active], -stripe, side="left"))
        if active <= 2:
            _finish_stripes(buffer, lanes, at, stripes, stripe, active)
            break
        for number, lane in enumerate(lanes):
            lane[:active] = _mix(lane[:active], words[at[:active] + (stripe * _STRIPE + 8 * number)])
    state = np.zeros(order.size, dtype=np.uint64)
    for lane, bits in zip(lanes, _LANE_TURNS, strict=True):
        state += _rotate(lane.copy(), bits)
    zero = np.zeros_like(state)
    for lane in lanes:
        state = (state ^ _mix(zero, lane)) * _U1 + _U4
    out = np.empty_like(state)
    out[order] = state
    return out


def _finish_stripes(buffer: Bytes, lanes: list[Hashes], at: Ints, stripes: Ints, done: int, active: int) -> None:
    """Run the last few long texts on plain integers: a numpy call for each stripe of one text would cost far more."""
    for index in range(active):
        begin, end = int(at[index]) + done * _STRIPE, int(at[index] + stripes[index] * _STRIPE)
        values = [int(lane[index]) for lane in lanes]
        values = _int_stripes(buffer[begin:end].tobytes(), values)
        for lane, value in zip(lanes, values, strict=True):
            lane[index] = value


def _int_stripes(data: bytes, lanes: list[int]) -> list[int]:
    """The four lanes after the whole stripes of one text; unrolled, since it is the only loop over bytes here."""
    words = memoryview(data).cast("Q") if sys.byteorder == "little" else np.frombuffer(data, "<u8").tolist()
    v1, v2, v3, v4 = lanes
    for at in range(0, len(words), 4):
        v1 = (v1 + words[at] * _P2) & _MASK
        v1 = (((v1 << 31) | (v1 >> 33)) * _P1) & _MASK
        v2 = (v2 + words[at + 1] * _P2) & _MASK
        v2 = (((v2 << 31) | (v2 >> 33)) * _P1) & _MASK
        v3 = (v3 + words[at + 2] * _P2) & _MASK
        v3 = (((v3 << 31) | (v3 >> 33)) * _P1) & _MASK
        v4 = (v4 + words[at + 3] * _P2) & _MASK
        v4 = (((v4 << 31) | (v4 >> 33)) * _P1) & _MASK
    return [v1, v2, v3, v4]


def _avalanche(state: Hashes) -> Hashes:
    state ^= state >> _SHIFTS[33]
    state *= _U2
    state ^= state >> _SHIFTS[29]
    state *= _U3
    state ^= state >> _SHIFTS[32]
    return state


def _take_eights(state: Hashes, buffer: Bytes, at: Ints, eights: Ints) -> None:
    """Take `eights[i]` words of 8 bytes, from byte `at[i]` on, into each state."""
    words = words_at(buffer, 8)
    for number in range(int(eights.max(initial=0))):
        some = np.flatnonzero(eights > number)
        index = slice(None) if some.size == state.size else some
        word = words[at[index] + 8 * number] * _U2
        word = _rotate(word, 31)
        word *= _U1
        word ^= state[index]
        word = _rotate(word, 27)
        word *= _U1
        word += _U4
        state[index] = word


def _take_tails(state: Hashes, word: Hashes, tails: Ints) -> None:
    """Take the last 0 to 7 bytes, the low ones of `word`, into each state: four at once where there are four, the rest one by one."""
    fours = tails >= 4
    if fours.any():
        step = word & _LOW_32
        step *= _U1
        step ^= state
        step = _rotate(step, 23)
        step *= _U2
        step += _U3
        np.copyto(state, step, where=fours)
        word >>= np.left_shift(fours, 5, dtype=np.uint64, casting="unsafe")
    ones = tails & 3
    for number in range(int(ones.max(initial=0))):
        step = word & _LOW_8
        step *= _U5
        step ^= state
        step = _rotate(step, 11)
        step *= _U1
        np.copyto(state, step, where=ones > number)
        word >>= _SHIFTS[8]


def _hash_many(buffer: Bytes, starts: Ints, ends: Ints) -> Hashes:
    sizes = ends - starts
    state = np.full(sizes.size, _P5, dtype=np.uint64)
    long = np.flatnonzero(sizes >= _STRIPE)
    if long.size:
        state[long] = _hash_stripes(buffer, starts[long], sizes[long])
    state += sizes.view(np.uint64)
    left = sizes & (_STRIPE - 1)
    _take_eights(state, buffer, ends - left, left >> 3)
    tails = left & 7
    if tails.any():
        _take_tails(state, words_before(buffer, ends) >> (64 - 8 * tails).view(np.uint64), tails)
    return _avalanche(state)


def _hash_one(data: bytes) -> int:
    """XXH64 of one text on plain integers."""
    size = len(data)
    at = size - size % _STRIPE
    if at:
        lanes = _int_stripes(data[:at], list(_LANE_SEEDS))
        state = sum(((lane << bits) | (lane >> (64 - bits))) & _MASK for lane, bits in zip(lanes, _LANE_TURNS, strict=True)) & _MASK
        for lane in lanes:
            lane = (lane * _P2) & _MASK
            lane = ((((lane << 31) | (lane >> 33)) & _MASK) * _P1) & _MASK
            state = ((state ^ lane) * _P1 + _P4) & _MASK
    else:
        state = _P5
    state = (state + size) & _MASK
    while at + 8 <= size:
        word = (int.from_bytes(data[at : at + 8], "little") * _P2) & _MASK
        state ^= ((((word << 31) | (word >> 33)) & _MASK) * _P1) & _MASK
        state = ((((state << 27) | (state >> 37)) & _MASK) * _P1 + _P4) & _MASK
        at += 8
    if at + 4 <= size:
        state ^= (int.from_bytes(data[at : at + 4], "little") * _P1) & _MASK
        state = ((((state << 23) | (state >> 41)) & _MASK) * _P2 + _P3) & _MASK
        at += 4
    for byte in data[at:]:
        state ^= (byte * _P5) & _MASK
        state = ((((state << 11) | (state >> 53)) & _MASK) * _P1) & _MASK
    state = ((state ^ (state >> 33)) * _P2) & _MASK
    state = ((state ^ (state >> 29)) * _P3) & _MASK
    return state ^ (state >> 32)


def xxh64(buffer: Bytes, starts: Ints, ends: Ints) -> Hashes:
    """XXH64, seed 0, of each span `buffer[starts[i]:ends[i]]`, uint64 [N]. Spans may lie in any order and overlap."""
    if starts.size > _FEW_TEXTS:
        return _hash_many(buffer, starts, ends)
    spans = zip(starts.tolist(), ends.tolist(), strict=True)
    return np.array([_hash_one(buffer[start:end].tobytes()) for start, end in spans], dtype=np.uint64)


def hash_texts(texts: Texts) -> Hashes:
    """XXH64, seed 0, of each text, uint64 [N]."""
    return xxh64(texts.buffer, texts.starts, texts.ends)


def hash_strings(texts: Sequence[str]) -> Hashes:
    """XXH64, seed 0, of each Python string's UTF-8 bytes, uint64 [N]."""
    return hash_texts(Texts.from_strings(texts))
