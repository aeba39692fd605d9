"""A model under `DistributedModelParallel`."""

import torch
from torch import nn
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.types import ModuleSharder, ShardingPlan


def shard_model(model: nn.Module, plan: ShardingPlan, sharders: list[ModuleSharder[nn.Module]], world_size: int = 1) -> DistributedModelParallel:
    """Shard the tables of `model` by a plan; its embedding collections are replaced, and its tables drawn anew.

    Call it after the sparse optimiser was put on the tables' parameters, and within a process group. With one process, the dense part is
    not wrapped in DDP: there is nobody to average gradients with.
    """
    return DistributedModelParallel(model, device=torch.device("cpu"), plan=plan, sharders=sharders, init_data_parallel=world_size > 1)
