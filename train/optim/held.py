"""Updates of tables that wait until a step has all its batches."""

from collections.abc import Collection

from torch import nn

from emberline.errors import ConfigError
from emberline.train.kernels import FusedTables
from emberline.train.optim.border import kernels_of


class HeldUpdates:
    """The updates of all tables that learn, kept by their kernels from one backward to the next: one update with the sum of all gradients, as
    if the rows of all batches had come in one. Adagrad's moments, for one, are squares of sums, not sums of squares.

    Args:
        model: after sharding; its kernels hold updates from now on.
        frozen: tables that do not learn.

    Raises:
        ConfigError: tables are in kernels that cannot wait; names them.
    """

    def __init__(self, model: nn.Module, frozen: Collection[str] = ()) -> None:
        self._tables: list[FusedTables] = []
        hasty: set[str] = set()
        for kernel, names in kernels_of(model):
            tables = getattr(kernel.emb_module, "tables", None)
            if isinstance(tables, FusedTables):
                self._tables.append(tables)
            elif not names <= set(frozen):
                hasty |= names
        if hasty:
            shown = ", ".join(sorted(hasty))
            raise ConfigError(
                f"train_config: gradient_accumulation_steps: tables {shown} are in kernels that learn from each batch at once; leave it out"
            )
        for tables in self._tables:
            tables.gate.hold = True

    def apply(self, share: float = 1.0) -> None:
        """Let the tables learn, from gradients divided by `share`."""
        for tables in self._tables:
            tables.gate.scale = share
            tables.apply_held()
            tables.gate.scale = 1.0

    def drop(self) -> None:
        """Let the tables learn nothing from what they hold."""
        for tables in self._tables:
            tables.drop_held()
