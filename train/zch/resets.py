"""Starting rows afresh when they change owner: a new initial vector, and optimizer moments as at the beginning."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torchrec.distributed.mc_embeddingbag import ShardedManagedCollisionEmbeddingBagCollection

from emberline.train.zch.id_map import zch_modules

Init = Callable[[Tensor], Tensor]
RowResetCallback = Callable[[str, nn.Parameter, Tensor], None]
"""Called with the table's name, its weight [rows, dim] and the rows [n] that were just given new vectors."""


@torch.no_grad()
def reset_vectors(weight: Tensor, rows: Tensor, init: Init) -> None:
    """Draw new initial vectors for `rows` [n] of `weight` [rows, dim]."""
    weight[rows] = init(weight.new_empty(rows.numel(), weight.shape[1]))


class KernelRowReset:
    """Starts rows of a table afresh inside a fused kernel, moments included.

    Args:
        kernel: fbgemm's table-batched embedding, which holds the table.
        index: the table's place in the kernel.
        init: fills a tensor with initial vectors.
        initial_moment: what the optimizer's moments begin with.
    """

    def __init__(self, kernel: Any, index: int, init: Init, initial_moment: float = 0.0) -> None:
        self.kernel = kernel
        self.index = index
        self.init = init
        self.initial_moment = initial_moment

    @torch.no_grad()
    def __call__(self, rows: Tensor) -> None:
        """Reset the local `rows` [n]."""
        reset_vectors(self.kernel.split_embedding_weights()[self.index], rows, self.init)
        if not hasattr(self.kernel, "split_optimizer_states"):
            return
        states = self.kernel.split_optimizer_states()  # empty for optimizers without moments
        for moment in states[self.index] if states else ():
            moment[rows] = self.initial_moment


def install_row_resets(module: ShardedManagedCollisionEmbeddingBagCollection, inits: Mapping[str, Init], initial_moment: float = 0.0) -> None:
    """Let every id map of a sharded collection reset its table's rows in the kernel that holds them; again, it changes nothing.

    Args:
        module: TorchRec's sharded form.
        inits: initial vectors by table; tables that are not named are left alone.
        initial_moment: what the optimizer's moments begin with.
    """
    for table, zch in zch_modules(module).items():
        kernel, index = module._table_to_tbe_and_index[table]
        if zch.reset_rows is None:
            zch.reset_rows = KernelRowReset(kernel, int(index), inits[table], initial_moment) if table in inits else _leave_alone


def _leave_alone(rows: Tensor) -> None:
    """For frozen tables: their vectors are what they are, whoever owns them."""


def zero_moments(optimizer: torch.optim.Optimizer, initial_moment: float = 0.0) -> RowResetCallback:
    """A callback for `EmbeddingGroup.on_row_reset`: the rows' moments in a plain optimizer begin anew."""

    def reset(_table: str, weight: nn.Parameter, rows: Tensor) -> None:
        for moment in optimizer.state.get(weight, {}).values():
            if isinstance(moment, Tensor) and moment.shape[:1] == weight.shape[:1]:
                moment[rows] = initial_moment

    return reset
