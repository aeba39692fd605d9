"""One rank's error is the end of all: each tells which rank failed first, and why, and none waits for the others in vain.

A rank that fails writes so in the launcher's store, and ends. Others, which wait for it somewhere within the model, lose contact with it, and look
there. Those that don't even notice (NCCL doesn't) are ended by a thread that looks from time to time.
"""

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

from torch._C._distributed_c10d import Store

from emberline.errors import CapacityError, CheckpointError, DataError, EmberlineError, TrainingError, first_line
from emberline.train.sharding.process_group import Ranks

_KEY = "emberline/failed"
_LOOK_EVERY_S = 0.5
_GRACE_S = 10.0
_EXIT_STATUS = 1
_LOST_CONTACT = ("connection closed", "connection reset", "broken pipe", "gloo/transport", "timed out", "nccl")


@dataclass(frozen=True)
class Failure:
    """The first error of a run.

    Args:
        rank: where it was.
        text: what went wrong.
    """

    rank: int
    text: str

    def __str__(self) -> str:
        """For people."""
        return f"rank {self.rank} failed, and so the run ends: {self.text}"


@contextmanager
def shared_fate(ranks: Ranks, grace_s: float = _GRACE_S) -> Iterator[None]:
    """While the body runs, an error on any rank ends all of them.

    Args:
        ranks: all of them run such a body.
        grace_s: how long a rank may take to notice that another failed.

    Raises:
        EmberlineError: this rank's own error, with its number, or `TrainingError`: another rank's, which was first.
    """
    if ranks.world_size == 1 or ranks.store is None:
        yield
        return
    watch = _Watch(ranks.store, grace_s)
    try:
        yield
    except BaseException as error:  # noqa: BLE001 - raised again, with the rank's number
        _end(ranks, watch, error)
    finally:
        watch.close()


def _end(ranks: Ranks, watch: "_Watch", error: BaseException) -> NoReturn:
    lost = _is_lost_contact(error)
    own = f"another rank ended without a word (killed? out of memory?): {first_line(error)}" if lost else _text(error)
    failure = watch.first_failure(Failure(ranks.rank, own))
    if ranks.hosts_store:
        time.sleep(2 * _LOOK_EVERY_S)  # until all have read it
    if failure.rank != ranks.rank:
        raise TrainingError(str(failure)) from error
    if lost:
        raise TrainingError(f"rank {ranks.rank}: {own}") from error
    if type(error) in (DataError, TrainingError, CapacityError, CheckpointError):
        raise type(error)(f"rank {ranks.rank}: {error}") from error
    raise error


def _parsed(entry: bytes) -> Failure:
    rank, _, text = entry.decode(errors="replace").partition(" ")
    return Failure(int(rank), text)


def _is_lost_contact(error: BaseException) -> bool:
    """Whether it is what a collective raises when another rank is gone."""
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(word in text for word in _LOST_CONTACT)


def _text(error: BaseException) -> str:
    return str(error) if isinstance(error, EmberlineError) else f"{type(error).__name__}: {first_line(error)}"


class _Watch:
    """A thread that ends this process some time after another rank has failed, unless it ends by itself."""

    def __init__(self, store: Store, grace_s: float) -> None:
        connection: Any = store  # its own: the other one may be waiting for something
        self._store: Store = connection.clone()
        self._grace_s = grace_s
        self._seen: Failure | None = None
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="emberline-watch", daemon=True)
        self._thread.start()

    def first_failure(self, own: Failure) -> Failure:
        """The failure that was written first, by another rank or now: the own one."""
        try:
            return _parsed(self._store.compare_set(_KEY, "", f"{own.rank} {own.text}"))
        except RuntimeError:  # the store is gone with the rank that held it
            return self._seen or own

    def close(self) -> None:
        """Stop watching."""
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._done.wait(_LOOK_EVERY_S):
            try:
                if not self._store.check([_KEY]):
                    continue
                self._seen = _parsed(self._store.get(_KEY))
            except RuntimeError:  # the store is gone, and so are its ranks' connections
                return
            if not self._done.wait(self._grace_s):
                print(f"emberline: error: {self._seen}", file=sys.stderr, flush=True)
                os._exit(_EXIT_STATUS)
