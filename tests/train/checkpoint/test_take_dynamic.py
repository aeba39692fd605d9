"""Tables that grow of a run that begins: filled from a run whose tables grow, from ZCH tables, and from files of vectors."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from emberline.errors import CheckpointError, ConfigError, DataError
from emberline.train.checkpoint import store, stored_dynamic
from emberline.train.checkpoint.id_maps import read_whole_map
from emberline.train.checkpoint.init_tables import VectorFile
from emberline.train.checkpoint.live_dynamic import HeldTables, live_tables
from emberline.train.checkpoint.run_state import Progress, RunTensors, save_run
from emberline.train.checkpoint.start import Beginning, prepare
from emberline.train.checkpoint.stored_dynamic import StoredDynamic
from emberline.train.checkpoint.take_dynamic import merged, take_growing, take_zch
from emberline.train.checkpoint.tensors import read_tensors
from emberline.train.checkpoint.warm_start import WarmStart
from emberline.train.config import PipelineConfig
from emberline.train.data import tile_batch
from emberline.train.dynamic.options import DynamicEmbOptions, ScoreStrategy
from emberline.train.dynamic.state import DynamicState, DynamicTable
from emberline.train.dynamic.tables import BatchedDynamicEmbeddingTables
from emberline.train.job_build import build_parts, open_data
from emberline.train.kernels.optimizers import Adagrad, Adam
from emberline.train.sharding import process_group
from emberline.train.zch import FREE_ROW
from tests.train.checkpoint.dynamic_files import assert_same, state_of, stored, write_states
from tests.train.checkpoint.dynamic_ranks import OPTIONS, UNIFORM
from tests.train.conftest import FEATURES

MakeConfig = Callable[..., PipelineConfig]
ZCH = "zch { zch_size: 40 eviction_interval: 2 lfu {} }"
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def group_of_one() -> Iterator[None]:
    with process_group():
        yield


def growing(options: str) -> str:
    """The features, of which the user's table grows; others have raw numbers, no width, or fixed rows."""
    assert ZCH in FEATURES
    return FEATURES.replace(ZCH, f"dynamicemb {{ {options} }}")


def begun(config: PipelineConfig, begin: Beginning) -> tuple[HeldTables, RunTensors, list[str]]:
    """What holds the table of users, of a run that was built and then filled; and what was told."""
    start = prepare(begin, config)
    parts = build_parts(config)
    tensors = RunTensors(parts.sharded, parts.model, parts.step.optimizer, parts.step.tensors())
    lines, notes = start.apply(tensors)
    return live_tables(parts.sharded)["user_emb"], tensors, [*lines, *notes]


def zch_rows(checkpoint: Path) -> dict[int, tuple[torch.Tensor, torch.Tensor, int]]:
    """Raw id -> vector, moment and count."""
    stored = read_tensors(checkpoint / "tensors")
    ids, rows, counts = (stored[f"zch/user_emb/{name}"].tolist() for name in ("raw_ids", "rows", "counts"))
    weight, moment = stored["tables/user_emb/weight"], stored["tables/user_emb/sum"]
    return {one: (weight[row], moment[row], count) for one, row, count in zip(ids, rows, counts, strict=True) if one != FREE_ROW}


@pytest.mark.parametrize("with_progress", [False, True])
def test_ids_of_a_zch_table_get_rows_of_their_own(make_config: MakeConfig, finished_run: Path, with_progress: bool) -> None:
    source = finished_run / "step-4"
    wishes = WarmStart(checkpoint=source, with_progress=with_progress, fallback_as_default=with_progress)
    kernel, tensors, told = begun(make_config(features=growing("max_capacity: 500 score_strategy: 'LFU'")), Beginning(wishes))
    found, wanted = kernel.dump("user_emb"), zch_rows(source)
    assert found.keys.tolist() == sorted(wanted)
    for place, key in enumerate(found.keys.tolist()):
        vector, moment, count = wanted[key]
        assert torch.equal(found.weights[place], vector)
        assert torch.equal(found.moments["sum"][place], moment if with_progress else torch.zeros(8))
        assert int(found.scores[place]) == count
    fallback = read_tensors(source / "tensors")["tables/user_emb/weight"][-1]
    assert torch.equal(found.default, fallback if with_progress else torch.zeros(8))
    assert f"table 'user_emb': {len(wanted)} ids of the ZCH table 'user_emb' get rows of their own" in told
    assert kernel.tables.step == (4 if with_progress else 0)
    fixed = read_tensors(source / "tensors")["tables/item_emb/weight"]
    assert torch.equal(tensors.all()["tables/item_emb/weight"].whole(), fixed)  # type: ignore[union-attr]


def kernel_of(ranks: int, rows: int, strategy: ScoreStrategy, optimizer: Any = None) -> BatchedDynamicEmbeddingTables:
    options = DynamicEmbOptions(max_capacity=rows, initializer=UNIFORM, score_strategy=strategy)
    return BatchedDynamicEmbeddingTables([DynamicTable("t", 8, options, -(-rows // ranks))], [0], optimizer or Adagrad())


def test_any_number_of_ranks_shares_the_ids_of_a_zch_table(finished_run: Path) -> None:
    folder = finished_run / "step-4" / "tensors"
    source, wanted = ("user_emb", read_whole_map(folder, "user_emb", "mixed")), zch_rows(finished_run / "step-4")
    for ranks, rows, strategy in ((1, 100, ScoreStrategy.LFU), (3, 300, ScoreStrategy.STEP), (2, 8, ScoreStrategy.LFU)):
        found: dict[int, tuple[torch.Tensor, int]] = {}
        dropped = 0
        for rank in range(ranks):
            kernel = kernel_of(ranks, rows, strategy)
            notes = take_zch(kernel, "t", folder, source, rank, ranks, with_progress=False, fallback=False)
            state = kernel.dump("t")
            assert found.keys().isdisjoint(state.keys.tolist())
            found |= dict(zip(state.keys.tolist(), zip(state.weights, state.scores.tolist(), strict=True), strict=True))
            dropped += kernel.counters("t").dropped
            assert any("have no row any more" in note for note in notes) == (kernel.counters("t").dropped > 0)
        assert len(found) + dropped == len(wanted)
        assert (dropped > 0) == (rows == 8)
        for key, (vector, score) in found.items():
            assert torch.equal(vector, wanted[key][0])
            assert score == (wanted[key][2] if strategy is ScoreStrategy.LFU else 0)
    with pytest.raises(CheckpointError, match="the optimiser keeps 'exp_avg', which the checkpoint has not: it was another one"):
        take_zch(kernel_of(1, 100, ScoreStrategy.LFU, Adam()), "t", folder, source, 0, 1, with_progress=True, fallback=False)


def write(path: Path, ids: list[int], vectors: list[list[float]]) -> Path:
    pq.write_table(pa.table({"id": pa.array(ids, pa.int64()), "vector": pa.array(vectors, pa.list_(pa.float32()))}), path)
    return path


def filled(make_config: MakeConfig, path: Path, options: str = "max_capacity: 50", begin: WarmStart | None = None) -> tuple[DynamicState, RunTensors]:
    kernel, tensors, _ = begun(make_config(features=growing(options)), Beginning(begin, (VectorFile("user_emb", path),)))
    return kernel.dump("user_emb"), tensors


def test_vectors_of_a_file_become_rows(make_config: MakeConfig, finished_run: Path, tmp_path: Path) -> None:
    ids = [2**63 - 1, -(2**63), 7, -1]
    vectors = [[float(place)] * 8 for place in range(4)]
    path = write(tmp_path / "v.parquet", ids, vectors)
    state, tensors = filled(make_config, path, "max_capacity: 50 score_strategy: 'LFU'")
    assert dict(zip(state.keys.tolist(), state.weights[:, 0].tolist(), strict=True)) == dict(zip(ids, [0.0, 1.0, 2.0, 3.0], strict=True))
    assert state.scores.tolist() == [1] * 4
    assert state.moments["sum"].tolist() == [[0.0] * 8] * 4
    config = make_config(features=growing("max_capacity: 50 score_strategy: 'LFU'"))
    first = save_run(tmp_path / "first", tensors, config, Progress(step=3, updates=3))
    again = write(tmp_path / "w.parquet", [7, 8], [[9.0] * 8, [10.0] * 8])
    found, _ = filled(make_config, again, "max_capacity: 50 score_strategy: 'LFU'", WarmStart(checkpoint=first))
    assert dict(zip(found.keys.tolist(), found.weights[:, 0].tolist(), strict=True)) == {ids[0]: 0.0, ids[1]: 1.0, 7: 9.0, -1: 3.0, 8: 10.0}
    same, _, told = begun(config, Beginning(WarmStart(checkpoint=first, with_progress=True)))
    assert_same(same.dump("user_emb"), state)
    assert [line.split(": ")[0] for line in told] == [f"warm start from {first}"]
    _, _, told = begun(make_config(features=growing("max_capacity: 3")), Beginning(WarmStart(checkpoint=first)))
    assert told[1:] == [
        "table 'user_emb': 1 ids of this rank, those of the lowest scores, have no row any more",
        "table 'user_emb': scores begin anew, as they were LFU and are STEP",
    ]


def test_a_config_names_the_file(make_config: MakeConfig, finished_run: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "v.parquet", [5, 6], [[1.0] * 8, [2.0] * 8])
    config = make_config(features=growing(f"max_capacity: 50 init_table: '{path}'"))
    kernel, _, told = begun(config, Beginning())
    assert kernel.dump("user_emb").weights[:, 0].tolist() == [1.0, 2.0]
    assert told == [f"table 'user_emb': vectors from {path}"]
    other = write(tmp_path / "w.parquet", [7], [[3.0] * 8])
    kernel, _, told = begun(config, Beginning(vectors=(VectorFile("user_emb", other),)))
    assert kernel.dump("user_emb").keys.tolist() == [7]
    kernel, _, told = begun(config, Beginning(WarmStart(checkpoint=finished_run)))
    assert len(kernel.dump("user_emb").keys) == len(zch_rows(finished_run / "step-4"))
    with pytest.raises(DataError, match="nowhere"):
        begun(make_config(features=growing(f"max_capacity: 50 init_table: '{tmp_path}/nowhere'")), Beginning())


TILED = """
  feature_groups { group_name: "wide" group_type: WIDE feature_names: "user" feature_names: "item" }
  feature_groups { group_name: "fm" feature_names: "user" feature_names: "friend" feature_names: "item" feature_names: "tags" }
  feature_groups { group_name: "deep" feature_names: "friend" feature_names: "age" feature_names: "price" feature_names: "visits" }
"""


@pytest.mark.parametrize("is_named_by_config", [True, False])
def test_tables_that_both_sides_of_tiled_batches_read(make_config: MakeConfig, tmp_path: Path, is_named_by_config: bool) -> None:
    """One table, read of users, of their steps and of items, in groups of every kind, and beside a wide table, numbers, and no width."""
    ids = [-7, 999996, 5, 6, 2**63 - 1]
    path = write(tmp_path / "v.parquet", ids, [[float(place + 1)] * 8 for place in range(5)])
    options = "max_capacity: 50" + (f" init_table: '{path}'" if is_named_by_config else "")
    shared = f'embedding_dim: 8 embedding_name: "user_emb" dynamicemb {{ {options} }}'
    others = f'feature_configs {{ id_feature {{ feature_name: "friend" expression: "item:hour" {shared} }} }}'
    others += f'feature_configs {{ sequence_id_feature {{ feature_name: "visits" expression: "user:user" sequence_length: 3 {shared} }} }}'
    config = make_config(features=growing(options) + others, groups=TILED, model="deepfm { deep { hidden_units: [4] } }")
    start = prepare(Beginning(vectors=() if is_named_by_config else (VectorFile("user_emb", path),)), config)
    parts = build_parts(config)
    start.apply(RunTensors(parts.sharded, parts.model, parts.step.optimizer, parts.step.tensors()))
    held = live_tables(parts.sharded)
    assert {table: len(kernel.dump(table).keys) for table, kernel in held.items()} == {"user_emb": 5, "user_emb_wide": 0}
    reader, _ = open_data(config, parts.features)
    batch = next(iter(reader))
    group = parts.model.eval().embedding_group
    with torch.no_grad():
        plain, tiled = group(batch), group(tile_batch(batch, parts.features))
    for name, wanted in plain.items():
        assert torch.equal(tiled[name], wanted), name
    vectors = {key: float(place + 1) for place, key in enumerate(ids)}
    for place, feature in enumerate(("user", "friend")):
        asked = batch.sparse_features["__BASE__"][feature].values().tolist()
        assert plain["fm"][:, 8 * place].tolist() == [vectors.get(key, 0.0) for key in asked]
        assert vectors.keys() & set(asked)


def test_files_that_do_not_fit_are_refused(make_config: MakeConfig, tmp_path: Path) -> None:
    one = [0.5] * 8
    with pytest.raises(DataError, match=r"more ids than table 'user_emb' has rows for: 3 new ones, and 2 rows on rank 0 of 1; raise max_capacity"):
        filled(make_config, write(tmp_path / "a.parquet", [1, 2, 3], [one] * 3), "max_capacity: 2")
    with pytest.raises(DataError, match=r"a.parquet row 2: the id 1 is there before"):
        filled(make_config, write(tmp_path / "a.parquet", [1, 2, 1], [one] * 3))
    with pytest.raises(DataError, match="the table has vectors of 8 numbers, found 3"):
        filled(make_config, write(tmp_path / "a.parquet", [1, 2], [one, [1.0] * 3]))
    with pytest.raises(DataError, match="missing, NaN or infinite"):
        filled(make_config, write(tmp_path / "a.parquet", [1], [[float("nan")] * 8]))
    with pytest.raises(ConfigError, match="'user'"):
        begun(make_config(features=growing("max_capacity: 9")), Beginning(vectors=(VectorFile("user", tmp_path / "a.parquet"),)))
    state, _ = filled(make_config, write(tmp_path / "a.parquet", [], []))
    assert len(state.keys) == 0
    with pytest.raises(
        ConfigError, match=r"feature 'user': dynamicemb init_table: .*'hdfs://host/v.parquet' is at a place of hdfs: copy or mount it"
    ):
        begun(make_config(features=growing("max_capacity: 9 init_table: 'hdfs://host/v.parquet'")), Beginning())


def test_vectors_are_as_the_table_can_hold_them(make_config: MakeConfig, tmp_path: Path) -> None:
    halves = growing("max_capacity: 50").replace('expression: "user:user"', 'expression: "user:user" data_type: "FP16"')
    path = write(tmp_path / "v.parquet", [1, 2], [[0.1] * 8, [65504.0] * 8])
    kernel, _, _ = begun(make_config(features=halves), Beginning(vectors=(VectorFile("user_emb", path),)))
    assert torch.equal(kernel.dump("user_emb").weights, torch.tensor([[0.1] * 8, [65504.0] * 8]).half())
    path = write(tmp_path / "w.parquet", [1, 2], [[0.1] * 8, [70000.0] * 8])
    with pytest.raises(DataError, match=r"w.parquet row 1: a number of the vector is beyond what the table's float16 holds"):
        begun(make_config(features=halves), Beginning(vectors=(VectorFile("user_emb", path),)))


def test_an_id_that_waits_is_admitted_by_a_vector() -> None:
    options = replace(OPTIONS["waits"], max_capacity=20)
    kernel = BatchedDynamicEmbeddingTables([DynamicTable("t", 4, options, 20, 9)], [0], Adagrad())
    kernel.train()(torch.tensor([5, 7, 7, 8, 8, 8]), torch.arange(7))
    state = merged(kernel.dump("t"), torch.tensor([7, 9]), torch.ones(2, 4), kernel, "t")
    assert (state.keys.tolist(), state.counted_keys.tolist(), state.counts.tolist()) == ([7, 8, 9], [5], [1])
    kernel.load("t", state)
    assert_same(kernel.dump("t"), state)


def test_kinds_that_do_not_fit_are_refused(make_config: MakeConfig, finished_run: Path, tmp_path: Path) -> None:
    growing_text = growing("max_capacity: 9")
    halved = growing_text.replace('expression: "user:user"', 'expression: "user:user" data_type: "FP16"')
    with pytest.raises(CheckpointError, match=r"tables/user_emb is float32 \[40, 8\] there, and float16 \[9, 8\] here"):
        prepare(Beginning(WarmStart(checkpoint=finished_run)), make_config(features=halved))
    fixed = FEATURES.replace("hash_bucket_size: 50", "dynamicemb { max_capacity: 50 }").replace('init_fn: "nn.init.normal_,std=0.1"', "")
    with pytest.raises(CheckpointError, match="tables/item_emb is a table of fixed rows there, and a table that grows here"):
        prepare(Beginning(WarmStart(checkpoint=finished_run)), make_config(features=fixed))
    path = write(tmp_path / "v.parquet", [1], [[0.5] * 8])
    _, tensors = filled(make_config, path)
    first = save_run(tmp_path / "first", tensors, make_config(features=growing("max_capacity: 50")), Progress(step=3, updates=3))
    with pytest.raises(CheckpointError, match="tables/user_emb is a table that grows there, and a ZCH table here"):
        prepare(Beginning(WarmStart(checkpoint=first)), make_config())
    assert store.list_steps(tmp_path / "first") == [3]
    lfu = make_config(features=growing("max_capacity: 50 score_strategy: 'LFU'"))
    with pytest.raises(CheckpointError, match="table 'user_emb' has score_strategy LFU, the checkpoint STEP"):
        begun(lfu, Beginning(WarmStart(checkpoint=first, with_progress=True)))


@pytest.mark.parametrize("with_progress", [False, True])
def test_a_table_with_a_second_tier_is_filled_by_way_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_progress: bool) -> None:
    state = state_of([-(2**63), -1, 4, 7, 2**63 - 1], step=3)
    source = stored(write_states(tmp_path, 3, {"t": replace(state, moments={"sum": state.weights})}), "t")
    monkeypatch.setattr(stored_dynamic, "ASIDE_BYTES", 0)
    aside: list[str] = []
    take_aside = StoredDynamic._take_aside

    def noted(table: StoredDynamic, part: str, rows: torch.Tensor, folder: Path) -> torch.Tensor:
        aside.append(part)
        return take_aside(table, part, rows, folder)

    monkeypatch.setattr(StoredDynamic, "_take_aside", noted)
    for share, parts in ((None, []), (64, ["weight", "sum"] if with_progress else ["weight"])):
        aside.clear()
        options = DynamicEmbOptions(max_capacity=50, initializer=UNIFORM, local_hbm_for_values=share)
        kernel = BatchedDynamicEmbeddingTables([DynamicTable("t", 3, options, 50)], [0], Adagrad(initial_accumulator_value=0.5))
        assert take_growing(kernel, "t", source, 0, 1, with_progress=with_progress) == []
        found = kernel.dump("t")
        assert (aside, found.keys.tolist(), torch.equal(found.weights, state.weights)) == (parts, state.keys.tolist(), True)
        assert torch.equal(found.moments["sum"], state.weights if with_progress else torch.full((5, 3), 0.5))
