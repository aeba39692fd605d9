"""The ranks as they are: what is found on this machine, what the launcher says, and what a config says instead."""

from dataclasses import replace

import torch
import torch.distributed as dist

from emberline.train.config.planner_config import PlannerConfig
from emberline.train.sharding.bandwidth import measure_bandwidths
from emberline.train.sharding.gpus import gpu_name, known_hbm_bandwidth
from emberline.train.sharding.hardware import ASSUMED, Bandwidths, Hardware, with_measured
from emberline.train.sharding.memory import gpu_memory, rank_memory
from emberline.train.sharding.process_group import num_ranks


def find_hardware(settings: PlannerConfig, device: torch.device, world_size: int = 1, local_world_size: int = 1) -> Hardware:
    """The ranks of a job as they are: memory is looked up here, bandwidths are given, measured, those of a known GPU, or assumed.

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
        bandwidths=_speeds(device).known(settings.bandwidths, "given"),
    )
    return with_measured(found, measure_bandwidths(kind, local_world_size)) if settings.measure_bandwidths else found


def hardware_here(settings: PlannerConfig | None = None) -> Hardware:
    """The ranks of this process's group, or of its launcher, or this process alone: on its GPU, where it has one that the group can use."""
    on_gpu = torch.cuda.is_available() and (not dist.is_initialized() or "nccl" in dist.get_backend_config())
    device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
    return find_hardware(replace(settings or PlannerConfig(), measure_bandwidths=False), device, *num_ranks())


def _speeds(device: torch.device) -> Bandwidths:
    """What is assumed, but for the memory of a GPU whose data sheet is known."""
    assumed = ASSUMED[device.type]
    if device.type != "cuda":
        return assumed
    name = gpu_name(device.index or 0)
    return assumed.known({"hbm": known_hbm_bandwidth(name)}, f"of {name}")
