"""What a report says of a plan, against numbers worked out by hand."""

import json

import pytest

from emberline.train.sharding import create_sharders
from emberline.train.sharding.report import PlanReport, report_plan, spans
from tests.train.sharding.cases import GIB, cpus, deep, gpus, group_of, id_feature, planner_of


def report(text: str, hardware: object = None, **other: object) -> PlanReport:
    group = group_of(text)
    planner = planner_of(group, hardware or cpus(), **other)  # type: ignore[arg-type]
    planner.plan(group, create_sharders())
    return report_plan(planner)


TWO = (
    id_feature("a", 1001, 16, 'sharding_types: "row_wise" pooling_factor: 2')
    + id_feature("b", 500, 16, 'sharding_types: "table_wise" ranks: 1')
    + deep("a", "b")
)


def test_tables_and_ranks_add_up() -> None:
    found = report(TWO, batch_size=8)
    a, b = found.tables
    assert (a.table, a.rows, a.dim, a.sharding_type, a.compute_kernel, a.cache_load_factor) == (
        "pooled.ebc.a_emb",
        1001,
        16,
        "row_wise",
        "fused",
        None,
    )
    assert (a.ranks, a.shards) == ((0, 1), ((501, 16), (500, 16)))
    assert (b.ranks, b.shards) == ((1,), ((500, 16),))
    assert (a.ids_a_row, a.ids_from, b.ids_from) == ({"a": 2.0}, {"a": "config"}, {"b": "assumed"})
    weights_b, moments_b, flight_b = 500 * 16 * 4, 500 * 4, 8 * 2 * 8 + 8 * 2 * 16 * 4
    assert b.ddr == (weights_b + moments_b + flight_b,)
    assert a.ddr[0] == pytest.approx(501 * 16 * 4 + 501 * 4 + 8 * 2 * 2 / 2 * 8 + 8 * 2 * 16 * 4, abs=4)
    assert [rank.ddr for rank in found.ranks] == [a.ddr[0], a.ddr[1] + b.ddr[0]]
    assert [rank.hbm for rank in found.ranks] == [0, 0]
    assert found.ranks[1].cost_ms == pytest.approx(a.cost_ms[1] + b.cost_ms[0])
    assert found.cost_ms == max(rank.cost_ms for rank in found.ranks)


def test_json_has_all_of_it() -> None:
    found = report(TWO, batch_size=8)
    whole = json.loads(found.text())
    assert whole["hardware"] == {
        "device": "cpu",
        "world_size": 2,
        "local_world_size": 2,
        "hbm": 0,
        "ddr": 4 * GIB,
        "ssd": 0,
        "bandwidths_gb_per_s": {"hbm": 1.0, "ddr": 20.0, "hbm_to_ddr": 1.0, "intra_node": 2.0, "inter_node": 1.0},
        "bandwidths_from": dict.fromkeys(("hbm", "ddr", "hbm_to_ddr", "intra_node", "inter_node"), "assumed"),
    }
    assert (whole["batch_size"], whole["cost_ms"]) == (8, found.cost_ms)
    assert [table["ranks"] for table in whole["tables"]] == [[0, 1], [1]]
    assert whole["tables"][0]["shards"] == [[501, 16], [500, 16]]
    assert [rank["ddr"] for rank in whole["ranks"]] == [rank.ddr for rank in found.ranks]
    assert whole["reserved"] == {"share": 4 * GIB * 15 // 100 + 1, "dense": 0, "ids": 20 * 8 * 8 * 3}


def test_lines_say_what_was_chosen_and_what_was_assumed() -> None:
    lines = report(TWO, batch_size=8).lines()
    assert lines[0] == "2 cpu ranks, 2 a machine, each with 4 GiB ddr; 8 rows a step"
    assert lines[1] == "GB/s: ddr 20 (assumed), intra_node 2 (assumed), inter_node 1 (assumed)"
    assert lines[4].split() == ["table", "rows", "dim", "sharding", "kernel", "ranks", "shards", "memory", "ms", "a", "step"]
    assert lines[5].split()[:7] == ["pooled.ebc.a_emb", "1,001", "16", "row_wise", "fused", "0-1", "2"]
    assert lines[6].split()[:7] == ["pooled.ebc.b_emb", "500", "16", "table_wise", "fused", "1", "1"]
    assert lines[-1] == "ids a row are assumed for b: give pooling_factor, or measure them (--sample-batches)"


def test_of_many_ranks_the_extremes_are_shown() -> None:
    lines = report(id_feature("a", 10**8, 64, 'sharding_types: "table_wise"') + deep("a"), gpus(32)).lines()
    ranks = [line.split()[0] for line in lines if line.endswith(("%", "ms")) or "%" in line]
    assert ranks == ["0", "1"]  # all of it, and nothing
    assert any(line.startswith("of 32 ranks, those with least and most memory and work are shown; mean memory 775 MiB") for line in lines)


def test_an_empty_plan_has_a_report() -> None:
    found = report('feature_configs { raw_feature { feature_name: "x" } } ' + deep("x"))
    assert (found.tables, found.cost_ms) == ((), 0.0)
    assert found.lines()[-1] == "slowest rank: 0 ms a step, as estimated"


def test_ranks_in_short() -> None:
    assert [spans(ranks) for ranks in ((), (3,), (0, 1, 2), (0, 2, 3, 7), (1, 0))] == ["", "3", "0-2", "0, 2-3, 7", "1, 0"]
