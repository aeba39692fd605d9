"""How fast rows of a dynamic table are read and taught, by where the plan puts them.

A table that is all in the fast memory has that memory's speed, others lie between both memories:

    GB/s = (ratio x fast + (1 - ratio) x slow) / slowdown

The ratio is no share of bytes: it was fitted to what TorchEasyRec's authors measured on an A10 with ids of a power law (exponent 1.05), where
CACHING took 3.3 times as long as all in the GPU's memory, and HYBRID 6.8 times, and the share hardly mattered. All numbers are assumptions until
somebody measures them on the hardware at hand.
"""

from dataclasses import dataclass, replace
from typing import Any

from emberline.train.config.planner_config import PlannerConfig
from emberline.train.dynamic.options import DynamicEmbOptions
from emberline.train.sharding.hardware import Bandwidths


@dataclass(frozen=True, kw_only=True)
class GrowthCosts:
    """The numbers of one device.

    Args:
        caching: ratio of a CACHING table whose share is 0, and what it gains up to a share of 1.
        hybrid: likewise of a HYBRID table.
        slowdown: of any dynamic table against a static one, whose rows need not be looked for.
        disk: GB/s of the file behind a CPU's memory; of no meaning on GPUs.
    """

    caching: tuple[float, float] = (0.28, 0.01)
    hybrid: tuple[float, float] = (0.11, 0.01)
    slowdown: float
    disk: float = 0.0


COSTS = {"cuda": GrowthCosts(slowdown=10.0), "cpu": GrowthCosts(slowdown=2.0, disk=1.0)}
"""By device."""


def effective_ratio(options: DynamicEmbOptions, costs: GrowthCosts) -> float:
    """How near a table comes to the speed of the fast memory, 1, from that of the slow one, 0."""
    share = options.cache_load_factor
    if share is None or share >= 1.0:
        return 1.0
    base, slope = costs.caching if options.caching else costs.hybrid
    return min(1.0, base + slope * share)


def costs_of(settings: PlannerConfig, device: str) -> GrowthCosts:
    """The numbers of a device, as far as a config does not say others."""
    assumed = COSTS[device]
    ratios = {"caching": settings.dynamicemb_caching_ratio, "hybrid": settings.dynamicemb_hybrid_ratio}
    given: dict[str, Any] = {name: (base, getattr(assumed, name)[1]) for name, base in ratios.items() if base is not None}
    others = {"slowdown": settings.dynamicemb_slowdown, "disk": settings.disk_bandwidth}
    given |= {name: value for name, value in others.items() if value is not None}
    return replace(assumed, **given)


def slowness(options: DynamicEmbOptions, device: str, speeds: Bandwidths, costs: GrowthCosts | None = None) -> float:
    """How many times longer rows take than those of a static table in the fast memory.

    Args:
        options: with the planner's choice.
        device: `cpu` or `cuda`.
        speeds: of the memories.
        costs: None: those of the device.
    """
    found = costs or COSTS[device]
    fast, slow = (speeds.hbm, speeds.hbm_to_ddr) if device == "cuda" else (speeds.ddr, min(found.disk, speeds.ddr))
    ratio = effective_ratio(options, found)
    return fast * found.slowdown / (ratio * fast + (1.0 - ratio) * slow)
