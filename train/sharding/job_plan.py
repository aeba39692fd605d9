"""The plan of a training job: of a saved file, or made for the hardware that is found."""

from collections.abc import Mapping
from pathlib import Path

import torch.distributed as dist
from torch import nn
from torchrec.distributed.types import ModuleSharder, ShardingPlan

from emberline.train.config import PipelineConfig
from emberline.train.optim import check_device
from emberline.train.sharding.constraints import Traffic
from emberline.train.sharding.dynamic_costs import costs_of
from emberline.train.sharding.fit_plan import sharding_plan
from emberline.train.sharding.hardware import Hardware
from emberline.train.sharding.plan import check_dims
from emberline.train.sharding.planner import create_planner
from emberline.train.sharding.saved_plan import read_plan


def plan_for(
    model: nn.Module,
    sharders: list[ModuleSharder[nn.Module]],
    config: PipelineConfig,
    hardware: Hardware,
    *,
    saved: Path | None = None,
    traffic: Mapping[str, Traffic] | None = None,
    bound: bool = True,
) -> ShardingPlan:
    """The plan that a job runs by, the same on all ranks.

    Args:
        model: its tables are not sharded yet, and have the sparse optimiser on them.
        sharders: one for each kind of collection.
        config: a whole pipeline.
        hardware: the ranks.
        saved: a plan's file; None: the planner makes one.
        traffic: what features were seen to read.
        bound: whether the planner keeps to what the config asks of tables' places.

    Raises:
        ConfigError: the file does not fit the model or the ranks, or nothing that the constraints allow fits; names tables.
    """
    check_dims(model, sharders, hardware.device)
    check_device(config.need_train().sparse_optimizer.optimizer, hardware.device)
    if saved is not None:
        return sharding_plan(read_plan(saved), model, sharders, hardware)
    settings = config.need_train()
    planner = create_planner(
        model,
        hardware,
        batch_size=config.data.batch_size,
        constraints=settings.global_embedding_constraints,
        tables=settings.constraints_by_table,
        traffic=traffic,
        storage_reserve=settings.planner.storage_reserve,
        bound=bound,
        costs=costs_of(settings.planner, hardware.device),
    )
    together = dist.is_initialized() and dist.get_world_size() > 1
    return planner.collective_plan(model, sharders) if together else planner.plan(model, sharders)
