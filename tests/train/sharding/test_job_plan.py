"""The plan of a job."""

from pathlib import Path

import pytest
import torch
from torch import nn

from emberline.errors import ConfigError
from emberline.train.config import PipelineConfig, parse_config
from emberline.train.config.planner_config import PlannerConfig
from emberline.train.sharding import create_sharders
from emberline.train.sharding.job_plan import find_hardware, plan_for
from emberline.train.sharding.memory import host_memory
from emberline.train.sharding.plan_cli import plannable_model
from tests.train.sharding.cases import GIB, cpus, deep, gpus, id_feature, zch_feature

TRAIN = "train_config {{ sparse_optimizer {{ sgd_optimizer {{}} }} dense_optimizer {{ sgd_optimizer {{}} }} {more} }}"
TABLES = id_feature("a", 1000, 16) + zch_feature("z", 40) + deep("a", "z")


def a_job(more: str = "", tables: str = TABLES) -> tuple[nn.Module, PipelineConfig]:
    config = parse_config(tables + TRAIN.format(more=more))
    return plannable_model(config), config


def types(plan: object) -> dict[str, str]:
    return {name: own.sharding_type for tables in plan.plan.values() for name, own in tables.items()}  # type: ignore[attr-defined]


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


def test_a_job_plans_with_its_config() -> None:
    model, config = a_job('global_embedding_constraints { sharding_types: ["column_wise", "row_wise"] }')
    assert set(types(plan_for(model, create_sharders(), config, cpus(2))).values()) <= {"column_wise", "row_wise"}
    reserved, config = a_job("planner { storage_reserve: 0.99999 }")
    with pytest.raises(ConfigError, match="do not fit on 2 cpu ranks"):
        plan_for(reserved, create_sharders(), config, cpus(2))


def test_one_process_has_every_table_whole() -> None:
    model, config = a_job()
    assert types(plan_for(model, create_sharders(), config, cpus(1))) == {"a_emb": "table_wise", "z_emb": "row_wise"}


def test_a_saved_plan_goes_before_the_planner(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(
        '{"format": "emberline.plan", "version": 1, "world_size": 2, "tables": {"a_emb": {"sharding_type": "column_wise", "ranks": [1, 0]}, '
        '"z_emb": {"sharding_type": "row_wise"}}}'
    )
    model, config = a_job()
    plan = plan_for(model, create_sharders(), config, cpus(2), saved=path)
    assert types(plan) == {"a_emb": "column_wise", "z_emb": "row_wise"}
    assert plan.plan["embedding_group.pooled.ebc"]["a_emb"].ranks == [1, 0]
    with pytest.raises(ConfigError, match="the plan is for 2 ranks, the job has 1"):
        plan_for(model, create_sharders(), config, cpus(1), saved=path)


def test_copies_of_a_table_are_planned_on_cpus_and_refused_on_gpus(tmp_path: Path) -> None:
    model, config = a_job(tables=id_feature("a", 1000, 16, 'sharding_types: "data_parallel"') + deep("a"))
    assert types(plan_for(model, create_sharders(), config, cpus(2))) == {"a_emb": "data_parallel"}
    path = tmp_path / "plan.json"
    path.write_text('{"format": "emberline.plan", "version": 1, "world_size": 2, "tables": {"a_emb": {"sharding_type": "data_parallel"}}}')
    assert types(plan_for(model, create_sharders(), config, cpus(2), saved=path)) == {"a_emb": "data_parallel"}
    for saved in (None, path):
        with pytest.raises(ConfigError, match=r"a_emb': .*data_parallel: copies of a table are trained on CPUs only, as fbgemm's kernels"):
            plan_for(model, create_sharders(), config, gpus(2), saved=saved)
