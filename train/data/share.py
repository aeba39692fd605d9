"""Which rows of an epoch a rank trains on.

All ranks go through one stream of rows, in one order. A step takes the next `batch_size * world_size` of them, and each rank a run of those:

    2 ranks, batch_size 3     0 1 2 | 3 4 5     6 7 8 | 9 10 11     12 | 13 14       ranks 0 | 1
                              step 0            step 1              step 2

The last rows of an epoch are split as evenly as they can be; ranks that get none of them take part in the step without rows.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from emberline.train.data.raw_rows import Unit


@dataclass
class Share:
    """One rank's rows of an epoch, or of what is left of it.

    Args:
        batch_size: rows of a step on each rank.
        rank: which one.
        world_size: ranks in all.
        start: rows of the epoch that were read before.
        total: rows of the epoch; None until the end of the data tells.
    """

    batch_size: int
    rank: int
    world_size: int
    start: int
    total: int | None

    @property
    def step_rows(self) -> int:
        """Rows of a whole step, of all ranks."""
        return self.batch_size * self.world_size

    @property
    def num_whole_steps(self) -> int | None:
        """Steps with all their rows; None where that is not known yet."""
        return None if self.total is None else max(self.total - self.start, 0) // self.step_rows

    @property
    def num_last_rows(self) -> int:
        """Rows of the short step at the end, of all ranks; 0 where there is none."""
        return 0 if self.total is None else max(self.total - self.start, 0) % self.step_rows

    def is_known(self, stop: int, seen: int) -> bool:
        """Whether the rows of the epoch before `stop` can be shared out, where `seen` rows are known to be there."""
        if self.total is not None or self.world_size == 1:
            return True
        return self.start - (self.start - stop) // self.step_rows * self.step_rows <= seen

    def places(self, first: int, stop: int) -> npt.NDArray[np.int64] | None:
        """Rows of this rank among those from `first` to `stop` of the epoch, counted from `first`; None: all of them."""
        if self.world_size == 1:
            return None
        rows = np.arange(first, stop) - self.start
        steps, places = np.divmod(rows, self.step_rows)
        whole = self.num_whole_steps
        sizes = np.full(len(rows), self.step_rows)
        if whole is not None:
            sizes[steps >= whole] = self.num_last_rows
        own = (places >= sizes * self.rank // self.world_size) & (places < sizes * (self.rank + 1) // self.world_size)
        return np.flatnonzero(own)


def released(units: Iterable[Unit], share: Share) -> Iterator[Unit]:
    """The units, each as soon as it is known how its rows are shared out; at the end of the units, the number of rows is known."""
    waiting: list[Unit] = []
    seen = share.start
    for unit in units:
        waiting.append(unit)
        seen = unit.stop
        while waiting and share.is_known(waiting[0].stop, seen):
            yield waiting.pop(0)
    share.total = seen if share.total is None else share.total
    yield from waiting
