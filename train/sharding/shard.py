"""A model under `DistributedModelParallel`."""

import torch
from torch import nn
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.types import ModuleSharder, ShardingPlan

from emberline.train.sharding.uneven_batches import allow_uneven_batches

_CPU = torch.device("cpu")


def shard_model(
    model: nn.Module, plan: ShardingPlan, sharders: list[ModuleSharder[nn.Module]], world_size: int = 1, device: torch.device = _CPU
) -> DistributedModelParallel:
    """Shard the tables of `model` by a plan; its embedding collections are replaced, and its tables drawn anew.

    Call it after the sparse optimiser was put on the tables' parameters, and within a process group. With one process, the dense part is
    not wrapped in DDP: there is nobody to average gradients with.

    Args:
        model: its tables have no memory yet.
        plan: which rank gets which part of which table.
        sharders: one for each kind of collection.
        world_size: ranks in all.
        device: of this rank.
    """
    learns = any(parameter.requires_grad for name, parameter in model.named_parameters() if not parameter.is_meta)
    sharded = DistributedModelParallel(model, device=device, plan=plan, sharders=sharders, init_data_parallel=world_size > 1 and learns)
    if device.type != "cpu":
        return sharded.to(device)
    allow_uneven_batches(sharded)
    return sharded
