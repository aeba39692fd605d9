"""The optimiser of embedding tables. It runs inside backward, over the rows of the batch, in the kernel that holds the table.

Fused kernels know only SGD, Adagrad and row-wise Adagrad on the CPU, which is what a config may ask for. A table that no optimiser is put on
would be trained with the kernel's own default, so a frozen table gets SGD with a learning rate of 0.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.optim.apply_optimizer_in_backward import _apply_optimizer_in_backward
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.optim import RowWiseAdagrad

from emberline.train.config.optimizer_configs import FusedAdagradConfig, FusedRowWiseAdagradConfig, FusedSgdConfig, SparseOptimizer


def apply_sparse_optimizer(tables: Mapping[str, nn.Parameter], config: SparseOptimizer) -> None:
    """Put the optimiser on the tables' parameters, before they are sharded; tables that need no gradient stay as they are.

    Args:
        tables: parameters [rows, dim] by table name.
        config: which optimiser.
    """
    optimizer_class, arguments = _fused(config)
    for weight in tables.values():
        if weight.requires_grad:
            _apply_optimizer_in_backward(optimizer_class, [weight], arguments)
            continue
        weight.requires_grad_(True)  # PyTorch's function wants it
        _apply_optimizer_in_backward(torch.optim.SGD, [weight], {"lr": 0.0})
        weight.requires_grad_(False)


def initial_moment(config: SparseOptimizer) -> float:
    """What the moments of a row begin with."""
    return 0.0 if isinstance(config, FusedSgdConfig) else config.initial_accumulator_value


@torch.no_grad()
def set_initial_moments(model: DistributedModelParallel, config: SparseOptimizer) -> None:
    """Give every moment of every table the value that training begins with."""
    value = initial_moment(config)
    if value == 0.0:
        return
    for moments in model.fused_optimizer.state_dict()["state"].values():
        for moment in moments.values():
            for shard in moment.local_shards():
                shard.tensor.fill_(value)


def _fused(config: SparseOptimizer) -> tuple[type[torch.optim.Optimizer], dict[str, Any]]:
    match config:
        case FusedSgdConfig():
            return torch.optim.SGD, {"lr": config.lr}
        case FusedAdagradConfig():
            return torch.optim.Adagrad, {"lr": config.lr}
        case FusedRowWiseAdagradConfig():
            return RowWiseAdagrad, {"lr": config.lr}
