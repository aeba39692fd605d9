"""The plan of a training job: of a saved file, or made for the hardware that is found."""

from collections.abc import Mapping
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torchrec.distributed.types import ModuleSharder, ShardingPlan

from emberline.train.config import PipelineConfig
from emberline.train.config.planner_config import PlannerConfig
from emberline.train.optim import check_device
from emberline.train.sharding.bandwidth import measure_bandwidths
from emberline.train.sharding.constraints import Traffic
from emberline.train.sharding.fit_plan import sharding_plan
from emberline.train.sharding.hardware import ASSUMED, Hardware
from emberline.train.sharding.memory import gpu_memory, rank_memory
from emberline.train.sharding.plan import check_dims
from emberline.train.sharding.planner import create_planner, with_measured
from emberline.train.sharding.saved_plan import read_plan


def find_hardware(settings: PlannerConfig, device: torch.device, world_size: int = 1, local_world_size: int = 1) -> Hardware:
    """The ranks of a job as they are: memory is looked up here, bandwidths are given, measured or assumed.

    All ranks must call it together where bandwidths are to be measured.

    Args:
        settings: what the config says.
        device: this rank's.
        world_size: ranks in all, as the launcher says.
        local_world_size: ranks of each machine, likewise.

    Raises:
        ConfigError: the launcher's numbers do not fit together.
    """
    kind = device.type
    found = Hardware(
        device=kind,
        world_size=world_size,
        local_world_size=local_world_size,
        hbm=gpu_memory(device.index or 0) if kind == "cuda" else 0,
        ddr=rank_memory(local_world_size),
        ssd=round(settings.ssd_gib * 2**30),
        bandwidths=ASSUMED[kind].known(settings.bandwidths, "given"),
    )
    return with_measured(found, measure_bandwidths(kind, local_world_size)) if settings.measure_bandwidths else found


def plan_for(
    model: nn.Module,
    sharders: list[ModuleSharder[nn.Module]],
    config: PipelineConfig,
    hardware: Hardware,
    *,
    saved: Path | None = None,
    traffic: Mapping[str, Traffic] | None = None,
) -> ShardingPlan:
    """The plan that a job runs by, the same on all ranks.

    Args:
        model: its tables are not sharded yet, and have the sparse optimiser on them.
        sharders: one for each kind of collection.
        config: a whole pipeline.
        hardware: the ranks.
        saved: a plan's file; None: the planner makes one.
        traffic: what features were seen to read.

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
        traffic=traffic,
        storage_reserve=settings.planner.storage_reserve,
    )
    together = dist.is_initialized() and dist.get_world_size() > 1
    return planner.collective_plan(model, sharders) if together else planner.plan(model, sharders)
