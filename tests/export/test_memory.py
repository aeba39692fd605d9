"""Tables stream from checkpoints of several ranks: to the bit, however they were cut, and in no more memory than was allowed."""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from emberline.export.export import export_model
from emberline.serving.engine import Engine
from emberline.serving.files import map_tensors
from emberline.train.checkpoint import load_trained, names, store
from emberline.train.checkpoint.chunks import Chunk, Chunks
from emberline.train.checkpoint.id_maps import id_map_tensors
from emberline.train.checkpoint.run_state import Progress, package_versions
from emberline.train.checkpoint.tensors import save_tensors
from emberline.train.config import parse_config
from emberline.train.models import build_model
from emberline.train.models.build import features_of
from tests.train.jobs import Job
from tests.train.rank_runs import run_forked

CONFIG = """
train_input_path: "DATA"
data_config { fg_mode: FG_NORMAL label_fields: "label" batch_size: 16 }
train_config {
  num_steps: 3
  sparse_optimizer { adagrad_optimizer { lr: 0.1 } constant_learning_rate {} }
  dense_optimizer { adam_optimizer { lr: 0.01 } constant_learning_rate {} }
}
ITEMS
feature_configs { id_feature { feature_name: "user" expression: "user:user" embedding_dim: 8 zch { zch_size: 20 eviction_interval: 1 lfu {} } } }
model_config {
  feature_groups { group_name: "wide" group_type: WIDE feature_names: "user" }
  feature_groups { group_name: "deep" group_type: DEEP NAMES feature_names: "user" }
  feature_groups { group_name: "fm" group_type: DEEP feature_names: "user" }
  deepfm { deep { hidden_units: [4] } }
}
"""
CUTS = ("row_wise", "column_wise", "table_wise", "data_parallel")
BIG_ROWS, DIM, MEMORY = 1 << 20, 64, 32 << 20
"""A table of 256 MiB, eight times the memory that it may take."""


def config_of(data: Path, rows: int, dim: int, cuts: Sequence[str] = ()) -> str:
    """A model with a table `item_emb`, or with a table for each cut."""
    names = {f"item_{cut}": f'embedding_constraints {{ sharding_types: "{cut}" }}' for cut in cuts} or {"item": ""}
    shape = f"embedding_dim: {dim} num_buckets: {rows}"
    items = [f'feature_configs {{ id_feature {{ feature_name: "{name}" expression: "item:item" {shape} {cut} }} }}' for name, cut in names.items()]
    named = " ".join(f'feature_names: "{name}"' for name in names)
    return CONFIG.replace("DATA", str(data)).replace("ITEMS", "\n".join(items)).replace("NAMES", named)


def write_rows(path: Path, num_rows: int, items: int) -> Path:
    rng = np.random.default_rng(2)
    item = [rng.integers(0, items, rng.integers(0, 6)).tolist() for _ in range(num_rows)]
    columns = {
        "item": pa.array(item, pa.list_(pa.int64())),
        "user": rng.integers(0, 30, num_rows),
        "label": rng.integers(0, 2, num_rows).astype("f4"),
    }
    pq.write_table(pa.table(columns), path)
    return path


def test_tables_of_two_ranks_are_the_same_to_the_bit_however_they_were_cut(tmp_path: Path) -> None:
    data, run = write_rows(tmp_path / "rows.parquet", 96, 50), tmp_path / "run"
    (tmp_path / "model.pbtxt").write_text(config_of(data, 50, 64, CUTS))
    run_forked(tmp_path, [Job(2, ("train", "--config", str(tmp_path / "model.pbtxt"), "--output", str(run)))])
    plan = json.loads((store.find_checkpoint(run) / store.PLAN_NAME).read_text())
    types = {name.rsplit(".", 1)[-1]: table["sharding_type"] for name, table in plan["tables"].items()}
    assert {cut: types[f"item_{cut}_emb"] for cut in CUTS} == {cut: cut for cut in CUTS}
    path = export_model(run, tmp_path / "models", "m", memory=1 << 20)
    trained = load_trained(run)
    for table, weight in trained.model.embedding_group.table_weights().items():
        assert torch.equal(map_tensors(path / "tables" / f"{table}.safetensors")["rows"], weight), table
    Engine.open(path)


def save_big(run: Path, data: Path, rows: int) -> Tensor:
    """A checkpoint as two ranks would have written it, each the half of a table; returns the whole table."""
    text = config_of(data, rows, DIM)
    config = parse_config(text)
    model = build_model(config, features_of(config))
    table = torch.rand(rows, DIM, generator=torch.Generator().manual_seed(1))
    halves = Chunks(table.shape, table.dtype, [Chunk((0, 0), table[: rows // 2]), Chunk((rows // 2, 0), table[rows // 2 :])])
    own = {name: tensor for name, tensor in names.table_tensors(model).items() if "item_emb" not in name}
    with store.write_checkpoint(run, 7, package_versions()) as draft:
        save_tensors(draft / store.TENSORS_NAME, {**own, "tables/item_emb/weight": halves, **names.dense_tensors(model), **id_map_tensors(model)})
        (draft / store.CONFIG_NAME).write_text(text)
        (draft / store.SCHEMA_NAME).write_text(json.dumps(model.schema().to_dict()))
        (draft / store.STATE_NAME).write_text(json.dumps(asdict(Progress(step=7))))
    return table


_PEAKS = """
import sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from emberline.export.export import export_model

def peak():  # not the resource module's, which begins with what the process had that started this one
    return next(int(line.split()[1]) * 1024 for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))

for run in ("small", "big"):
    export_model(Path(sys.argv[1]) / run, Path(sys.argv[1]) / "models", run, memory=int(sys.argv[2]))
    print(peak())
"""


def test_a_large_table_takes_no_more_memory_than_it_may(tmp_path: Path) -> None:
    data = write_rows(tmp_path / "rows.parquet", 96, 500)
    save_big(tmp_path / "small", data, 500)
    table = save_big(tmp_path / "big", data, BIG_ROWS)
    done = subprocess.run([sys.executable, "-c", _PEAKS, str(tmp_path), str(MEMORY)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    before, after = map(int, done.stdout.split())
    assert table.nbytes == 8 * MEMORY
    assert after - before < MEMORY + (24 << 20)  # beside rows, the comparison of the checkpoint reads it in blocks of its own
    assert torch.equal(map_tensors(tmp_path / "models" / "big" / "1" / "tables" / "item_emb.safetensors")["rows"], table)
