"""The ranks as they are found."""

import pytest
import torch

from emberline.errors import ConfigError
from emberline.train.config.planner_config import PlannerConfig
from emberline.train.sharding import create_sharders, process_group
from emberline.train.sharding import found as found_module
from emberline.train.sharding.found import find_hardware, hardware_here
from emberline.train.sharding.memory import host_memory
from emberline.train.sharding.planner import create_planner
from tests.train.sharding.cases import GIB, deep, group_of, id_feature


def test_hardware_is_found_and_what_the_config_says_goes_first() -> None:
    settings = PlannerConfig(ddr_bandwidth=33.0, ssd_gib=1.5)
    found = find_hardware(settings, torch.device("cpu"), 4, 2)
    assert (found.device, found.world_size, found.local_world_size, found.hbm, found.ssd) == ("cpu", 4, 2, 0, 3 * GIB // 2)
    assert found.ddr == host_memory() // 2
    assert found.speeds.as_dict() == {"hbm": 1.0, "ddr": 33.0, "hbm_to_ddr": 1.0, "intra_node": 2.0, "inter_node": 1.0}
    assert found.speeds.sources == {"ddr": "given"}


def test_measuring_leaves_given_numbers() -> None:
    found = find_hardware(PlannerConfig(measure_bandwidths=True), torch.device("cpu"))
    assert found.speeds.sources == {"ddr": "measured"}
    assert 0.1 < found.speeds.ddr < 10_000
    fixed = find_hardware(PlannerConfig(measure_bandwidths=True, ddr_bandwidth=7.0), torch.device("cpu"))
    assert (fixed.speeds.ddr, fixed.speeds.sources) == (7.0, {"ddr": "given"})


def test_the_launchers_numbers_must_fit_together() -> None:
    with pytest.raises(ConfigError, match="local_world_size must divide world_size 4, found 3"):
        find_hardware(PlannerConfig(), torch.device("cpu"), 4, 3)


@pytest.mark.parametrize(
    ("name", "speed", "source"),
    [("NVIDIA H200", 4800.0, "of NVIDIA H200"), ("NVIDIA Unheard 7", 2000.0, None), ("NVIDIA H100 80GB HBM3", 3350.0, "of NVIDIA H100 80GB HBM3")],
)
def test_the_memory_of_a_known_gpu_is_as_fast_as_its_data_sheet_says(
    monkeypatch: pytest.MonkeyPatch, name: str, speed: float, source: str | None
) -> None:
    monkeypatch.setattr(found_module, "gpu_name", lambda index: name if index == 3 else "another")
    monkeypatch.setattr(found_module, "gpu_memory", lambda index: (80 + index) * GIB)
    hardware = find_hardware(PlannerConfig(), torch.device("cuda", 3), 4, 4)
    assert (hardware.hbm, hardware.speeds.hbm, hardware.speeds.sources.get("hbm")) == (83 * GIB, speed, source)
    assert f"hbm {speed:g} ({source or 'assumed'}), ddr 100 (assumed)" in hardware.lines()[1]
    given = find_hardware(PlannerConfig(hbm_bandwidth=7.0), torch.device("cuda", 3), 4, 4)
    assert (given.speeds.hbm, given.speeds.sources) == (7.0, {"hbm": "given"})


def test_a_planner_without_hardware_is_for_what_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    group = group_of(id_feature("a", 100) + deep("a"))
    planner = create_planner(group, batch_size=8)
    here = planner.hardware
    assert here == hardware_here()
    assert (here.world_size, here.local_world_size, here.ddr) == (1, 1, host_memory())
    assert planner.plan(group, create_sharders()).plan["pooled.ebc"]["a_emb"].ranks == [0]
    launched = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for variable, value in launched.items():
        monkeypatch.setenv(variable, value)
    four = create_planner(group, batch_size=8).hardware
    assert (four.world_size, four.local_world_size, four.ddr) == (4, 2, host_memory() // 2)


def test_a_group_on_cpus_plans_for_cpus_whatever_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with process_group("cpu"):
        assert hardware_here().device == "cpu"
