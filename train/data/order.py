"""The order of rows in an epoch, from nothing but seed and epoch: the same on every machine, and computable from any place in it.

What is drawn for a batch comes of its place alone, too.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from emberline.train.data.position import DataPosition
from emberline.train.data.source import Fragment

_FRAGMENTS, _WINDOW, _NEGATIVES = 0, 1, 2


def fragment_order(fragments: Sequence[Fragment], seed: int, epoch: int) -> list[Fragment]:
    """The fragments of an epoch, shuffled."""
    order = np.random.default_rng([seed, epoch, _FRAGMENTS]).permutation(len(fragments))
    return [fragments[index] for index in order.tolist()]


def window_order(num_rows: int, seed: int, epoch: int, window: int) -> npt.NDArray[np.int64]:
    """The order of the rows of one window of an epoch, int64 [num_rows]."""
    order: npt.NDArray[np.int64] = np.random.default_rng([seed, epoch, _WINDOW, window]).permutation(num_rows)
    return order


def negatives_generator(seed: int, position: DataPosition, rank: int) -> np.random.Generator:
    """What draws the negatives of a rank's batch, of a step that begins at that position."""
    return np.random.default_rng([seed, position.epoch, _NEGATIVES, position.rows, rank])
