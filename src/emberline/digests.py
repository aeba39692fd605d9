"""A second digest of large files, which takes no longer than reading memory does, and which any number of threads can reckon together.

It is the XXH3-128 of the XXH3-128 of a file's pieces, each in its 16 bytes, the most significant first. It tells of damage, and of nothing else: who
wants to can make another file that has it. So it stands beside a sha256, which takes ten to thirty times as long, and by which files are compared
where the package xxhash is not installed.
"""

import importlib
from collections.abc import Iterable
from typing import Any

try:
    xxhash: Any = importlib.import_module("xxhash")
except ImportError:  # serving needs torch, NumPy and safetensors alone
    xxhash = None

PIECE_BYTES = 1 << 20
"""All pieces of a file but its last have so many bytes: they fit in a processor's cache, where they are hashed right after they were read."""


def can_reckon() -> bool:
    """Whether this machine has what reckons the digest; nothing else here may be used where it has not."""
    return xxhash is not None


def piece_digest(parts: Iterable[Any]) -> bytes:
    """The digest of one piece, of which the parts in order are anything that has a buffer without gaps: 16 bytes."""
    digest = xxhash.xxh3_128()
    for part in parts:
        digest.update(part)
    return bytes(digest.digest())


def join_digests(pieces: Iterable[bytes]) -> str:
    """The digest of a file, of those of its pieces in order: 32 hexadecimal digits."""
    return str(xxhash.xxh3_128_hexdigest(b"".join(pieces)))


class PiecesDigest:
    """The digest of what comes in parts of any sizes."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._begun, self._size = xxhash.xxh3_128(), 0

    def update(self, data: Any) -> None:
        """Add bytes, of anything that has a buffer without gaps."""
        view = memoryview(data).cast("B")
        while len(view):
            part = view[: PIECE_BYTES - self._size]
            self._begun.update(part)
            self._size += len(part)
            view = view[len(part) :]
            if self._size == PIECE_BYTES:
                self._end_piece()

    def hexdigest(self) -> str:
        """The digest of all that came; nothing may come after it."""
        if self._size:
            self._end_piece()
        return join_digests(self._pieces)

    def _end_piece(self) -> None:
        self._pieces.append(self._begun.digest())
        self._begun, self._size = xxhash.xxh3_128(), 0
