"""Which requests of a model are so quick that the event loop answers them itself: to hand one to a thread and back costs several times as much."""

import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from emberline.errors import ServingError
from emberline.serving.artifact import KNOWN
from emberline.serving.packed_request import PackedRequest
from emberline.serving.warm_up import even_request

if TYPE_CHECKING:
    from emberline.serving.engine import Engine

QUICK_S = 0.0005
"""What a request may take to be quick: the loop serves all other connections so much later."""
_SIZES = (1, 4, 16, 64, 128, 256)
_TURNS = 4
_SHARE = 1 / 16
_MOST_S = 4 * QUICK_S
"""What a longer answer counts as: a busy machine makes one wait now and then, which says nothing of the model."""
_REST_S, _MOST_REST_S = 1.0, 64.0


class Pace:
    """Says of a model's requests, by their bytes alone, whether they are quick; for one loop.

    What was measured when the model was loaded may not hold: where answers take longer on the average, none is quick for a while, each time longer.

    Attributes:
        most_bytes: of the arrays of a quick request; 0 where none is.
    """

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self._mean_s = 0.0
        self._rests_until, self._rest_s = 0.0, _REST_S

    @classmethod
    def measure(cls, engine: "Engine") -> "Pace":
        """Ask for more and more rows, as long as the answers are quick. Blocks."""
        most, names = 0, [name for name in engine.answer_names if name != KNOWN]
        for rows in _SIZES:
            request = even_request(engine, rows, 1)
            if min(_seconds(engine, request, names) for _ in range(_TURNS)) > QUICK_S:
                break
            most = sum(array.nbytes for array in vars(request).values() if array is not None)
        engine.forget_counts()
        return cls(most)

    def is_quick(self, size: int) -> bool:
        """Whether a request whose arrays have so many bytes is to be answered on the loop."""
        return 0 < self.most_bytes >= size and (not self._rests_until or self._is_rested())

    def saw(self, seconds: float) -> None:
        """One was answered there, and took so long."""
        self._mean_s += (min(seconds, _MOST_S) - self._mean_s) * _SHARE
        if self._mean_s > _MOST_S / 2:
            self._rests_until = time.monotonic() + self._rest_s
            self._rest_s, self._mean_s = min(2 * self._rest_s, _MOST_REST_S), 0.0

    def _is_rested(self) -> bool:
        if time.monotonic() < self._rests_until:
            return False
        self._rests_until = 0.0
        return True


def _seconds(engine: "Engine", request: PackedRequest, names: Sequence[str]) -> float:
    """Of this thread's processor time: others may keep the machine busy as models are loaded."""
    started = time.thread_time()
    (answer,) = engine.predict_many([request], [names])
    return math.inf if isinstance(answer, ServingError) else time.thread_time() - started
