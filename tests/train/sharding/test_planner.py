"""Whole plans: what is asked is chosen, what does not fit is told, and every table is there once."""

import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torchrec.distributed.types import EmbeddingModuleShardingPlan, ShardingPlan

import emberline.train
from emberline.errors import ConfigError
from emberline.train.features import EmbeddingConstraints
from emberline.train.sharding import create_sharders
from emberline.train.sharding.hardware import with_measured
from emberline.train.sharding.planner import TablePlanner, check_complete_plan, create_planner
from emberline.train.sharding.report import report_plan
from tests.train.sharding.cases import GIB, cpus, deep, gpus, group_of, id_feature, placed, planner_of, steps, steps_feature, zch_feature

COPIES_ON_GPUS = ("data_parallel", "cuda")
TYPES = ("data_parallel", "table_wise", "column_wise", "row_wise", "table_row_wise", "table_column_wise", "grid_shard")


def test_it_is_in_the_stable_surface() -> None:
    assert emberline.train.create_planner is create_planner


@pytest.mark.parametrize(("kind", "device"), [(kind, device) for kind in TYPES for device in ("cpu", "cuda") if (kind, device) != COPIES_ON_GPUS])
def test_each_type_is_chosen_where_it_is_asked_for(kind: str, device: str) -> None:
    group = group_of(id_feature("a", 1000, 64, f'sharding_types: "{kind}"') + deep("a"))
    found = placed(group, cpus(4, 2) if device == "cpu" else gpus(4, 2))
    ((name, (chosen, kernel, ranks)),) = found.items()
    assert (name, chosen, kernel) == ("a_emb", kind, "dense" if kind == "data_parallel" else "fused")
    expected = {"table_wise": [0], "table_row_wise": [0, 1], "table_column_wise": [0, 1]}
    assert sorted(ranks) == expected.get(kind, [0, 1, 2, 3])


@pytest.mark.parametrize("kernel", ["fused", "fused_uvm", "fused_uvm_caching", "key_value"])
def test_each_kernel_is_chosen_where_it_is_asked_for(kernel: str) -> None:
    group = group_of(id_feature("a", 1000, 64, f'compute_kernels: "{kernel}" cache_load_factor: 0.3') + zch_feature("z", 64) + deep("a", "z"))
    planner = planner_of(group, gpus(2, ssd=GIB))
    plan = planner.plan(group, create_sharders()).plan
    own = plan["pooled.ebc"]["a_emb"]
    assert own.compute_kernel == kernel
    assert (own.cache_params.load_factor if own.cache_params else None) == (0.3 if kernel == "fused_uvm_caching" else None)
    assert plan["pooled.mc_ebc"]["z_emb"].sharding_type == "row_wise"


def test_a_table_too_large_for_gpus_goes_to_the_host_and_others_stay() -> None:
    text = id_feature("huge", 1_500_000_000, 64) + id_feature("small", 1000, 64) + deep("huge", "small")
    group = group_of(text)
    found = placed(group, gpus(4, ddr=200 * GIB))
    assert found["huge_emb"][1].startswith("fused_uvm")
    assert found["small_emb"][1] == "fused"


def test_ids_a_row_decide_what_is_worth_cutting() -> None:
    """One table with many ids, others with few: the busy one is not held whole by one rank."""
    texts = {
        ids: id_feature("busy", 100_000, 64, f"pooling_factor: {ids}") + "".join(id_feature(f"calm{number}", 100_000, 64) for number in range(3))
        for ids in (1, 300)
    }
    found = {ids: placed(group_of(text + deep("busy", "calm0", "calm1", "calm2")), gpus(4)) for ids, text in texts.items()}
    assert len(found[1]["busy_emb"][2]) == 1
    assert len(found[300]["busy_emb"][2]) == 4


def test_constraints_of_all_tables_hold_without_own_ones() -> None:
    group = group_of(id_feature("a", 1000, 64, 'sharding_types: "table_wise"') + id_feature("b", 1000, 64) + deep("a", "b"))
    found = placed(group, cpus(2), constraints=EmbeddingConstraints(sharding_types=("row_wise",)))
    assert {name: own[0] for name, own in found.items()} == {"a_emb": "table_wise", "b_emb": "row_wise"}


def test_what_does_not_fit_is_told_with_numbers() -> None:
    group = group_of(id_feature("a", 10_000_000, 64) + id_feature("b", 20_000_000, 64) + deep("a", "b"))
    with pytest.raises(ConfigError) as caught:
        placed(group, cpus(2, ddr=2 * GIB))
    (problem,) = caught.value.problems
    assert problem.startswith("the tables do not fit on 2 cpu ranks, 2 a machine, each with 2 GiB ddr: they need 7.26 GiB at least")
    assert "and 3.4 GiB of ddr are left after 307 MiB a rank" in problem
    assert "largest: pooled.ebc.b_emb (4.84 GiB), pooled.ebc.a_emb (2.42 GiB). Use more ranks or memory" in problem


def test_what_fits_neither_on_gpus_nor_beside_them_is_told_with_both() -> None:
    group = group_of(id_feature("a", 20_000_000, 64) + deep("a"))
    with pytest.raises(ConfigError) as caught:
        placed(group, gpus(2, hbm=GIB, ddr=GIB), storage_reserve=0.5)
    (problem,) = caught.value.problems
    assert "each with 1 GiB hbm, 1 GiB ddr: they need 4.84 GiB at least" in problem
    assert "GiB of ddr are left after 512 MiB a rank for everything else (dense part 0 B, ids 80 KiB)" in problem
    assert problem.endswith("or constraints that allow more (row_wise, fused_uvm)")


def test_the_reserve_can_make_the_difference() -> None:
    group = group_of(id_feature("a", 6_000_000, 64) + deep("a"))
    assert placed(group, cpus(2, ddr=GIB), storage_reserve=0.0)["a_emb"][2] == [0, 1]
    with pytest.raises(ConfigError, match="do not fit"):
        placed(group, cpus(2, ddr=GIB), storage_reserve=0.5)


def test_a_model_without_tables_has_an_empty_plan() -> None:
    model = nn.Linear(2, 2)
    planner = planner_of(model, cpus())
    assert planner.plan(model, create_sharders()).plan == {}
    assert planner.chosen == ()


def test_a_planner_plans_again() -> None:
    group = group_of(id_feature("a", 1000, 64) + id_feature("b", 50) + deep("a", "b"))
    planner = planner_of(group, gpus(4))
    first, second = (planner.plan(group, create_sharders()) for _ in range(2))
    assert str(first) == str(second)


def test_copies_bring_no_warning_and_no_handler(caplog: pytest.LogCaptureFixture) -> None:
    before = list(logging.getLogger().handlers)
    group = group_of(id_feature("a", 100, 16, 'sharding_types: "data_parallel"') + deep("a"))
    with caplog.at_level(logging.WARNING):
        assert placed(group, cpus())["a_emb"][0] == "data_parallel"
    assert [record for record in caplog.records if "Sharding spec" in record.getMessage()] == []
    assert logging.getLogger().handlers == before


def test_each_rank_has_the_memory_of_a_whole_copy_with_its_moments() -> None:
    rows, dim = 10_000, 16
    group = group_of(id_feature("a", rows, dim, 'sharding_types: "data_parallel"') + deep("a"))
    planner = planner_of(group, cpus(4), batch_size=1)
    planner.plan(group, create_sharders())
    (table,), ranks = report_plan(planner).tables, report_plan(planner).ranks
    one = rows * (dim + 1) * 4  # row-wise Adagrad keeps one number a row
    assert table.ranks == (0, 1, 2, 3)
    assert all(one <= size < one + 1000 for size in table.ddr)
    assert [rank.ddr for rank in ranks] == list(table.ddr)


def test_a_plan_made_elsewhere_costs_what_the_planner_said() -> None:
    text = "".join(id_feature(f"f{place}", 100, 16, f'sharding_types: "{kind}"') for place, kind in enumerate(TYPES))
    group = group_of(text + deep(*(f"f{place}" for place in range(len(TYPES)))))
    planner, other = planner_of(group, cpus(4, 2)), planner_of(group, cpus(4, 2))
    other.price(planner.plan(group, create_sharders()), group, create_sharders())

    def numbers(made: TablePlanner) -> list[tuple[object, ...]]:
        return sorted(
            (own.fqn, shard.rank, shard.offset, shard.size, shard.storage.ddr, shard.perf.total) for own in made.chosen for shard in own.shards
        )

    assert numbers(other) == numbers(planner)
    assert other.reserved == planner.reserved


@pytest.mark.parametrize("rank", [0, 1])
def test_every_rank_is_told_what_went_wrong_on_the_first(monkeypatch: pytest.MonkeyPatch, rank: int) -> None:
    sent: list[object] = [("made on rank 0",)]

    def broadcast(answer: list[object], source: int, group: object = None) -> None:
        assert source == 0
        if rank == 0:
            sent[:] = answer
        answer[:] = sent

    monkeypatch.setattr("emberline.train.sharding.planner.dist.get_rank", lambda group=None: rank)
    monkeypatch.setattr("emberline.train.sharding.planner.dist.broadcast_object_list", broadcast)
    group = group_of(id_feature("a", 1, 16, 'sharding_types: "row_wise"') + deep("a"))
    with pytest.raises(ConfigError) as caught:
        planner_of(group, cpus(2)).collective_plan(group, create_sharders())
    assert caught.value.problems == sent[0]
    assert caught.value.problems[0].startswith("table 'a_emb': nothing is left" if rank == 0 else "made on rank 0")


def test_our_own_check_sees_what_is_missing_and_what_is_surplus() -> None:
    group = group_of(id_feature("a", 100) + id_feature("b", 100) + deep("a", "b"))
    plan = planner_of(group, cpus()).plan(group, create_sharders())
    check_complete_plan(plan, group, create_sharders())
    tables = plan.plan["pooled.ebc"]
    lacking = ShardingPlan({"pooled.ebc": EmbeddingModuleShardingPlan({"a_emb": tables["a_emb"]})})
    with pytest.raises(AssertionError, match=r"there and not planned: Counter\({'pooled.ebc.b_emb': 1}\)"):
        check_complete_plan(lacking, group, create_sharders())
    surplus = ShardingPlan({**plan.plan, "other": EmbeddingModuleShardingPlan({"a_emb": tables["a_emb"]})})
    with pytest.raises(AssertionError, match=r"planned and not there: Counter\({'other.a_emb': 1}\)"):
        check_complete_plan(surplus, group, create_sharders())


def test_measured_bandwidths_leave_given_ones_alone() -> None:
    hardware = gpus(bandwidths=None)
    given = with_measured(hardware, {"hbm": 1234.0, "ddr": 55.0})
    assert given.speeds.as_dict() == {"hbm": 1234.0, "ddr": 55.0, "hbm_to_ddr": 25.0, "intra_node": 300.0, "inter_node": 25.0}
    fixed = gpus(bandwidths=hardware.speeds.known({"hbm": 9.0}, "given"))
    assert with_measured(fixed, {"hbm": 1234.0}).speeds.hbm == 9.0


tables = st.lists(st.tuples(st.integers(2, 3_000_000), st.sampled_from([4, 16, 64])), min_size=1, max_size=8)


@settings(max_examples=25, deadline=None)
@given(tables, st.sampled_from([(1, 1), (2, 2), (4, 2)]), st.booleans())
def test_every_plan_has_every_table_whole_and_keeps_to_the_memory(shapes: list[tuple[int, int]], ranks: tuple[int, int], on_gpu: bool) -> None:
    text = "".join(id_feature(f"f{number}", rows, dim) for number, (rows, dim) in enumerate(shapes))
    group = group_of(text + deep(*(f"f{number}" for number in range(len(shapes)))))
    hardware = gpus(*ranks, hbm=GIB, ddr=8 * GIB) if on_gpu else cpus(*ranks, ddr=8 * GIB)
    planner: TablePlanner = planner_of(group, hardware)
    planner.plan(group, create_sharders())
    assert sorted(option.name for option in planner.chosen) == sorted(f"f{number}_emb" for number in range(len(shapes)))
    hbm, ddr = np.zeros(ranks[0]), np.zeros(ranks[0])
    for option in planner.chosen:
        rows, dim = option.tensor.shape
        assert sum(shard.size[0] * shard.size[1] for shard in option.shards) == rows * dim
        assert all(min(shard.size) > 0 for shard in option.shards)
        for shard in option.shards:
            hbm[shard.rank] += shard.storage.hbm
            ddr[shard.rank] += shard.storage.ddr
    left = planner.reserved.total
    assert hbm.max() <= max(0, hardware.hbm - left * on_gpu)
    assert ddr.max() <= hardware.ddr - left * (not on_gpu)


BILLION = """
import json, resource, sys, time
import numpy as np
sys.path[:0] = [sys.argv[1]]
from cases import deep, gpus, group_of, id_feature, planner_of
from emberline.train.sharding import create_sharders
weights = 1 / np.arange(1, 27)
rows = (weights / weights.sum() * 10**9).astype(int)
rows[0] += 10**9 - rows.sum()
text = "".join(id_feature(f"c{place}", count, 64) for place, count in enumerate(rows)) + deep(*(f"c{place}" for place in range(26)))
group = group_of(text)
found = {"rows": sum(weight.shape[0] for weight in group.table_weights().values())}
for world_size in (8, 128):
    begin = time.process_time()
    planner = planner_of(group, gpus(world_size, 8), batch_size=4096)
    planner.plan(group, create_sharders())
    ranks = len({shard.rank for own in planner.chosen for shard in own.shards})
    found[str(world_size)] = [len(planner.chosen), ranks, time.process_time() - begin]
found["peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps(found))
"""


@pytest.mark.slow
def test_a_billion_rows_are_planned_for_8_and_for_128_gpus_in_little_memory() -> None:
    command = [sys.executable, "-W", "ignore", "-c", BILLION, str(Path(__file__).parent)]
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout
    found = json.loads(output.splitlines()[-1])
    assert found["rows"] == 10**9
    assert {world_size: tuple(found[world_size][:2]) for world_size in ("8", "128")} == {
        "8": (26, 8),
        "128": (26, 26 * 4),
    }  # there, four columns of shards each
    assert found["peak"] < 4 * GIB


def test_steps_and_pooled_reads_and_zch_are_planned_together() -> None:
    text = id_feature("a", 100) + zch_feature("z", 100) + steps_feature("s", 100) + deep("a", "z") + steps("s")
    assert set(placed(group_of(text), cpus(2))) == {"a_emb", "z_emb", "s_emb"}
    assert torch.device("meta") == next(group_of(text).parameters()).device


@pytest.mark.parametrize("hardware", [cpus, gpus])
@pytest.mark.parametrize(("rows", "ranks", "blocks"), [(11, 2, [6, 5]), (4091, 4, [1023, 1023, 1023, 1022]), (9, 3, [3, 3, 3]), (5, 1, [5])])
def test_zch_tables_need_no_more_than_a_row_for_each_rank(hardware: Any, rows: int, ranks: int, blocks: list[int]) -> None:
    group = group_of(zch_feature("z", rows) + deep("z"))
    planner = planner_of(group, hardware(ranks))
    planner.plan(group, create_sharders())
    (option,) = planner.chosen
    assert (option.sharding_type, option.compute_kernel) == ("row_wise", "fused")
    assert [shard.size[0] for shard in option.shards] == blocks


@pytest.mark.parametrize("hardware", [cpus, gpus])
def test_zch_tables_of_fewer_rows_than_ranks_are_refused(hardware: Any) -> None:
    group = group_of(zch_feature("z", 2) + deep("z"))
    with pytest.raises(
        ConfigError, match=r"table 'z_emb': nothing is left to choose; .*row_wise: 2 rows cannot be cut into 3 equal blocks with none"
    ):
        planner_of(group, hardware(3)).plan(group, create_sharders())


BOTH = "feature_groups { group_name: 'wide' group_type: WIDE feature_names: 'u' }"


def asked_of_tables(**tables: Any) -> dict[str, EmbeddingConstraints]:
    return {name: EmbeddingConstraints(**asked) for name, asked in tables.items()}


def test_a_table_goes_before_its_feature_and_that_before_all_tables() -> None:
    group = group_of(id_feature("u", 1000, 64, 'sharding_types: "row_wise"') + id_feature("v", 1000, 64) + deep("u", "v") + BOTH)
    everywhere = EmbeddingConstraints(sharding_types=("table_wise",), ranks=(1,))
    tables = asked_of_tables(u_emb={"sharding_types": ("column_wise",), "ranks": (1, 0)})
    found = placed(group, cpus(2), constraints=everywhere, tables=tables)
    assert {name: (kind, set(ranks) - {0}) for name, (kind, _, ranks) in found.items() if name != "u_emb"} == {
        "u_emb_wide": ("row_wise", {1}),  # on both: the feature's type needs both ranks, so that the pin of all tables does not bind it
        "v_emb": ("table_wise", {1}),
    }
    assert found["u_emb"][0] == "column_wise"


def test_types_that_a_wide_table_cannot_have_are_meant_for_the_features_other_table() -> None:
    asked = 'sharding_types: "column_wise" min_partition: 16'
    group = group_of(id_feature("u", 1000, 64, asked) + deep("u") + BOTH)
    planner = planner_of(group, cpus(2))
    planner.plan(group, create_sharders())
    kinds = {option.name: option.sharding_type for option in planner.chosen}
    assert kinds["u_emb"] == "column_wise"
    assert kinds["u_emb_wide"] != "column_wise"
    assert report_plan(planner).loose == {"pooled.ebc.u_emb_wide": ("sharding_types",)}
    assert "pooled.ebc.u_emb_wide: sharding_types of all tables, or of a feature's wider one, do not bind it: it cannot be so" in (
        report_plan(planner).lines()
    )
    told = r"table 'u_emb_wide': nothing is left .* asked: sharding_types column_wise; min_partition 16; column_wise: embedding_dim 4 cannot"
    with pytest.raises(ConfigError, match=told):  # asked of the table itself
        placed(group, cpus(2), tables=asked_of_tables(u_emb_wide={"sharding_types": ("column_wise",)}))
    alone = group_of(id_feature("u", 1000, 64, asked) + BOTH)
    with pytest.raises(ConfigError, match=told):  # it is the feature's only table
        placed(alone, cpus(2))


@pytest.mark.parametrize(
    ("asked", "kind", "ranks"),
    [
        ({"sharding_types": ("table_wise",)}, "table_wise", None),
        ({"ranks": (0,)}, "table_wise", [0]),
        ({"ranks": (1,), "sharding_types": ("table_wise", "column_wise")}, "table_wise", [1]),
        ({"sharding_types": ("data_parallel",), "compute_kernels": ("dense",)}, "data_parallel", [0, 1]),
    ],
)
def test_what_zch_tables_cannot_have_binds_all_others(asked: dict[str, Any], kind: str, ranks: list[int] | None) -> None:
    group = group_of(id_feature("a", 1000, 16) + zch_feature("z", 64) + deep("a", "z"))
    found = placed(group, cpus(2), constraints=EmbeddingConstraints(**asked))
    assert found["z_emb"] == ("row_wise", "fused", [0, 1])
    assert found["a_emb"][0] == kind
    assert ranks is None or found["a_emb"][2] == ranks


def test_what_binds_no_table_is_refused_and_so_are_ranks_that_there_are_not() -> None:
    group = group_of(id_feature("a", 3, 16) + zch_feature("z", 64) + deep("a", "z"))
    with pytest.raises(ConfigError) as caught:
        placed(group, cpus(4), constraints=EmbeddingConstraints(sharding_types=("grid_shard", "table_row_wise")))
    assert list(caught.value.problems) == [
        "global_embedding_constraints: sharding_types grid_shard, table_row_wise: no table can be so; table 'a_emb': "
        "grid_shard: 3 rows cannot be cut into 4 equal blocks with none empty; "
        "table_row_wise: 3 rows cannot be cut into 4 equal blocks with none empty"
    ]
    with pytest.raises(ConfigError, match="there are ranks 0 to 1, and ranks has 2"):
        placed(group, cpus(2), constraints=EmbeddingConstraints(ranks=(0, 2)))
    with pytest.raises(ConfigError, match=r"z_emb': nothing is left .*asked: sharding_types table_wise; table_wise: such tables do not know it"):
        placed(group, cpus(2), tables=asked_of_tables(z_emb={"sharding_types": ("table_wise",)}))
    with pytest.raises(ConfigError, match=r"table_constraints: unknown table 'a_em'; did you mean 'a_emb'\?"):
        placed(group, cpus(2), tables=asked_of_tables(a_em={"ranks": (0,)}))


def test_a_tables_ids_a_row_go_before_those_of_its_readers() -> None:
    group = group_of(id_feature("u", 1000, 64, "pooling_factor: 3") + deep("u") + BOTH)
    planner = planner_of(group, cpus(2), tables=asked_of_tables(u_emb_wide={"pooling_factor": 5.0}))
    planner.plan(group, create_sharders())
    assert {table.table: dict(table.ids_a_row) for table in report_plan(planner).tables} == {
        "pooled.ebc.u_emb": {"u": 3.0},
        "pooled.ebc.u_emb_wide": {"u": 5.0},
    }
