"""The optimiser of embedding tables. It runs inside backward, over the rows of the batch, in the kernel that holds the table.

On the CPU the kernels are ours (`emberline.train.kernels`), on a GPU fbgemm's; the numbers are the same. A table that no optimiser is put on would be
trained with the kernel's own default, so a frozen table gets SGD with a learning rate of 0.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch
from fbgemm_gpu.split_table_batched_embeddings_ops_training import WeightDecayMode
from torch import nn
from torch.distributed.optim.apply_optimizer_in_backward import _apply_optimizer_in_backward
from torchrec import optim
from torchrec.distributed.model_parallel import DistributedModelParallel

from emberline.errors import ConfigError
from emberline.train import kernels
from emberline.train.config.optimizer_configs import (
    FusedAdadeltaConfig,
    FusedAdagradConfig,
    FusedAdamConfig,
    FusedLambConfig,
    FusedLarsSgdConfig,
    FusedPartialRowWiseAdamConfig,
    FusedPartialRowWiseLambConfig,
    FusedRmsPropConfig,
    FusedRowWiseAdagradConfig,
    FusedSgdConfig,
    SparseOptimizer,
)
from emberline.train.kernels import ROW_OPTIMIZER, Moment, RowOptimizer
from emberline.train.optim.border import kernels_of

_KINDS: Mapping[type[Any], tuple[type[torch.optim.Optimizer], type[RowOptimizer]]] = {
    FusedSgdConfig: (optim.SGD, kernels.Sgd),
    FusedAdagradConfig: (optim.Adagrad, kernels.Adagrad),
    FusedRowWiseAdagradConfig: (optim.RowWiseAdagrad, kernels.RowWiseAdagrad),
    FusedAdamConfig: (optim.Adam, kernels.Adam),
    FusedPartialRowWiseAdamConfig: (optim.PartialRowWiseAdam, kernels.PartialRowWiseAdam),
    FusedLambConfig: (optim.LAMB, kernels.Lamb),
    FusedPartialRowWiseLambConfig: (optim.PartialRowWiseLAMB, kernels.PartialRowWiseLamb),
    FusedLarsSgdConfig: (optim.LarsSGD, kernels.LarsSgd),
    FusedAdadeltaConfig: (optim.Adam, kernels.AdaDelta),
    FusedRmsPropConfig: (optim.Adagrad, kernels.RmsProp),
}
"""What TorchRec knows each optimiser by, and our class. What fbgemm does not have goes by one with as many moments, which the planner counts."""
_OURS_ALONE = (FusedAdadeltaConfig, FusedRmsPropConfig)
_NOT_FOR_KERNELS = ("gradient_clipping", "max_gradient", "initial_accumulator_value")
"""`TableBorder` clips, `set_initial_moments` fills."""


def apply_sparse_optimizer(tables: Mapping[str, nn.Parameter], config: SparseOptimizer) -> None:
    """Put the optimiser on the tables' parameters, before they are sharded; tables that need no gradient stay as they are.

    Args:
        tables: parameters [rows, dim] by table name.
        config: which optimiser.
    """
    known_as = _KINDS[type(config)][0]
    for weight in tables.values():
        if weight.requires_grad:
            _apply_optimizer_in_backward(known_as, [weight], _arguments(config))
            continue
        weight.requires_grad_(True)  # PyTorch's function wants it
        _apply_optimizer_in_backward(torch.optim.SGD, [weight], {"lr": 0.0})
        weight.requires_grad_(False)


def check_device(config: SparseOptimizer, device: str) -> None:
    """Refuse an optimiser that has no kernel on a kind of device.

    Args:
        config: which optimiser.
        device: "cpu" or "cuda".

    Raises:
        ConfigError: says which, and why.
    """
    if device != "cpu" and isinstance(config, _OURS_ALONE):
        name = _KINDS[type(config)][1].__name__.lower()
        raise ConfigError(f"train_config: sparse_optimizer: {name}_optimizer is for CPUs: fbgemm has no {device} kernel for it; use another")


def moments_of(config: SparseOptimizer) -> tuple[Moment, ...]:
    """What is kept for each row that learns."""
    build: Any = _KINDS[type(config)][1]
    moments: tuple[Moment, ...] = build().moments
    return moments


def initial_moment(config: SparseOptimizer) -> float:
    """What the moments of a row begin with."""
    return config.initial_accumulator_value if isinstance(config, FusedAdagradConfig | FusedRowWiseAdagradConfig) else 0.0


@torch.no_grad()
def set_initial_moments(model: DistributedModelParallel, config: SparseOptimizer) -> None:
    """Give every moment of every table the value that training begins with; of tables that grow, every row that comes."""
    value = initial_moment(config)
    if value == 0.0:
        return
    for kernel, _ in kernels_of(model):
        begin: Any = getattr(kernel, "set_initial_moment", None)
        if begin is not None:
            begin(value)
    for moments in model.fused_optimizer.state_dict()["state"].values():
        for moment in moments.values():
            for shard in moment.local_shards():
                shard.tensor.fill_(value)


def _arguments(config: SparseOptimizer) -> dict[str, Any]:
    """What TorchRec hands to the kernel. It writes into this, so each table has its own."""
    found = {name: value for name, value in asdict(config).items() if name not in _NOT_FOR_KERNELS}
    if isinstance(config, FusedRowWiseAdagradConfig):
        found["weight_decay_mode"] = WeightDecayMode[config.weight_decay_mode.name]
    return {**found, ROW_OPTIMIZER: _KINDS[type(config)][1]} if isinstance(config, _OURS_ALONE) else found
