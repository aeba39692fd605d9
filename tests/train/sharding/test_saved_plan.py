"""Plans as files: what is written is read, and what is no plan is told in full."""

import json
from pathlib import Path
from typing import Any

import pytest

from emberline.errors import ConfigError
from emberline.train.sharding import create_sharders
from emberline.train.sharding.fit_plan import save_plan, sharding_plan
from emberline.train.sharding.saved_plan import SavedPlan, SavedShard, SavedTable, read_plan
from tests.train.sharding.cases import cpus, deep, group_of, id_feature, planner_of, steps, steps_feature, zch_feature

MINIMAL = {"format": "emberline.plan", "version": 1, "world_size": 2, "tables": {}}


def written(folder: Path, whole: Any) -> Path:
    path = folder / "plan.json"
    path.write_text(whole if isinstance(whole, str) else json.dumps(whole))
    return path


def test_what_a_planner_made_comes_back_as_it_was(tmp_path: Path) -> None:
    types = ("data_parallel", "table_wise", "column_wise", "row_wise", "table_row_wise", "table_column_wise", "grid_shard")
    text = "".join(id_feature(f"f{place}", 100, 16, f'sharding_types: "{kind}"') for place, kind in enumerate(types))
    text += zch_feature("z", 100) + steps_feature("s", 100) + deep("z", *(f"f{place}" for place in range(len(types)))) + steps("s")
    group, hardware = group_of(text), cpus(4, 2)
    plan = planner_of(group, hardware).plan(group, create_sharders())
    path = written(tmp_path, save_plan(plan, group, create_sharders(), hardware).text())
    saved = read_plan(path)
    assert (saved.world_size, saved.local_world_size, saved.device, saved.source) == (4, 2, "cpu", str(path))
    again = sharding_plan(saved, group, create_sharders(), hardware)
    assert str(again) == str(plan)
    placements = [
        [str(shard.placement) for own in tables.values() if own.sharding_spec for shard in own.sharding_spec.shards]
        for plan_of in (plan, again)
        for tables in plan_of.plan.values()
    ]
    assert placements[: len(placements) // 2] == placements[len(placements) // 2 :]


def test_all_of_a_file_is_read(tmp_path: Path) -> None:
    table = {
        "rows": 10,
        "dim": 8,
        "sharding_type": "column_wise",
        "compute_kernel": "fused_uvm_caching",
        "cache_load_factor": 0.5,
        "shards": [{"rank": 1, "offset": [0, 0], "size": [10, 4]}, {"rank": 0, "offset": [0, 4], "size": [10, 4]}],
    }
    found = read_plan(written(tmp_path, MINIMAL | {"device": "cuda", "local_world_size": 1, "tables": {"a": table}}))
    assert found == SavedPlan(
        world_size=2,
        local_world_size=1,
        device="cuda",
        source=str(tmp_path / "plan.json"),
        tables={
            "a": SavedTable(
                rows=10,
                dim=8,
                sharding_type="column_wise",
                compute_kernel="fused_uvm_caching",
                cache_load_factor=0.5,
                shards=(SavedShard(1, (0, 0), (10, 4)), SavedShard(0, (0, 4), (10, 4))),
            )
        },
    )
    assert json.loads(found.text())["tables"]["a"] == table


@pytest.mark.parametrize(
    ("whole", "problems"),
    [
        ("{", ["the plan is not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"]),
        ([], ['is no plan: it must be an object with "format": "emberline.plan"']),
        ({"format": "other"}, ['is no plan: it must be an object with "format": "emberline.plan"']),
        (MINIMAL | {"version": 2}, ["version must be 1, found 2: it was made by another release"]),
        (MINIMAL | {"world_size": True}, ["world_size must be a whole number of 1 or more, found True"]),
        (MINIMAL | {"tables": [], "rank": 1}, ["the plan: unknown entry 'rank'; known: format, version, device, world_size, local_world_size, tables",
                                              "tables must be an object: a place for each table"]),
        (MINIMAL | {"tables": {"a": 3}}, ["table 'a' must be an object with a \"sharding_type\""]),
        (
            MINIMAL | {"tables": {"a": {"sharding_type": "row_wise", "kernel": "fused", "rows": -1, "ranks": 0, "cache_load_factor": 2}}},
            [
                "table 'a': unknown entry 'kernel'; did you mean 'compute_kernel'?",
                "table 'a': cache_load_factor must be between 0 and 1, found 2",
                "table 'a': rows must be a whole number of 1 or more, found -1",
                "table 'a': ranks must be a list, found 0",
            ],
        ),
        (
            MINIMAL | {"tables": {"a": {"sharding_type": "row_wise", "shards": [{"rank": -1, "offset": [0], "size": [1, 2], "at": 0}]}}},
            [
                "table 'a': shards[0]: unknown entry 'at'; known: rank, offset, size",
                "table 'a': shards[0]: offset must be a list of 2 numbers, found [0]",
                "table 'a': shards[0]: rank must be a whole number of 0 or more, found -1",
            ],
        ),
        (
            MINIMAL | {"tables": {"a": {"sharding_type": "foo"}, "b": {"sharding_type": "row_wize", "compute_kernel": "fast"}}},
            [
                "table 'a': unknown sharding type 'foo'; known: data_parallel, table_wise, column_wise, row_wise, table_row_wise, "
                "table_column_wise, grid_shard",
                "table 'b': unknown sharding type 'row_wize'; did you mean 'row_wise'?",
                "table 'b': unknown compute kernel 'fast'; known: dense, fused, fused_uvm, fused_uvm_caching, key_value, customized_kernel",
            ],
        ),
        (
            json.dumps(MINIMAL)[:-2] + '"a": {"sharding_type": "row_wise", "ranks": [0], "ranks": [0]}, "a": {"sharding_type": "row_wise"}}}',
            ["entry 'ranks' is there 2 times in one object; keep one", "entry 'a' is there 2 times in one object; keep one"],
        ),
        (MINIMAL | {"tables": {"a": {"sharding_type": "row_wise", "shards": {}}}}, ["table 'a': shards must be a list of objects"]),
    ],
)  # fmt: skip
def test_what_is_no_plan_is_told(tmp_path: Path, whole: Any, problems: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        read_plan(written(tmp_path, whole))
    assert list(caught.value.problems) == problems


def test_files_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the plan can't be read: No such file or directory"):
        read_plan(tmp_path / "none.json")
    with pytest.raises(ConfigError, match="the plan can't be read: Is a directory"):
        read_plan(tmp_path)
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="the plan is not JSON"):
        read_plan(tmp_path / "bytes")
