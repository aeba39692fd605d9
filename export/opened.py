"""A checkpoint that is exported: the model without its tables, and their rows where they are, in its files."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from emberline.export.row_source import RowSource
from emberline.train.checkpoint import Trained, store, tower_of
from emberline.train.checkpoint.comparison import Comparison
from emberline.train.checkpoint.run_state import read_layout
from emberline.train.checkpoint.trained import read_trained

DEFAULT_MEMORY = 256 << 20
"""Bytes that blocks of tables may take together: more makes nothing faster."""
LEAST_MEMORY = 1 << 20


@dataclass(frozen=True, eq=False)
class OpenedCheckpoint:
    """A checkpoint that is being read.

    Args:
        trained: its model reads the rows of its tables by `rows.take_decoded`, when it needs them.
        rows: of its tables.
        require_whole: waits until every byte was compared with the checkpoint's manifest; raises CheckpointError where one differs.
    """

    trained: Trained
    rows: RowSource
    require_whole: Callable[[], None]


@contextmanager
def open_checkpoint(path: Path, tower: str = "") -> Iterator[OpenedCheckpoint]:
    """Open a `step-N` folder, or a run's folder, of which the newest complete step is taken; its files are compared with its manifest meanwhile.

    Args:
        path: the folder.
        tower: the part of the model to open, as a model of its own; empty for all of it.

    Raises:
        CheckpointError: it is missing, incomplete or damaged, does not fit the model that its config describes, or has no such tower.
    """
    with Comparison(store.find_checkpoint(path)) as comparison:
        rows = RowSource(comparison.info.path / store.TENSORS_NAME, read_layout(comparison.info.path).dynamic)
        trained = read_trained(comparison.info, rows.take_decoded)
        yield OpenedCheckpoint(tower_of(trained, tower, rows.take_decoded) if tower else trained, rows, comparison.finish)
