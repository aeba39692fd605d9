"""Bandwidths of GPUs by the names that CUDA has for them."""

import pytest

from emberline.train.sharding.gpus import known_hbm_bandwidth


@pytest.mark.parametrize(
    ("name", "speed"),
    [
        ("Tesla V100-SXM2-16GB", 900.0),
        ("Tesla V100S-PCIE-32GB", 1134.0),
        ("Tesla T4", 320.0),
        ("NVIDIA A10", 600.0),
        ("NVIDIA A10G", 600.0),
        ("NVIDIA L4", 300.0),
        ("NVIDIA L40", 864.0),
        ("NVIDIA L40S", 864.0),
        ("NVIDIA A100-SXM4-40GB", 1555.0),
        ("A100-PCIE-40GB", 1555.0),
        ("NVIDIA A100-SXM4-80GB", 2039.0),
        ("NVIDIA A100 80GB PCIe", 1935.0),
        ("NVIDIA H100 PCIe", 2000.0),
        ("NVIDIA H100 80GB HBM3", 3350.0),
        ("NVIDIA H100 NVL", 3900.0),
        ("NVIDIA H200", 4800.0),
        ("NVIDIA B200", 8000.0),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None),
        ("NVIDIA A1000", None),
        ("NVIDIA T400", None),
        ("NVIDIA GB200", None),
        ("AMD Instinct MI300X", None),
        ("", None),
    ],
)
def test_names_lead_to_data_sheets(name: str, speed: float | None) -> None:
    assert known_hbm_bandwidth(name) == speed
