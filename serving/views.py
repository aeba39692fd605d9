"""The view that requests read, which may change between two of them, and who reads it: once nobody reads an old one, its memory may change."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Concatenate, ParamSpec, TypeVar

from emberline.serving.answering import View

_Rest = ParamSpec("_Rest")
_Answer = TypeVar("_Answer")
_PAUSE_S = 0.0005


@dataclass(frozen=True, eq=False, slots=True)
class _Read:
    """A view, and one item for each call that reads it."""

    view: View
    readers: list[None] = field(default_factory=list)


class CurrentView:
    """Holds one view. Requests take no lock: they sign in with the view that they found, and go by it only if it is still the current one.

    Args:
        view: the first.
    """

    def __init__(self, view: View) -> None:
        self._now = _Read(view)

    @property
    def view(self) -> View:
        """The view as it is; its tables may change as soon as it was replaced, so lookups go by `call`."""
        return self._now.view

    def call(self, answer: Callable[Concatenate[View, _Rest], _Answer], *args: _Rest.args, **options: _Rest.kwargs) -> _Answer:
        """What `answer(view, *args)` gives; the view stays what it is until then."""
        read = self._sign_in()
        try:
            return answer(read.view, *args, **options)
        finally:
            read.readers.pop()

    def replace(self, view: View) -> None:
        """From now on calls read `view`. Returns when none reads what was before; only one thread may be in here at a time."""
        before, self._now = self._now, _Read(view)
        while before.readers:
            time.sleep(_PAUSE_S)

    def _sign_in(self) -> _Read:
        while True:
            read = self._now
            read.readers.append(None)
            if self._now is read:
                return read
            read.readers.pop()  # it was replaced in between, and whoever did that may not have seen us
