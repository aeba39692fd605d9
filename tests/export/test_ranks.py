"""Checkpoints that several ranks wrote: the artifact and the scores answer as the model did there, unknown ids of each range of ids included."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from emberline.export.export import export_model
from emberline.serving.engine import Engine
from emberline.train.checkpoint import load_trained, store
from emberline.train.checkpoint.tensors import read_tensors, save_tensors
from emberline.train.scoring.model import open_scorer
from emberline.train.scoring.outputs import write_outputs
from emberline.train.sharding.process_group import ALONE
from emberline.train.zch import FREE_ROW, ROUTINGS, owner_of
from tests.export.conftest import SmallRun

SHARDS, ROWS = 2, 40


def as_two_ranks_wrote_it(run: SmallRun, folder: Path, routing: str) -> Path:
    """The same tables, with the ids of `uid_emb` in two shards of 20 rows: each in the half of rows that it belongs to."""
    source = store.find_checkpoint(run.path)
    tensors = read_tensors(source / store.TENSORS_NAME)
    raw = tensors["zch/uid_emb/raw_ids"]
    ids, weight = raw[raw != FREE_ROW], tensors["tables/uid_emb/weight"]
    old = dict(zip(raw.tolist(), tensors["zch/uid_emb/rows"].tolist(), strict=True))
    parts, moved = [], torch.zeros_like(weight)
    for shard in range(SHARDS):
        own = ids[owner_of(ids, SHARDS, routing) == shard].sort().values[: ROWS // SHARDS - 1]
        first = shard * ROWS // SHARDS
        entries = torch.full((ROWS // SHARDS,), FREE_ROW)
        entries[: len(own)] = own
        parts.append(entries)
        for place, one in enumerate(own.tolist()):
            moved[first + place] = weight[old[one]]
        moved[first + ROWS // SHARDS - 1] = shard + 0.5  # the fallback row
    tensors |= {"zch/uid_emb/raw_ids": torch.cat(parts), "zch/uid_emb/rows": torch.arange(ROWS), "tables/uid_emb/weight": moved}
    tensors["zch/uid_emb/ends"] = torch.tensor([0, ROWS // SHARDS, ROWS])
    for name in ("iteration", "last_eviction_iteration", "counters"):
        tensors[f"zch/uid_emb/{name}"] = torch.cat([tensors[f"zch/uid_emb/{name}"]] * SHARDS)
    layout = {"world_size": SHARDS, "columns": {}, "zch_routing": {"uid_emb": routing}}
    with store.write_checkpoint(folder, 7, {}, {"layout": layout}) as draft:
        save_tensors(draft / store.TENSORS_NAME, tensors)
        for name in (store.CONFIG_NAME, store.SCHEMA_NAME, store.STATE_NAME):
            (draft / name).write_bytes((source / name).read_bytes())
    return folder


@pytest.fixture(scope="module", params=ROUTINGS)
def routing(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def run(small_run: SmallRun, tmp_path_factory: pytest.TempPathFactory, routing: str) -> Path:
    return as_two_ranks_wrote_it(small_run, tmp_path_factory.mktemp("two") / "run", routing)


def test_the_artifact_answers_as_the_ranks_did(run: Path, routing: str, small_run: SmallRun, tmp_path: Path) -> None:
    engine = Engine.open(export_model(run, tmp_path / "models", "two"))
    trained = load_trained(run)
    weight = trained.model.embedding_group.table_weights()["uid_emb"]
    ids = [3, 2**62 + 3, 2**63 - 2, 999, 5, 499, 500, 995, -5, -6, 2**63 - 1]
    rows = [dict(small_run.rows[0], uid=uid) for uid in ids]
    found = engine.lookup(engine.encode_rows(rows))["deep"]
    known = read_tensors(run / "step-7" / store.TENSORS_NAME)["zch/uid_emb/raw_ids"].tolist()[:-1]
    owners = owner_of(torch.tensor(ids), SHARDS, routing).tolist()
    assert set(owners) == {0, 1}
    for one, owner, vector in zip(ids, owners, found, strict=True):
        has_row = one in known and one != FREE_ROW
        assert torch.equal(vector[:4], weight[known.index(one)] if has_row else torch.full((4,), owner + 0.5)), one
    assert sum(one in known for one in ids) < 5


def test_scores_are_the_artifacts_answers(run: Path, small_run: SmallRun, tmp_path: Path) -> None:
    table = pq.read_table(small_run.data).append_column("place", pa.array(np.arange(len(small_run.rows))))
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=50)
    with open_scorer(run, ALONE) as scorer:
        assert write_outputs(scorer, tmp_path / "rows.parquet", tmp_path / "out", keep=("place",), batch_size=33) == len(small_run.rows)
    found = pq.read_table(tmp_path / "out")
    engine = Engine.open(export_model(run, tmp_path / "models", "two"))
    answers = engine.predict(engine.encode_rows(small_run.rows))
    assert found.column("place").to_pylist() == list(range(len(small_run.rows)))
    for name, values in answers.items():
        np.testing.assert_allclose(found.column(name).to_numpy(), values.numpy(), atol=1e-6)
