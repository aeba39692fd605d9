"""Checkpoints of one, two and three ranks, taken up by others: ids keep their vectors, moments and counts; answers stay what they were."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import Tensor

from emberline.train.checkpoint import load_trained, store
from emberline.train.checkpoint.tensors import read_tensors
from emberline.train.config import load_config
from emberline.train.scoring.model import open_scorer
from emberline.train.scoring.outputs import write_outputs
from emberline.train.sharding import process_group
from emberline.train.sharding.process_group import ALONE
from emberline.train.zch import FREE_ROW, MIXED, owner_of, remap_entries, zch_modules
from tests.train.checkpoint.rank_work import SOURCES, take_up, work
from tests.train.conftest import config_text, make_table
from tests.train.jobs import Job
from tests.train.rank_runs import run_forked

pytestmark = pytest.mark.slow
SCRIPT = str(Path(__file__).with_name("rank_work.py"))
FEATURES = """
feature_configs { id_feature { feature_name: "user" expression: "user:user" embedding_dim: 8 zch { zch_size: 121 eviction_interval: 2 lfu {} } } }
feature_configs { id_feature {
  feature_name: "other" expression: "user:other" embedding_dim: 8 zch { zch_size: 14 eviction_interval: 1 distance_lfu { decay_exponent: 1.0 } }
} }
feature_configs { id_feature { feature_name: "item" expression: "item:item" embedding_dim: 8 hash_bucket_size: 50 } }
feature_configs { id_feature { feature_name: "tags" expression: "item:tags" embedding_dim: 8 num_buckets: 12 weighted: true } }
feature_configs { raw_feature { feature_name: "age" expression: "user:age" } }
"""
GROUPS = """
  feature_groups { group_name: "dense" feature_names: "age" }
  feature_groups { group_name: "sparse" feature_names: "user" feature_names: "other" feature_names: "item" feature_names: "tags" }
"""
MODEL = "dlrm { dense_mlp { hidden_units: [8] } final { hidden_units: [8] } }"
ZCH = ("user_emb", "other_emb")
PAIRS = [*((source, count) for count in SOURCES for source in SOURCES if source <= count), (2, 1), (3, 1)]
Tensors = dict[str, Tensor]
VECTORS = torch.arange(40.0).view(5, 8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything that `rank_work` does, on one, two and three ranks."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    home = tmp_path_factory.mktemp("ranks")
    for name, rows, seed in (("train", 384, 1), ("eval", 90, 2)):
        table = make_table(rows, seed)
        spread = (table.column("user").to_numpy().astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)).astype(np.int64)
        table = (
            table.set_column(0, "user", pa.array(spread))
            .append_column("other", pa.array(spread // 7))
            .append_column("row", pa.array(np.arange(rows)))
        )
        pq.write_table(table, home / f"{name}.parquet", row_group_size=25)
    ids = [3, 2**62 + 5, 7, 2**61, 40]
    pq.write_table(pa.table({"id": pa.array(ids), "vector": pa.array(VECTORS.tolist())}), home / "ids.parquet")
    pq.write_table(pa.table({"id": pa.array([3, 7, 40, 0, 49]), "vector": pa.array(VECTORS.tolist())}), home / "rows.parquet")
    text = config_text(home, features=FEATURES, groups=GROUPS, model=MODEL, train="num_steps: 6", save=3)
    (home / "c.pbtxt").write_text(text.replace("batch_size: 32", "batch_size: 24 eval_batch_size: 16"))
    with process_group() as ranks:
        work(home, load_config(home / "c.pbtxt"), ranks)
    run_forked(home, [Job(count, [SCRIPT, str(home), str(home / "c.pbtxt")]) for count in (2, 3)])
    with process_group() as ranks:
        take_up(home, load_config(home / "c.pbtxt"), ranks, (2, 3))
    torch.set_num_threads(threads)
    return home


def saved(run: Path) -> Tensors:
    return read_tensors(store.find_checkpoint(run) / "tensors")


def owners(tensors: Tensors, table: str) -> dict[int, dict[str, Tensor]]:
    """Id -> everything that belongs to it."""
    found = {}
    entries = {name: value for name, value in tensors.items() if name.startswith(f"zch/{table}/") and len(value) == len(tensors[f"zch/{table}/rows"])}
    for place, (raw, row) in enumerate(zip(tensors[f"zch/{table}/raw_ids"].tolist(), tensors[f"zch/{table}/rows"].tolist(), strict=True)):
        if raw != FREE_ROW:
            own = {name: value[place] for name, value in entries.items() if not name.endswith(("/rows", "/ends"))}
            own |= {name: tensors[f"tables/{table}/{name}"][row] for name in ("weight", "sum")}
            found[raw] = own
    return found


@pytest.mark.parametrize(("source", "count"), PAIRS)
def test_everything_is_kept(folder: Path, source: int, count: int) -> None:
    before, after = saved(folder / f"run-{source}"), saved(folder / f"from-{source}-on-{count}")
    if source == count:
        assert sorted(before) == sorted(after)
        assert [name for name in before if not torch.equal(before[name], after[name])] == []
        return
    moved = tuple(f"{kind}/{table}/" for kind in ("zch", "tables") for table in ZCH)
    same = [name for name in before if not name.startswith((*moved, "rng/"))]
    assert len(same) > 20
    assert [name for name in same if not torch.equal(before[name], after[name])] == []
    for table in ZCH:
        assert torch.equal(before[f"tables/{table}/step"], after[f"tables/{table}/step"])
        assert torch.equal(before[f"zch/{table}/counters"].sum(0), after[f"zch/{table}/counters"].sum(0))
        assert torch.equal(before[f"zch/{table}/history_ids"].sort().values, after[f"zch/{table}/history_ids"].sort().values)
        old, new = owners(before, table), owners(after, table)
        notes = [json.loads((folder / f"notes-{source}-on-{count}-{rank}.json").read_text()) for rank in range(count)]
        told = sum(int(note.split(": ")[1].split()[0]) for rank in notes for note in rank if repr(table) in note)
        assert len(old) == len(new) + told
        assert table == "other_emb" or told == 0
        for raw, own in new.items():
            assert sorted(own) == sorted(old[raw])
            assert [name for name in own if not torch.equal(own[name], old[raw][name])] == []
        ends = after[f"zch/{table}/ends"].tolist()
        rows = dict(zip(after[f"zch/{table}/raw_ids"].tolist(), after[f"zch/{table}/rows"].tolist(), strict=True))
        for raw in new:
            shard = int(owner_of(torch.tensor([raw]), count, MIXED))
            assert ends[shard] <= rows[raw] < ends[shard + 1] - 1
    assert min(len(owners(before, table)) for table in ZCH) > 8


def scores(folder: Path, source: int, count: int) -> dict[int, float]:
    table = pq.read_table(folder / f"scores-{source}-on-{count}")
    found = dict(zip(table.column("row").to_pylist(), table.column("probs").to_pylist(), strict=True))
    assert len(found) == table.num_rows == 90
    return found


@pytest.mark.parametrize("source", SOURCES)
def test_one_process_answers_as_the_ranks_that_trained(folder: Path, source: int, tmp_path: Path) -> None:
    """Ids that own no row included, negative ones too: each shard has its own fallback row."""
    with open_scorer(folder / f"run-{source}", ALONE) as scorer:
        write_outputs(scorer, folder / "eval.parquet", tmp_path / "out", keep=("row",))
    table = pq.read_table(tmp_path / "out")
    wanted, found = scores(folder, source, source), dict(zip(table.column("row").to_pylist(), table.column("probs").to_pylist(), strict=True))
    assert sorted(found) == list(range(90)) == sorted(wanted)
    data, before = pq.read_table(folder / "eval.parquet"), saved(folder / f"run-{source}")
    columns = [(data.column(name).to_pylist(), owners(before, f"{name}_emb")) for name in ("user", "other")]
    assert sum(any(ids[row] not in known for ids, known in columns) for row in range(90)) > 10
    assert sum(any(ids[row] < 0 and ids[row] not in known for ids, known in columns) for row in range(90)) > 5
    assert max(abs(found[row] - wanted[row]) for row in range(90)) < 1e-6
    unsharded = load_trained(folder / f"run-{source}").model
    assert len(remap_entries(zch_modules(unsharded)["other_emb"])[3]) == source


@pytest.mark.parametrize(("source", "count"), PAIRS)
def test_known_ids_are_answered_alike_on_any_ranks(folder: Path, source: int, count: int) -> None:
    before, after = saved(folder / f"run-{source}"), saved(folder / f"from-{source}-on-{count}")
    known = {table: owners(before, table).keys() & owners(after, table).keys() for table in ZCH}
    data = pq.read_table(folder / "eval.parquet")
    users, others = data.column("user").to_pylist(), data.column("other").to_pylist()
    rows = [row for row in range(90) if users[row] in known["user_emb"] and others[row] in known["other_emb"]]
    assert len(rows) > 10
    wanted, found = scores(folder, source, source), scores(folder, source, count)
    assert max(abs(found[row] - wanted[row]) for row in rows) < 1e-6


@pytest.mark.parametrize("count", SOURCES)
def test_numbers_are_those_of_the_runs_last_evaluation(folder: Path, count: int) -> None:
    lines = [json.loads(line) for line in (folder / f"run-{count}" / "metrics.jsonl").read_text().splitlines()]
    wanted = [line for line in lines if line["kind"] == "eval"][-1]
    found = json.loads((folder / f"metrics-{count}-on-{count}.json").read_text())
    assert found == pytest.approx({name: wanted[name] for name in found}, abs=1e-12)


@pytest.mark.parametrize("count", SOURCES)
def test_a_run_begins_with_another_model_and_vectors_on_any_ranks(folder: Path, count: int) -> None:
    begun, source = saved(folder / f"begun-{count}"), saved(folder / "run-1")
    assert [name for name in source if name.startswith("dense/") and not torch.equal(begun[name], source[name])] == []
    assert torch.equal(begun["tables/tags_emb/weight"], source["tables/tags_emb/weight"])
    assert begun["tables/tags_emb/sum"].eq(0).all()
    expected = source["tables/item_emb/weight"].clone()
    expected[[3, 7, 40, 0, 49]] = VECTORS
    assert torch.equal(begun["tables/item_emb/weight"], expected)
    old, new = owners(source, "user_emb"), owners(begun, "user_emb")
    assert old.keys() == new.keys()
    assert all(torch.equal(old[raw]["weight"], new[raw]["weight"]) and new[raw]["sum"].eq(0).all() for raw in old)
    admitted = owners(saved(folder / f"filled-{count}"), "other_emb")
    assert {raw: own["weight"].tolist() for raw, own in admitted.items()} == dict(zip([3, 2**62 + 5, 7, 2**61, 40], VECTORS.tolist(), strict=True))
