"""Many short texts as spans of one byte buffer, so that splitting and hashing them never makes a Python string.

Letters: N texts. A text's bytes are `buffer[starts[i]:ends[i]]`, UTF-8.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Words = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Texts:
    """N byte spans of one buffer; spans may lie in any order, share bytes and leave gaps.

    Args:
        buffer: uint8, never written to.
        starts: int64 [N].
        ends: int64 [N], each at or after its start.
    """

    buffer: Bytes
    starts: Ints
    ends: Ints

    def __len__(self) -> int:
        return self.starts.shape[0]

    @property
    def sizes(self) -> Ints:
        """Bytes of each text, int64 [N]."""
        return self.ends - self.starts

    def take(self, index: Ints | Bools) -> "Texts":
        """The texts at `index` (positions, or a mask), in that order; the buffer is shared."""
        return Texts(self.buffer, self.starts[index], self.ends[index])

    def text(self, position: int) -> str:
        """One text, for messages: bytes that are not UTF-8 show as escapes."""
        return bytes(self.buffer[self.starts[position] : self.ends[position]]).decode(errors="backslashreplace")

    @classmethod
    def from_bytes(cls, texts: Sequence[bytes]) -> "Texts":
        """Texts from encoded strings."""
        sizes = np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
        ends = sizes.cumsum()
        return cls(np.frombuffer(b"".join(texts), dtype=np.uint8), ends - sizes, ends)

    @classmethod
    def from_strings(cls, texts: Sequence[str]) -> "Texts":
        """Texts from Python strings.

        Raises:
            UnicodeEncodeError: a string holds half of a surrogate pair.
        """
        joined = "".join(texts)
        if not joined.isascii():
            return cls.from_bytes([text.encode() for text in texts])
        sizes = np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
        ends = sizes.cumsum()
        return cls(np.frombuffer(joined.encode(), dtype=np.uint8), ends - sizes, ends)


def concatenate_texts(parts: Iterable[Texts]) -> Texts:
    """The texts of all parts, one after the other, over one new buffer."""
    buffers, starts, ends, shift = [], [], [], 0
    for part in parts:
        buffers.append(part.buffer)
        starts.append(part.starts + shift)
        ends.append(part.ends + shift)
        shift += part.buffer.shape[0]
    return Texts(np.concatenate(buffers), np.concatenate(starts), np.concatenate(ends))


def words_at(buffer: Bytes, width: int) -> npt.NDArray[np.unsignedinteger[Any]]:
    """All little-endian words of `width` bytes, one starting at each byte, without a copy."""
    return np.ndarray((max(buffer.shape[0] - width + 1, 0),), f"<u{width}", buffer, strides=(1,))


def words_before(buffer: Bytes, ends: Ints) -> Words:
    """The 8 bytes before each end as a little-endian word: the last byte is the highest. Bytes before the buffer's begin are 0."""
    at = ends - 8
    early = np.flatnonzero(at < 0)
    if early.size:
        at[early] = 0
        buffer = buffer if buffer.shape[0] >= 8 else np.concatenate([buffer, np.zeros(8, dtype=np.uint8)])
    word: Words = words_at(buffer, 8)[at].astype(np.uint64, copy=False)
    if early.size:
        word[early] <<= (64 - 8 * np.maximum(ends[early], 0)).view(np.uint64)
    return word


def ranges(starts: Ints, counts: Ints) -> Ints:
    """`starts[0], starts[0]+1, ... (counts[0] of them), starts[1], ...` as one int64 array [sum of counts]."""
    total = int(counts.sum())
    firsts = counts.cumsum() - counts
    out: Ints = np.arange(total, dtype=np.int64)
    out += np.repeat(starts - firsts, counts)
    return out


def compact(texts: Texts) -> Texts:
    """The same texts laid end to end in a new buffer."""
    sizes = texts.sizes
    ends = sizes.cumsum()
    return Texts(texts.buffer[ranges(texts.starts, sizes)], ends - sizes, ends)


def _in_order(texts: Texts) -> bool:
    return bool((texts.starts[1:] >= texts.ends[:-1]).all())


def _contains(texts: Texts, mark: bytes) -> bool:
    """Whether `mark` stands anywhere between the first and the last byte of the texts: a quick no for most columns."""
    return mark in texts.buffer[texts.starts.min() : texts.ends.max()].tobytes()


def _find(texts: Texts, mark: bytes) -> tuple[Ints, Ints]:
    """Where `mark` stands inside texts that lie in order: byte positions ascending, and the text each belongs to. Overlapping finds stay."""
    low, high = int(texts.starts[0]), int(texts.ends[-1])
    window = texts.buffer[low:high]
    hits = window == mark[0]
    for offset, byte in enumerate(mark[1:], 1):
        hits[:-offset] &= window[offset:] == byte
        hits[-offset:] = False
    at = np.flatnonzero(hits) + low
    if not at.size:
        return at, at
    owner = np.searchsorted(texts.starts, at, side="right") - 1
    inside = at + len(mark) <= texts.ends[owner]
    return at[inside], owner[inside]


def _without_overlaps(at: Ints, owner: Ints, width: int) -> tuple[Ints, Ints]:
    """Keep the finds that a scan from the left would make; only a mark that can overlap itself ever needs the loop."""
    if width == 1 or not at.size or int(np.diff(at, prepend=at[0] - width).min()) >= width:
        return at, owner
    kept, free = [], -1
    for index, position in enumerate(at.tolist()):
        if position >= free:
            kept.append(index)
            free = position + width
    return at[kept], owner[kept]


def split_texts(texts: Texts, separator: str, splittable: Bools | None = None) -> tuple[Texts, Ints]:
    """Split each text at every `separator`.

    Args:
        texts: N texts.
        separator: one or more characters; empty leaves all texts whole.
        splittable: bool [N], False for texts that stay whole; None where all may be split.

    Returns:
        The pieces in order, empty ones included, and how many each text gave, int64 [N], at least 1.
    """
    count = len(texts)
    ones = np.ones(count, dtype=np.int64)
    mark = separator.encode()
    if not separator or not count or not _contains(texts, mark):
        return texts, ones
    if not _in_order(texts):
        texts = compact(texts)
    at, owner = _find(texts, mark)
    if splittable is not None and at.size:
        at, owner = at[splittable[owner]], owner[splittable[owner]]
    at, owner = _without_overlaps(at, owner, len(mark))
    if not at.size:
        return texts, ones
    counts = ones + np.bincount(owner, minlength=count)
    lasts = counts.cumsum() - 1
    cuts = np.arange(at.size, dtype=np.int64) + owner
    starts, ends = np.empty(count + at.size, dtype=np.int64), np.empty(count + at.size, dtype=np.int64)
    starts[lasts - counts + 1] = texts.starts
    starts[cuts + 1] = at + len(mark)
    ends[lasts] = texts.ends
    ends[cuts] = at
    return Texts(texts.buffer, starts, ends), counts


def find_last(texts: Texts, mark: str) -> tuple[Texts, Ints]:
    """Where the last `mark` (one ASCII character) of each text is.

    Returns:
        The texts (moved to a new buffer where they did not lie in order) and its byte position, int64 [N], -1 where there is none.
    """
    last = np.full(len(texts), -1, dtype=np.int64)
    if not len(texts) or not _contains(texts, mark.encode()):
        return texts, last
    if not _in_order(texts):
        texts = compact(texts)
    at, owner = _find(texts, mark.encode())
    last[owner] = at
    return texts, last


def find_first(texts: Texts, mark: str) -> tuple[Texts, Ints]:
    """Where the first `mark` (one ASCII character) of each text is; as `find_last`."""
    first = np.full(len(texts), -1, dtype=np.int64)
    if not len(texts) or not _contains(texts, mark.encode()):
        return texts, first
    if not _in_order(texts):
        texts = compact(texts)
    at, owner = _find(texts, mark.encode())
    first[owner[::-1]] = at[::-1]
    return texts, first


def join_texts(parts: Sequence[Texts], mark: str) -> Texts:
    """For each of N positions the texts of all parts with `mark` between them, over one new buffer."""
    between = Texts.from_strings([mark]).take(np.zeros(len(parts[0]), dtype=np.int64))
    pieces = [piece for part in parts for piece in (between, part)][1:]
    sizes = np.stack([piece.sizes for piece in pieces], axis=1)
    ends = sizes.cumsum().reshape(sizes.shape)
    buffer = np.empty(int(sizes.sum()), dtype=np.uint8)
    for number, piece in enumerate(pieces):
        counts = sizes[:, number]
        buffer[ranges(ends[:, number] - counts, counts)] = piece.buffer[ranges(piece.starts, counts)]
    last = ends[:, -1] if len(parts[0]) else np.zeros(0, dtype=np.int64)
    return Texts(buffer, last - sizes.sum(axis=1), last)
