"""The plan of a job."""

from pathlib import Path

import pytest
from torch import nn

from emberline.errors import ConfigError
from emberline.train.config import PipelineConfig, parse_config
from emberline.train.sharding import create_sharders
from emberline.train.sharding.job_plan import plan_for
from emberline.train.sharding.plan_cli import plannable_model
from tests.train.sharding.cases import cpus, deep, gpus, id_feature, zch_feature

TRAIN = "train_config {{ sparse_optimizer {{ sgd_optimizer {{}} }} dense_optimizer {{ sgd_optimizer {{}} }} {more} }}"
TABLES = id_feature("a", 1000, 16) + zch_feature("z", 40) + deep("a", "z")


def a_job(more: str = "", tables: str = TABLES) -> tuple[nn.Module, PipelineConfig]:
    config = parse_config(tables + TRAIN.format(more=more))
    return plannable_model(config), config


def types(plan: object) -> dict[str, str]:
    return {name: own.sharding_type for tables in plan.plan.values() for name, own in tables.items()}  # type: ignore[attr-defined]


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


def test_without_bounds_whatever_fits_is_planned() -> None:
    """As to score on other ranks than the config's pins are for."""
    tables = id_feature("a", 1000, 16, 'sharding_types: "row_wise" compute_kernels: "fused" ranks: [0, 5] max_hbm_mib: 0.001') + zch_feature("z", 40)
    model, config = a_job("global_embedding_constraints { ranks: 7 min_partition: 8 }", tables + deep("a", "z"))
    with pytest.raises(ConfigError, match="there are ranks 0 to 1, and ranks has 5"):
        plan_for(model, create_sharders(), config, cpus(2))
    plan = plan_for(model, create_sharders(), config, cpus(2), bound=False)
    assert set(types(plan)) == {"a_emb", "z_emb"}
    assert max(rank for tables in plan.plan.values() for own in tables.values() for rank in own.ranks) < 2
