"""The order of rows in an epoch, from nothing but seed and epoch: the same on every machine, and computable from any place in it."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from emberline.train.data.source import Fragment

_FRAGMENTS, _WINDOW = 0, 1


def fragment_order(fragments: Sequence[Fragment], seed: int, epoch: int) -> list[Fragment]:
    """The fragments of an epoch, shuffled."""
    order = np.random.default_rng([seed, epoch, _FRAGMENTS]).permutation(len(fragments))
    return [fragments[index] for index in order.tolist()]


def window_order(num_rows: int, seed: int, epoch: int, window: int) -> npt.NDArray[np.int64]:
    """The order of the rows of one window of an epoch, int64 [num_rows]."""
    order: npt.NDArray[np.int64] = np.random.default_rng([seed, epoch, _WINDOW, window]).permutation(num_rows)
    return order
