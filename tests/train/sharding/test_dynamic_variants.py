"""What the planner may choose for dynamic tables, what it chooses, and how that reaches kernels, reports and files."""

import ast
import json
import logging
import math
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torchrec.distributed.planner.types import ShardingOption, Storage
from torchrec.distributed.types import ShardingPlan

from emberline import train
from emberline.cli import main
from emberline.errors import ConfigError
from emberline.train.checkpoint.shards import table_shards
from emberline.train.dynamic.options import DynamicEmbOptions
from emberline.train.dynamic.sharding import DynamicEmbParameterSharding
from emberline.train.features import EmbeddingConstraints
from emberline.train.sharding import create_sharders, process_group
from emberline.train.sharding.dynamic_costs import GrowthCosts
from emberline.train.sharding.dynamic_kernels import dynamic_tables
from emberline.train.sharding.dynamic_variants import RATIOS, DynamicEmbShardingOption, Mode, chosen, hashed_layout, mode_of, plan_line, variants
from emberline.train.sharding.fit_plan import save_plan, sharding_plan
from emberline.train.sharding.hardware import ASSUMED, Hardware
from emberline.train.sharding.plan import create_single_process_plan
from emberline.train.sharding.planner import TablePlanner
from emberline.train.sharding.report import report_plan
from emberline.train.sharding.saved_plan import SavedPlan, SavedTable, read_plan
from emberline.train.sharding.shard import shard_model
from emberline.train.sharding.summary import plan_lines
from tests.train.sharding.cases import cpus, deep, gpus, group_of, id_feature, planner_of, steps, steps_feature

MIB = 1 << 20
CAPACITY, DIM, RANKS = 100_000, 16, 4
ROWS = CAPACITY // RANKS
"""Of a rank, up to 16: 25,008."""
VALUES = 25_008 * 80
"""Row-wise Adagrad: 17 numbers are 68 bytes, up to 16: 80."""
KEYS = 25_008 * 17 + math.ceil(25_008 * 4 / 128)
ADMISSION = "frequency_admission_strategy { threshold: 2 counter_capacity: 400 counter_bucket_capacity: 1024 }"
COUNTER = 100 * 17 + 100 * 4 / 1024


def growing(name: str, more: str = "", capacity: int = CAPACITY, constraints: str = "", kind: str = "id_feature") -> str:
    asked = f"embedding_constraints {{ {constraints} }}" if constraints else ""
    dynamicemb = f"dynamicemb {{ max_capacity: {capacity} {more} }}"
    return f'feature_configs {{ {kind} {{ feature_name: "{name}" embedding_dim: {DIM} {dynamicemb} {asked} }} }}\n'


ONE = growing("a") + deep("a")
BOTH = growing("a") + id_feature("b", 500) + growing("s", kind="sequence_id_feature") + deep("a", "b") + steps("s")


def options_of(text: str, hardware: Hardware, batch_size: int = 64) -> list[ShardingOption]:
    group = group_of(text)
    planner = planner_of(group, hardware, batch_size=batch_size)
    return planner.options.enumerate(group, create_sharders())


def planned(text: str, hardware: Hardware, **other: Any) -> tuple[TablePlanner, nn.Module, Any]:
    group = group_of(text)
    planner = planner_of(group, hardware, **({"batch_size": 64, "storage_reserve": 0.0} | other))
    return planner, group, planner.plan(group, create_sharders())


def growth_of(plan: Any, name: str = "a_emb") -> DynamicEmbOptions:
    (placed,) = [own for tables in plan.plan.values() for table, own in tables.items() if table == name]
    assert isinstance(placed, DynamicEmbParameterSharding)
    assert placed.dynamicemb_options is not None
    return placed.dynamicemb_options


def static_option(hardware: Hardware) -> ShardingOption:
    """A static table of the same rows, cut by rows, in the fast memory."""
    text = id_feature("a", CAPACITY, DIM, 'sharding_types: "row_wise" compute_kernels: "fused"') + deep("a")
    (found,) = options_of(text, hardware)
    return found


@pytest.mark.parametrize("admission", ["", ADMISSION])
def test_twenty_variants_have_the_memory_that_formulas_tell(admission: str) -> None:
    """On GPUs: x values, keys, counter and what is in flight in HBM; the rest (HYBRID), or all (CACHING), in host memory."""
    hardware = gpus(RANKS)
    static = static_option(hardware).shards[0].storage
    assert static is not None
    flight = static.hbm - ROWS * DIM * 4 - ROWS * 4
    assert flight == 64 * 8 + RANKS * 64 * DIM * 4  # each rank reads its part of all ranks' ids, and gives a part of each bag
    found = options_of(growing("a", admission) + deep("a"), hardware)
    keys = math.ceil(25_008 * 17 + 25_008 * 4 / 128 + (COUNTER if admission else 0.0))
    expected = [
        (caching, ratio, Storage(hbm=math.floor(ratio * VALUES) + keys + flight, ddr=VALUES if caching else VALUES - math.floor(ratio * VALUES)))
        for caching in (False, True)
        for ratio in RATIOS
    ]
    assert len(found) == 20
    assert [(option.growth.caching, option.cache_load_factor, option.shards[rank].storage) for option in found for rank in (0, RANKS - 1)] == [
        one for one in expected for _ in range(2)
    ]
    assert {(option.sharding_type, option.compute_kernel, option.num_shards) for option in found} == {("row_wise", "customized_kernel", RANKS)}
    assert len({hash(option) for option in found}) == 20
    assert len({id(option.growth) for option in found}) == 20


def test_on_cpus_the_host_is_the_fast_memory_and_files_are_none() -> None:
    hardware = cpus(RANKS)
    static = static_option(hardware).shards[0].storage
    assert static is not None
    flight = static.ddr - ROWS * DIM * 4 - ROWS * 4
    found = options_of(ONE, hardware)
    assert [(option.growth.caching, option.cache_load_factor, option.shards[0].storage) for option in found] == [
        (caching, ratio, Storage(hbm=0, ddr=math.floor(ratio * VALUES) + KEYS + flight)) for caching in (False, True) for ratio in RATIOS
    ]


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_variant_costs_as_a_static_table_in_memory_of_its_speed(device: str) -> None:
    hardware = gpus(RANKS) if device == "cuda" else cpus(RANKS)
    speeds, slowdown = ASSUMED[device], 10 if device == "cuda" else 2
    fast, slow = (speeds.hbm, speeds.hbm_to_ddr) if device == "cuda" else (speeds.ddr, 1.0)
    costs = {(option.growth.caching, option.cache_load_factor): option.shards[1].perf for option in options_of(ONE, hardware)}
    for caching, share, ratio in ((True, 0.1, 0.281), (False, 0.5, 0.115), (True, 0.9, 0.289), (False, 1.0, 1.0), (True, 1.0, 1.0)):
        speed = (ratio * fast + (1 - ratio) * slow) / slowdown
        slower = replace(hardware, bandwidths=speeds.known({"hbm" if device == "cuda" else "ddr": speed}, "given"))
        expected = static_option(slower).shards[1].perf
        assert expected is not None
        assert vars(costs[caching, share]) == pytest.approx(vars(expected), rel=1e-12)


def test_who_measured_chooses_by_it() -> None:
    """Where HYBRID is the faster one, it is taken, though there is room behind for all rows; a plan is priced by the same numbers."""
    room = math.ceil(0.55 * VALUES) + KEYS + 64 * 8 + RANKS * 64 * DIM * 4 + 64 * 8 * 20
    planner, group, plan = planned(ONE, gpus(RANKS, hbm=room), costs=GrowthCosts(hybrid=(0.5, 0.01), slowdown=1.0))
    assert mode_of(growth_of(plan)) is Mode.HYBRID
    before = report_plan(planner).cost_ms
    planner.price(plan, group, create_sharders())
    assert report_plan(planner).cost_ms == before


def test_the_configs_own_share_leaves_two() -> None:
    found = options_of(growing("a", "cache_load_factor: 0.35") + deep("a"), gpus(2))
    assert [(option.growth.caching, option.growth.cache_load_factor) for option in found] == [(False, 0.35), (True, 0.35)]


def test_variants_are_copies_of_their_own() -> None:
    (own, *_) = [option.growth for option in options_of(ONE, gpus(2))]
    base = replace(own, caching=False, cache_load_factor=None)
    found = list(variants(base))
    assert [(one.caching, one.cache_load_factor) for one in found] == [(caching, count / 10) for caching in (False, True) for count in range(1, 11)]
    assert base.cache_load_factor is None
    assert {mode_of(one) for one in found if one.cache_load_factor == 1.0} == {Mode.HBM_ONLY}
    assert [mode_of(one) for one in (found[0], found[10], base)] == [Mode.HYBRID, Mode.CACHING, Mode.HBM_ONLY]


def test_where_there_is_room_all_rows_are_fast() -> None:
    for hardware in (gpus(RANKS), cpus(RANKS)):
        planner, _, plan = planned(BOTH, hardware)
        for name in ("a_emb", "s_emb"):
            growth = growth_of(plan, name)
            assert (growth.caching, growth.cache_load_factor, growth.local_hbm_for_values) == (False, 1.0, None)
        assert [type(option) is DynamicEmbShardingOption for option in planner.chosen] == [True, False, True]


def placed_with(text: str, hbm: int, ddr: int = 100 << 30, **other: Any) -> DynamicEmbOptions:
    _, _, plan = planned(text, gpus(RANKS, hbm=hbm, ddr=ddr), **other)
    return growth_of(plan)


def test_less_memory_leaves_a_smaller_share() -> None:
    """Beside keys, ids and vectors in flight there is room for so many of 2 MB of values."""
    flight = 64 * 8 + RANKS * 64 * DIM * 4
    reserved = 64 * 8 * 20
    for share in (0.25, 0.55, 0.85, 0.95):
        growth = placed_with(ONE, math.ceil(share * VALUES) + KEYS + flight + reserved)
        tenth = math.floor(share * 10) / 10
        assert (growth.caching, growth.cache_load_factor) == (True, tenth)
        assert growth.local_hbm_for_values == math.floor(tenth * VALUES)
    with pytest.raises(ConfigError, match="the tables do not fit on 4 cuda ranks"):
        placed_with(ONE, KEYS + flight + reserved)


def test_without_host_memory_for_all_rows_each_is_in_one_place() -> None:
    room = math.ceil(0.55 * VALUES) + KEYS + 64 * 8 + RANKS * 64 * DIM * 4 + 64 * 8 * 20
    growth = placed_with(ONE, room, ddr=math.ceil(0.8 * VALUES))
    assert (growth.caching, growth.cache_load_factor, growth.local_hbm_for_values) == (False, 0.5, math.floor(0.5 * VALUES))


def test_a_bound_of_memory_holds_for_the_share() -> None:
    text = growing("a", constraints="max_hbm_mib: 1.5") + deep("a")
    growth = placed_with(text, 80 << 30)
    assert growth.local_hbm_for_values is not None
    assert growth.local_hbm_for_values + KEYS < 1.5 * MIB < growth.local_hbm_for_values + VALUES // 10 + KEYS + 64 * 8 + RANKS * 64 * DIM * 4


def test_what_is_asked_of_all_tables_leaves_dynamic_ones_alone() -> None:
    everywhere = EmbeddingConstraints(sharding_types=("table_wise",), compute_kernels=("fused",), min_partition=8)
    _, _, plan = planned(BOTH, gpus(RANKS), constraints=everywhere)
    placed = {name: own.sharding_type for tables in plan.plan.values() for name, own in tables.items()}
    assert placed == {"a_emb": "row_wise", "b_emb": "table_wise", "s_emb": "row_wise"}
    _, _, free = planned(BOTH, gpus(RANKS), bound=False)
    assert growth_of(free).cache_load_factor == 1.0


def test_every_rank_must_have_a_row() -> None:
    with pytest.raises(ConfigError, match=r"table 'a_emb': nothing is left to choose; .*row_wise: max_capacity 3 leaves ranks without a row"):
        options_of(growing("a", capacity=3) + deep("a"), cpus(4))
    assert len(options_of(growing("a", capacity=4) + deep("a"), cpus(4))) == 20


def test_parts_are_as_equal_as_can_be() -> None:
    sizes, offsets = hashed_layout(group_of(growing("a", capacity=10) + deep("a")).table_weights()["a_emb"], 4)
    assert (sizes, offsets) == ([[2, 16], [3, 16], [2, 16], [3, 16]], [[0, 0], [2, 0], [5, 0], [7, 0]])


def test_the_place_says_all_that_the_kernel_needs() -> None:
    _, group, plan = planned(BOTH, gpus(RANKS, local=2, hbm=6 * MIB))
    placed = plan.plan["pooled.ebc"]["a_emb"]
    assert isinstance(placed, DynamicEmbParameterSharding)
    assert (placed.sharding_type, placed.compute_kernel, placed.customized_compute_kernel, placed.dist_type) == (
        "row_wise", "customized_kernel", "DynamicEmb", "hash",
    )  # fmt: skip
    assert placed.ranks == [0, 1, 2, 3]
    assert placed.cache_params is None
    assert [(shard.shard_sizes, shard.shard_offsets) for shard in placed.sharding_spec.shards] == [
        ([ROWS, DIM], [ROWS * rank, 0]) for rank in range(RANKS)
    ]
    own = growth_of(plan)
    weight = group.table_weights()["a_emb"]  # type: ignore[operator]
    assert own == chosen(own, weight, RANKS, "cuda")


def test_what_the_planner_chose_reaches_the_kernels() -> None:
    """On one CPU with room for keys and 45 % of the values: of 80 bytes each in the plan, and 68 in the kernel, which has no gaps."""
    rows = 100_000
    keys, flight = math.ceil(rows * 17 + rows * 4 / 128), 64 * 8 + 64 * DIM * 4
    hardware = cpus(1, ddr=math.ceil(0.45 * rows * 80) + keys + flight + 64 * 8 * 20)
    _, group, plan = planned(ONE, hardware)
    growth = growth_of(pickle.loads(pickle.dumps(plan)))  # as it goes to other ranks
    assert (growth.caching, growth.cache_load_factor, growth.local_hbm_for_values) == (True, 0.4, 3_200_000)
    with process_group():
        model = nn.ModuleDict({"group": group})
        whole = ShardingPlan({f"group.{path}": tables for path, tables in plan.plan.items()})
        kernel = dynamic_tables(shard_model(model, whole, create_sharders()))["a_emb"]
    assert kernel.described[0].options == growth
    tiers = kernel.tiers("a_emb")
    assert (tiers.mode, tiers.fast_rows) == ("CACHING", 3_200_000 // 68)


def test_static_tables_beside_them_keep_the_weights_that_they_have() -> None:
    """Steps, as TorchRec does where nothing grows; the collection then says to be on `meta`, for the sake of the placeholder."""
    text = growing("s", kind="sequence_id_feature", capacity=100) + steps_feature("t", 9) + steps("s", "t")
    group = group_of(text, device="cpu")
    weight = group.table_weights()["t_emb"]
    wanted = torch.arange(9.0 * DIM).view(9, DIM)
    with torch.no_grad():
        weight.copy_(wanted)
    with process_group():
        plan = create_single_process_plan(group, create_sharders())
        whole = ShardingPlan({f"group.{path}": tables for path, tables in plan.plan.items()})
        (kept,) = table_shards(shard_model(nn.ModuleDict({"group": group}), whole, create_sharders()))
    assert (kept.table, kept.weight.tolist()) == ("t_emb", wanted.tolist())


def test_one_process_grows_tables_without_a_planner() -> None:
    group = group_of(growing("a", "cache_load_factor: 0.5") + growing("c") + id_feature("b", 9) + deep("a", "b", "c"))
    tables = create_single_process_plan(group, create_sharders()).plan["pooled.ebc"]
    own, whole = (tables[name].dynamicemb_options for name in ("a_emb", "c_emb"))
    assert (own.cache_load_factor, own.caching, own.local_hbm_for_values) == (0.5, False, 100_000 * 80 // 2)
    assert (whole.cache_load_factor, whole.local_hbm_for_values) == (1.0, None)
    assert tables["b_emb"].compute_kernel == "fused"


def test_saved_plans_keep_the_choice() -> None:
    for hardware in (gpus(RANKS, hbm=4 * MIB), cpus(RANKS, ddr=4 * MIB), cpus(RANKS)):
        planner, group, plan = planned(BOTH, hardware)
        saved = save_plan(plan, group, create_sharders(), hardware)
        again = sharding_plan(saved, group, create_sharders(), hardware)
        assert {path: dict(tables) for path, tables in again.plan.items()} == {path: dict(tables) for path, tables in plan.plan.items()}
        before = report_plan(planner)
        planner.price(again, group, create_sharders())
        after = report_plan(planner)
        assert (after.tables, after.ranks) == (before.tables, before.ranks)


def fitted(**place: Any) -> Any:
    saved = SavedPlan(world_size=4, local_world_size=4, tables={"a_emb": SavedTable(**place)})
    return growth_of(sharding_plan(saved, group_of(growing("a", "cache_load_factor: 0.5") + deep("a")), create_sharders(), cpus(4)))


def test_people_may_leave_out_most_of_it() -> None:
    assert (fitted(sharding_type="row_wise").cache_load_factor, fitted(sharding_type="row_wise").caching) == (0.5, False)
    found = fitted(sharding_type="row_wise", cache_load_factor=0.75, caching=True)
    assert (found.cache_load_factor, found.caching, found.local_hbm_for_values) == (0.75, True, math.floor(0.75 * VALUES))
    assert fitted(sharding_type="row_wise", cache_load_factor=1.0, caching=True) == fitted(sharding_type="row_wise", cache_load_factor=1.0)


@pytest.mark.parametrize(
    ("place", "problem"),
    [
        ({"sharding_type": "table_wise", "ranks": (0,)}, "dynamic tables have sharding_type row_wise only, found table_wise"),
        ({"sharding_type": "row_wise", "compute_kernel": "fused"}, "dynamic tables have compute_kernel customized_kernel only, found fused"),
        ({"sharding_type": "row_wise", "rows": 9}, "the plan has rows 9, the model 100000"),
        ({"sharding_type": "row_wise", "ranks": (1, 0, 2, 3)}, "row_wise has its shards on all ranks in order, found 1, 0, 2, 3"),
    ],
)
def test_plans_that_can_not_be_are_told(place: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        fitted(**place)
    assert list(caught.value.problems) == [f"table 'pooled.ebc.a_emb': {problem}"]


def test_static_tables_have_nothing_of_it() -> None:
    group = group_of(id_feature("b", 16) + deep("b"))
    for place, problem in (
        (SavedTable(sharding_type="row_wise", caching=True), "caching is for dynamic tables"),
        (SavedTable(sharding_type="row_wise", compute_kernel="customized_kernel"), "row_wise: its kernels here are fused"),
    ):
        with pytest.raises(ConfigError) as caught:
            sharding_plan(SavedPlan(world_size=4, local_world_size=4, tables={"b_emb": place}), group, create_sharders(), cpus(4))
        assert list(caught.value.problems) == [f"table 'pooled.ebc.b_emb': {problem}"]


@pytest.mark.parametrize(
    ("place", "problem"),
    [
        ({"compute_kernel": "customized_kernel", "caching": 1}, "caching must be true or false, found 1"),
        ({"compute_kernel": "customized_kernel", "cache_load_factor": 1.5}, "cache_load_factor must be between 0 and 1, found 1.5"),
        ({"compute_kernel": "customized_kernel", "cache_load_factor": True}, "cache_load_factor must be between 0 and 1, found True"),
        ({"compute_kernel": "fused_uvm_caching", "cache_load_factor": 1}, "cache_load_factor must be between 0 and 1, found 1"),
    ],
)
def test_files_are_looked_at(tmp_path: Path, place: dict[str, Any], problem: str) -> None:
    whole = {"format": "emberline.plan", "version": 1, "world_size": 1, "tables": {"a": {"sharding_type": "row_wise"} | place}}
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(whole))
    with pytest.raises(ConfigError) as caught:
        read_plan(path)
    assert list(caught.value.problems) == [f"table 'a': {problem}"]


def test_the_log_tells_of_each_dynamic_table(caplog: pytest.LogCaptureFixture) -> None:
    own = "emberline.train.sharding.dynamic_variants"
    with caplog.at_level(logging.INFO, logger=own):
        planned(BOTH, gpus(RANKS))
    assert [record.message for record in caplog.records if record.name == own] == [
        f"[dynamicemb plan] {path} mode=HBM_ONLY cache_load_factor=1 local_hbm={VALUES} local_dram=0"
        for path in ("pooled.ebc.a_emb", "sequence_tables.ec_dict.16.s_emb")
    ]
    weight = group_of(ONE).table_weights()["a_emb"]
    growth = replace(growth_of(planned(ONE, gpus(RANKS))[2]), caching=True, cache_load_factor=0.3)
    assert plan_line("t", weight, growth, RANKS, "cuda") == (
        f"[dynamicemb plan] t mode=CACHING cache_load_factor=0.3 local_hbm={math.floor(0.3 * VALUES)} local_dram={VALUES}"
    )


def test_the_command_shows_modes_shares_and_memories(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, plan, numbers = (tmp_path / name for name in ("c.pbtxt", "plan.json", "numbers.json"))
    config.write_text(growing("a", "cache_load_factor: 0.5") + id_feature("b", 500) + deep("a", "b"))
    command = ["plan", "--config", str(config), "--world-size", "4", "--ddr", "64MiB", "--batch-size", "64"]
    assert main([*command, "--output", str(plan), "--json", str(numbers), "--png", str(tmp_path / "p.png")]) == 0
    shown = capsys.readouterr().out
    values = 25_008 * 64  # no optimiser: vectors alone
    assert "DynamicEmb CACHING 0.5" in shown
    assert "+ 6.11 MiB disk" in shown
    (report, other) = json.loads(numbers.read_text())["tables"]
    assert report["growth"] == {
        "mode": "CACHING", "cache_load_factor": 0.5, "fast": "ddr", "slow": "disk", "values": values // 2, "keys": KEYS, "slow_values": values,
    }  # fmt: skip
    assert other["growth"] is None
    assert (tmp_path / "p.png").stat().st_size > 1000
    assert main([*command, "--plan", str(plan), "--json", str(tmp_path / "again.json")]) == 0
    assert (tmp_path / "again.json").read_text() == numbers.read_text()


def test_a_job_tells_where_they_are() -> None:
    planner, group, plan = planned(BOTH, cpus(RANKS, ddr=4 * MIB))
    lines = plan_lines(plan, group.tables)  # type: ignore[arg-type]
    (shown,) = [line for line in lines if line.startswith("a_emb")]
    option = planner.chosen[0]
    assert isinstance(option, DynamicEmbShardingOption)
    assert f"DynamicEmb CACHING {option.growth.cache_load_factor:g}" in shown


def _assigned(nodes: Sequence[ast.AST]) -> Iterator[ast.expr]:
    for node in nodes:
        if isinstance(node, ast.Assign):
            yield from node.targets
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            yield node.target
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "setattr":
            yield ast.Attribute(value=node.args[0], attr="")


def _of_torchrec(nodes: Sequence[ast.AST]) -> set[str]:
    """Names that a module has from TorchRec."""
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torchrec"):
            found |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {(alias.asname or alias.name).split(".")[0] for alias in node.names if alias.name.startswith("torchrec")}
    return found


def patched(text: str) -> Sequence[str]:
    """What a module's text assigns to TorchRec's modules and classes."""
    nodes = list(ast.walk(ast.parse(text)))
    names = _of_torchrec(nodes)
    return [ast.unparse(target) for target in _assigned(nodes) if isinstance(target, ast.Attribute) and _root(target) in names]


def _root(expression: ast.expr) -> str:
    while isinstance(expression, ast.Attribute):
        expression = expression.value
    return expression.id if isinstance(expression, ast.Name) else ""


def test_nothing_of_torchrec_is_patched() -> None:
    assert patched("import torchrec.distributed as d\nd.x.y = 1\nfrom torchrec import Z\nZ.f = 2\nsetattr(Z, 'g', 3)\nown.f = Z") == [
        "d.x.y", "Z.f", "Z."
    ]  # fmt: skip
    files = sorted(Path(train.__file__).parent.glob("**/*.py"))
    texts = {str(path): text for path in files if "torchrec" in (text := path.read_text(encoding="utf-8"))}
    assert {path: names for path, text in texts.items() if (names := patched(text))} == {}
    print(f"{len(texts)} files of training know TorchRec, and assign nothing to it")
    assert len(texts) > 30
