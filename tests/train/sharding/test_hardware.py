"""Clusters as TorchRec sees them."""

from typing import Any

import pytest

from emberline.errors import ConfigError
from emberline.train.sharding.hardware import ASSUMED, BANDWIDTH_NAMES, Hardware


def test_torchrec_gets_each_number_in_its_own_unit() -> None:
    speeds = ASSUMED["cuda"].known({"hbm": 3000.0, "inter_node": None}, "given")
    topology = Hardware(device="cuda", world_size=16, local_world_size=8, hbm=80, ddr=90, ssd=7, bandwidths=speeds).topology()
    assert (topology.world_size, topology.local_world_size, topology.compute_device) == (16, 8, "cuda")
    assert [(device.rank, device.storage.hbm, device.storage.ddr, device.storage.ssd) for device in topology.devices] == [
        (rank, 80, 90, 7) for rank in range(16)
    ]
    assert topology.hbm_mem_bw == 3000e9 / 1000  # bytes a millisecond
    assert topology.ddr_mem_bw == 100e9 / 1000
    assert topology.hbm_to_ddr_mem_bw == 25e9 / 1000
    assert (topology.intra_host_bw, topology.inter_host_bw) == (300e9 / 1000, 25e9 / 1000)


def test_cpus_have_no_gpu_memory() -> None:
    hardware = Hardware(device="cpu", world_size=4, local_world_size=2, ddr=1 << 30)
    assert (hardware.num_nodes, hardware.table_memory) == (2, 1 << 30)
    assert {(device.storage.hbm, device.storage.ddr) for device in hardware.topology().devices} == {(0, 1 << 30)}
    assert hardware.topology().ddr_mem_bw == 20e9 / 1000


def test_it_says_what_it_is() -> None:
    speeds = ASSUMED["cuda"].known({"hbm": 3350.0}, "measured")
    gpus = Hardware(device="cuda", world_size=16, local_world_size=8, hbm=80 << 30, ddr=200 << 30, ssd=1 << 40, bandwidths=speeds)
    assert gpus.lines() == (
        "16 cuda ranks, 8 a machine, each with 80 GiB hbm, 200 GiB ddr, 1 TiB ssd",
        "GB/s: hbm 3350 (measured), ddr 100 (assumed), hbm_to_ddr 25 (assumed), intra_node 300 (assumed), inter_node 25 (assumed)",
    )
    assert Hardware(device="cpu", world_size=1, local_world_size=1, ddr=0).lines() == (
        "1 cpu rank, 1 a machine, each with 0 B ddr",
        "GB/s: ddr 20 (assumed), intra_node 2 (assumed), inter_node 1 (assumed)",
    )


def test_bandwidths_know_where_they_come_from() -> None:
    speeds = ASSUMED["cpu"].known({"ddr": 30.0}, "given").known({"intra_node": 5.0, "inter_node": None}, "measured")
    assert speeds.as_dict() == {"hbm": 1.0, "ddr": 30.0, "hbm_to_ddr": 1.0, "intra_node": 5.0, "inter_node": 1.0}
    assert speeds.sources == {"ddr": "given", "intra_node": "measured"}
    assert BANDWIDTH_NAMES == ("hbm", "ddr", "hbm_to_ddr", "intra_node", "inter_node")


@pytest.mark.parametrize(
    ("numbers", "problem"),
    [
        ({"world_size": 0}, "world_size must be at least 1, found 0"),
        ({"local_world_size": 3}, "local_world_size must divide world_size 8, found 3: all machines have alike many ranks"),
        ({"local_world_size": 0}, "local_world_size must divide world_size 8, found 0: all machines have alike many ranks"),
        ({"local_world_size": 16}, "local_world_size must divide world_size 8, found 16: all machines have alike many ranks"),
        ({"hbm": 0}, "hbm must be above 0 on GPUs, found 0"),
        ({"ddr": -1}, "ddr must be 0 or more, found -1"),
        ({"device": "tpu"}, "device must be one of cpu, cuda, found 'tpu'"),
    ],
)
def test_numbers_that_no_cluster_has_are_refused(numbers: dict[str, Any], problem: str) -> None:
    sizes: dict[str, Any] = {"device": "cuda", "world_size": 8, "local_world_size": 8, "hbm": 1, "ddr": 1} | numbers
    with pytest.raises(ConfigError) as caught:
        Hardware(**sizes)
    assert f"hardware: {problem}" in caught.value.problems
