"""How fast the memory of known GPUs is: what their makers' data sheets say, in GB/s."""

import re
from collections.abc import Mapping

import torch

HBM_GB_PER_S: Mapping[str, float] = {
    r"V100S": 1134.0,
    r"V100": 900.0,
    r"T4": 320.0,
    r"A10G?": 600.0,
    r"L4": 300.0,
    r"L40S?": 864.0,
    r"A100.*80GB.*PCIE|A100.*PCIE.*80GB": 1935.0,
    r"A100.*80GB": 2039.0,
    r"A100": 1555.0,
    r"H100.*NVL": 3900.0,
    r"H100.*PCIE": 2000.0,
    r"H100": 3350.0,
    r"H200": 4800.0,
    r"B200": 8000.0,
}
"""By what a name has after its maker and `Tesla`, in capitals; of patterns that fit, the first counts."""


def known_hbm_bandwidth(name: str) -> float | None:
    """GB/s of the memory of a GPU with this name; None where it is not known, as of a part of a GPU.

    Args:
        name: as CUDA has it, such as `NVIDIA A100-SXM4-80GB`.
    """
    model = re.sub(r"^(NVIDIA |TESLA )*", "", name.upper().strip())
    if re.search(r"\bMIG\b", model):
        return None
    return next((speed for pattern, speed in HBM_GB_PER_S.items() if re.match(rf"(?:{pattern})(?![A-Z0-9])", model)), None)


def gpu_name(index: int) -> str:
    """The name of one GPU of this machine."""
    return torch.cuda.get_device_name(index)
