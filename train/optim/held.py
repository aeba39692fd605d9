"""Updates of tables that wait until a step has all its batches."""

from collections.abc import Collection

import torch
import torch.distributed as dist
from torch import Tensor, nn

from emberline.errors import ConfigError
from emberline.train.kernels import FusedTables
from emberline.train.optim.border import kernels_of


class HeldUpdates:
    """The updates of all tables that learn, kept by their kernels from one backward to the next: one update with the sum of all gradients, as
    if the rows of all batches had come in one. Adagrad's moments, for one, are squares of sums, not sums of squares.

    Args:
        model: after sharding; its kernels hold updates from now on.
        frozen: tables that do not learn.
        asked_by: the setting of `train_config` that needs it, for messages.

    Raises:
        ConfigError: tables are in kernels that cannot wait; names them.
    """

    def __init__(self, model: nn.Module, frozen: Collection[str] = (), asked_by: str = "gradient_accumulation_steps") -> None:
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
            raise ConfigError(f"train_config: {asked_by}: tables {shown} are in kernels that learn from each batch at once; leave it out")
        for tables in self._tables:
            tables.gate.hold = True

    def apply(self, share: float = 1.0) -> None:
        """Let the tables learn, from gradients divided by `share`."""
        for tables in self._tables:
            tables.gate.scale = share
            tables.apply_held()
            tables.gate.scale = 1.0

    def norm(self, norm_type: float, device: torch.device) -> Tensor:
        """The norm of what is kept of all tables, over all ranks, float64: of the sums by row, each row once, wherever it lies.

        All ranks must call it together.

        Args:
            norm_type: the p of the norm; may be infinite.
            device: what ranks exchange numbers on.
        """
        parts = [torch.zeros((), dtype=torch.float64)]
        for tables in self._tables:
            gradients = tables.sum_held() or ()
            if tables.copies is None or tables.copies.share(1) == (0, 1):  # copies have the same sums: one of them counts
                parts += [torch.linalg.vector_norm(part.sums(0, len(part.rows)), norm_type, dtype=torch.float64).cpu() for part in gradients]
        own: Tensor = torch.linalg.vector_norm(torch.stack(parts), norm_type)
        if not dist.is_initialized() or dist.get_world_size() == 1:
            return own
        found = [torch.empty_like(own, device=device) for _ in range(dist.get_world_size())]
        dist.all_gather(found, own.to(device))
        whole: Tensor = torch.linalg.vector_norm(torch.stack(found), norm_type)
        return whole.cpu()

    def drop(self) -> None:
        """Let the tables learn nothing from what they hold."""
        for tables in self._tables:
            tables.drop_held()
