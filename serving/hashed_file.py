"""A file whose digests are known as soon as it is written, so that nobody reads it again to learn it.

Large parts are hashed and written at the same time, and go to the disk while the next ones are made: each of the three has a thread of its own.
"""

import hashlib
import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from emberline.digests import PIECE_BYTES, PiecesDigest, can_reckon
from emberline.manifest import FileEntry

_LARGE_BYTES = 1 << 20
"""Smaller parts are not worth a change of threads."""
_MOST_WAITING = 2
"""Large parts that may be under way; their memory is held on to."""
_FLUSH_BYTES = 64 << 20


class HashedFile:
    """A new file, written from its beginning to its end. As a context it is closed at the end, and `entry` says what it holds.

    Args:
        path: of the file; one that is there is overwritten.
    """

    def __init__(self, path: Path) -> None:
        self.entry: FileEntry | None = None
        self._stream = path.open("wb", buffering=0)
        self._digests: tuple[Any, ...] = (hashlib.sha256(), PiecesDigest()) if can_reckon() else (hashlib.sha256(),)
        self._size = self._unflushed = 0
        self._threads: list[ThreadPoolExecutor] = []
        self._waiting: deque[tuple[Future[None], Future[None]]] = deque()
        self._flushing: Future[None] | None = None

    def write(self, data: Any) -> None:
        """Add bytes.

        Args:
            data: anything that has a buffer without gaps. It must not change before the next but one call, or the end.

        Raises:
            OSError: they cannot be written.
        """
        view = memoryview(data).cast("B")
        self._size += len(view)
        if not self._threads and len(view) < _LARGE_BYTES:
            self._hash(view)
            self._write(view)
            return
        if not self._threads:
            self._threads = [ThreadPoolExecutor(1, f"{name}-artifact") for name in ("hash", "write", "flush")]
        hasher, writer, _ = self._threads
        self._waiting.append((hasher.submit(self._hash, view), writer.submit(self._write_large, view)))
        while len(self._waiting) >= _MOST_WAITING:
            self._wait_for_one()

    def close(self) -> FileEntry:
        """Wait until all is written; again it only says what it said.

        Returns:
            Its size and digests: both, where this machine can reckon both.

        Raises:
            OSError: something could not be written.
        """
        if self.entry is not None:
            return self.entry
        try:
            while self._waiting:
                self._wait_for_one()
            if self._flushing is not None:
                self._flushing.result()
        finally:
            self._end()
        sha256, *xxh3 = (digest.hexdigest() for digest in self._digests)
        self.entry = FileEntry(bytes=self._size, sha256=sha256, xxh3=xxh3[0] if xxh3 else None)
        return self.entry

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self.close()
        else:
            self._end()

    def _end(self) -> None:
        for thread in self._threads:
            thread.shutdown(cancel_futures=True)
        self._stream.close()

    def _hash(self, view: memoryview) -> None:
        """By pieces, so that what is read for one digest still lies in the processor's cache for the other."""
        for start in range(0, len(view), PIECE_BYTES):
            for digest in self._digests:
                digest.update(view[start : start + PIECE_BYTES])

    def _wait_for_one(self) -> None:
        for future in self._waiting.popleft():
            future.result()

    def _write_large(self, view: memoryview) -> None:
        """Write, and let the disk begin where nothing else keeps it busy."""
        self._write(view)
        self._unflushed += len(view)
        if self._unflushed >= _FLUSH_BYTES and (self._flushing is None or self._flushing.done()):
            if self._flushing is not None:
                self._flushing.result()
            self._unflushed = 0
            self._flushing = self._threads[-1].submit(os.fdatasync, self._stream.fileno())

    def _write(self, view: memoryview) -> None:
        while view:
            view = view[self._stream.write(view) :]
