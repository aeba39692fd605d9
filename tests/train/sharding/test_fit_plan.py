"""Plans that people write, against the model and the ranks."""

from typing import Any

import pytest
from torch import nn

from emberline.errors import ConfigError
from emberline.train.sharding import create_sharders
from emberline.train.sharding.fit_plan import sharding_plan
from emberline.train.sharding.hardware import Hardware
from emberline.train.sharding.report import report_plan
from emberline.train.sharding.saved_plan import SavedPlan, SavedShard, SavedTable
from tests.train.sharding.cases import cpus, deep, gpus, group_of, id_feature, planner_of, zch_feature

TEXT = id_feature("a", 10, 16) + id_feature("b", 9, 16) + zch_feature("z", 8) + deep("a", "b", "z")
B, Z = SavedTable(sharding_type="table_wise", ranks=(0,)), SavedTable(sharding_type="row_wise")


def fitted(tables: dict[str, SavedTable], hardware: Hardware | None = None, world: tuple[int, int] = (4, 2), device: str | None = None) -> Any:
    saved = SavedPlan(world_size=world[0], local_world_size=world[1], tables=tables, device=device)
    return sharding_plan(saved, group_of(TEXT), create_sharders(), hardware or cpus(4, 2)).plan


def problems(tables: dict[str, SavedTable], **other: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        fitted(tables, **other)
    return list(caught.value.problems)


@pytest.mark.parametrize(
    ("table", "ranks", "shards"),
    [
        (SavedTable(sharding_type="row_wise"), [0, 1, 2, 3], [([3, 16], [0, 0]), ([3, 16], [3, 0]), ([3, 16], [6, 0]), ([1, 16], [9, 0])]),
        (SavedTable(sharding_type="table_wise", ranks=(2,)), [2], [([10, 16], [0, 0])]),
        (SavedTable(sharding_type="column_wise", ranks=(3, 1)), [3, 1], [([10, 8], [0, 0]), ([10, 8], [0, 8])]),
        (SavedTable(sharding_type="table_row_wise", ranks=(2, 3)), [2, 3], [([5, 16], [0, 0]), ([5, 16], [5, 0])]),
        (SavedTable(sharding_type="table_column_wise", ranks=(3, 2)), [3, 2], [([10, 8], [0, 0]), ([10, 8], [0, 8])]),
        (
            SavedTable(sharding_type="grid_shard", ranks=(2, 3, 0, 1)),
            [2, 3, 0, 1],
            [([5, 8], [0, 0]), ([5, 8], [5, 0]), ([5, 8], [0, 8]), ([5, 8], [5, 8])],
        ),
        (SavedTable(sharding_type="data_parallel"), [0, 1, 2, 3], None),
    ],
)
def test_what_is_left_out_is_completed(table: SavedTable, ranks: list[int], shards: Any) -> None:
    own = fitted({"a_emb": table, "pooled.ebc.b_emb": B, "z_emb": Z})["pooled.ebc"]["a_emb"]
    assert (own.sharding_type, own.ranks) == (table.sharding_type, ranks)
    assert own.compute_kernel == ("dense" if table.sharding_type == "data_parallel" else "fused")
    if shards is None:
        assert own.sharding_spec is None
        return
    assert [(shard.shard_sizes, shard.shard_offsets) for shard in own.sharding_spec.shards] == shards
    assert [str(shard.placement) for shard in own.sharding_spec.shards] == [f"rank:{rank}/cpu" for rank in ranks]


def test_tables_stand_in_the_models_order() -> None:
    plan = fitted({"z_emb": Z, "b_emb": B, "a_emb": Z})
    assert list(plan) == ["pooled.ebc", "pooled.mc_ebc"]
    assert list(plan["pooled.ebc"]) == ["a_emb", "b_emb"]


def test_missing_and_surplus_tables_are_told_by_name() -> None:
    assert problems({"a_emb": Z, "c_emb": Z, "pooled.ebc.a_emb": Z}) == [
        "unknown table 'c_emb'; did you mean 'z_emb'?",
        "table 'pooled.ebc.a_emb' is there twice, as 'a_emb' too",
        "table 'pooled.ebc.b_emb' is not in the plan",
        "table 'pooled.mc_ebc.z_emb' is not in the plan",
    ]


def test_a_name_of_two_tables_needs_its_path() -> None:
    model = nn.Module()
    for name in ("one", "two"):
        model.add_module(name, group_of(id_feature("a", 10) + deep("a")))
    saved = SavedPlan(world_size=2, local_world_size=2, tables={"a_emb": Z})
    with pytest.raises(ConfigError, match=r"table 'a_emb' could be 'one\.pooled\.ebc\.a_emb' or 'two\.pooled\.ebc\.a_emb'; give the full path"):
        sharding_plan(saved, model, create_sharders(), cpus())


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        (SavedTable(sharding_type="row_wise", rows=11, dim=8), "the plan has rows 11, the model 10"),
        (SavedTable(sharding_type="row_wise", dim=8), "the plan has dim 8, the model 16"),
        (SavedTable(sharding_type="table_wise", ranks=(4,)), "there are ranks 0 to 3, found 4"),
        (SavedTable(sharding_type="table_wise"), "table_wise needs ranks"),
        (SavedTable(sharding_type="table_wise", ranks=(0, 1)), "table_wise has 1 shards here, and 2 ranks are given"),
        (SavedTable(sharding_type="row_wise", ranks=(0, 1)), "row_wise has 4 shards here, and 2 ranks are given"),
        (SavedTable(sharding_type="row_wise", ranks=(1, 0, 2, 3)), "row_wise has its shards on all ranks in order, found 1, 0, 2, 3"),
        (SavedTable(sharding_type="column_wise", ranks=(0, 1, 2)), "column_wise: 5 columns a shard are not among 4, 8"),
        (SavedTable(sharding_type="table_column_wise", ranks=(1, 2)), "table_column_wise has its shards on one machine of 2 ranks, found 1, 2"),
        (SavedTable(sharding_type="table_row_wise", ranks=(1, 0)), "table_row_wise uses all ranks of a machine in order, found 1, 0"),
        (SavedTable(sharding_type="grid_shard", ranks=(0, 1, 1, 2)), "grid_shard uses all ranks of a machine in order, found 0, 1, 1, 2"),
        (SavedTable(sharding_type="rows", ranks=(0,)), "rows: such tables do not know it on cpu"),
        (SavedTable(sharding_type="row_wise", compute_kernel="fused_uvm"), "row_wise: its kernels here are fused"),
        (SavedTable(sharding_type="row_wise", cache_load_factor=0.5), "cache_load_factor is for fused_uvm_caching, not for fused"),
        (
            SavedTable(sharding_type="table_wise", shards=(SavedShard(0, (0, 0), (9, 16)),)),
            "table_wise: the shard of rank 0 must be [10, 16] at [0, 0], found [9, 16] at [0, 0]",
        ),
        (SavedTable(sharding_type="row_wise", shards=(SavedShard(0, (0, 0), (10, 16)),)), "row_wise has 4 shards here, and 1 ranks are given"),
    ],
)
def test_places_that_cannot_be_are_told(table: SavedTable, problem: str) -> None:
    assert problem in [text.removeprefix("table 'pooled.ebc.a_emb': ") for text in problems({"a_emb": table, "b_emb": B, "z_emb": Z})]


def test_zch_tables_are_cut_by_rows_only_and_need_enough() -> None:
    everything = {"a_emb": Z, "b_emb": B}
    wrong = SavedTable(sharding_type="table_wise", ranks=(0,))
    assert problems(everything | {"z_emb": wrong}) == ["table 'pooled.mc_ebc.z_emb': table_wise: such tables do not know it on cpu"]
    found = problems(everything | {"z_emb": Z}, world=(16, 16), hardware=cpus(16))
    assert "table 'pooled.mc_ebc.z_emb': row_wise: 8 rows cannot be cut into 16 equal blocks with none empty" in found


def test_a_plan_for_other_ranks_is_told_as_that() -> None:
    tables = {"a_emb": Z, "b_emb": B, "z_emb": Z}
    assert problems(tables, world=(2, 2), device="cuda") == [
        "the plan is for 2 ranks, the job has 4",
        "the plan is for cuda, the job runs on cpu",
    ]
    assert problems(tables, hardware=gpus(4), device="cpu") == ["the plan is for cpu, the job runs on cuda"]
    by_machines = tables | {"a_emb": SavedTable(sharding_type="table_row_wise", ranks=(0, 1, 2, 3))}
    assert problems(by_machines, world=(4, 4)) == ["the plan counts 4 ranks a machine, the launcher 2; 'a_emb' is planned by machines"]
    assert fitted(tables, world=(4, 4))["pooled.ebc"]["a_emb"].ranks == [0, 1, 2, 3]  # nothing here depends on machines


def test_a_cache_without_a_ratio_has_the_kernels_own_and_is_priced_once() -> None:
    group, hardware = group_of(id_feature("a", 1000, 16) + deep("a")), gpus(2)
    for given, ratio in ((None, 0.2), (0.35, 0.35)):
        table = SavedTable(sharding_type="table_wise", ranks=(1,), compute_kernel="fused_uvm_caching", cache_load_factor=given)
        plan = sharding_plan(SavedPlan(world_size=2, local_world_size=2, tables={"a_emb": table}), group, create_sharders(), hardware)
        assert plan.plan["pooled.ebc"]["a_emb"].cache_params.load_factor == ratio
        planner = planner_of(group, hardware)
        planner.price(plan, group, create_sharders())
        assert [(option.fqn, option.cache_load_factor) for option in planner.chosen] == [("pooled.ebc.a_emb", ratio)]
        assert len(report_plan(planner).tables) == 1
