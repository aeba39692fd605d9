"""Training runs on several ranks beside the same run on one: models, plans, and the data that they share.

A case goes on from FOLDER/CASE/start, by FOLDER/CASE/plan-N.json for N ranks, and writes FOLDER/CASE/on-N.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from emberline.train.checkpoint import store
from emberline.train.config import load_config
from emberline.train.job_run import TrainingRun, TrainResult
from emberline.train.job_signals import SharedStop, StopRequest
from emberline.train.sharding import process_group
from emberline.train.sharding.shared_fate import shared_fate

BATCH, STEPS = 24, 21
ONE_LEFT, SOME_LEFT = 193, 189
"""Rows of an epoch, whose last step has one row, so that other ranks have none, or 21, which two and four ranks share unevenly."""
KINDS = ("table_wise", "row_wise", "column_wise", "table_row_wise", "table_column_wise", "grid_shard", "data_parallel")


def _ids(name: str, rows: int = 11, dim: int = 8, extra: str = "") -> str:
    start = 'init_fn: "nn.init.normal_,std=0.3"'
    what = f'feature_name: "{name}" expression: "{name}" embedding_dim: {dim} num_buckets: {rows}'
    return f"feature_configs {{ id_feature {{ {what} {start} {extra} }} }}\n"


def _steps(name: str, dim: int, extra: str = "") -> str:
    return f"""feature_configs {{ sequence_id_feature {{
      feature_name: "{name}" expression: "{name}" embedding_dim: {dim} num_buckets: 11 init_fn: "nn.init.normal_,std=0.3" sequence_length: 4 {extra}
    }} }}\n"""


def _zch(name: str, dim: int = 8, extra: str = "") -> str:
    policy = 'zch { zch_size: 201 eviction_interval: 2 lfu {} } init_fn: "nn.init.constant_,val=0.1"'
    return f'feature_configs {{ id_feature {{ feature_name: "{name}" expression: "far_{name}" embedding_dim: {dim} {policy} {extra} }} }}\n'


def _growing(name: str, kind: str = "id_feature", column: str = "", extra: str = "") -> str:
    rows = 'dynamicemb { max_capacity: 600 initializer_args { mode: "NORMAL" std_dev: 0.3 } }'
    what = f'feature_name: "{name}" expression: "{column or name}" embedding_dim: 8'
    return f"feature_configs {{ {kind} {{ {what} {rows} {extra} }} }}\n"


def _group(name: str, features: str, kind: str = "DEEP") -> str:
    return (
        f'feature_groups {{ group_name: "{name}" group_type: {kind} {" ".join(f"{chr(10)}feature_names: {one!r}" for one in features.split())} }}\n'
    )


NUMBER = 'feature_configs { raw_feature { feature_name: "x" expression: "x" } }\n'
NORMS = "{ hidden_units: [12, 6] use_bn: true }"
CASES: dict[str, dict[str, Any]] = {
    # one table for each way to cut it, pooled, with widths that columns can be cut from
    "deep": {
        "rows": SOME_LEFT,
        "features": NUMBER + "".join(_ids(f"f{place}", extra='pooling: "mean"' if place > 4 else "") for place in range(7)),
        "groups": _group("dense", "x") + _group("sparse", "f0 f1 f2 f3 f4 f5 f6"),
        "model": f"dlrm {{ dense_mlp {{ hidden_units: [8] }} final {NORMS} }}",
        "sparse": "adagrad_optimizer { lr: 0.1 }",
        "plan": {f"f{place}_emb": kind for place, kind in enumerate(KINDS)},
    },
    "wide": {
        "rows": ONE_LEFT,
        "features": NUMBER + "".join(_ids(f"f{place}") for place in range(3)),
        "groups": _group("deep", "x f0 f1 f2") + _group("wide", "f0 f1", "WIDE"),
        "model": "wide_and_deep { deep { hidden_units: [8] } final { hidden_units: [6] } }",
        "sparse": "sgd_optimizer { lr: 0.2 }",
        "plan": {"f0_emb": "row_wise", "f1_emb": "column_wise", "f2_emb": "data_parallel", "f0_emb_wide": "table_wise", "f1_emb_wide": "row_wise"},
    },
    "sequence": {
        "rows": ONE_LEFT,
        "features": NUMBER
        + _ids("f0", extra='embedding_name: "a"')
        + _steps("s0", 8, 'embedding_name: "a"')
        + _ids("f1", extra='embedding_name: "b"')
        + _steps("s1", 8, 'embedding_name: "b"')
        + _ids("f2", dim=16, extra='embedding_name: "c"')
        + _steps("s2", 16, 'embedding_name: "c"')
        + _ids("f3", extra='embedding_name: "d"')
        + _steps("s3", 8, 'embedding_name: "d"'),
        "groups": _group("deep", "x f0 f3") + _group("p", "f0 s0 f1 s1 f3 s3", "SEQUENCE") + _group("q", "f2 s2", "SEQUENCE"),
        "model": f"""multi_tower_din {{ towers {{ input: "deep" mlp {{ hidden_units: [8] }} }}
          din_towers {{ input: "p" attn_mlp {NORMS} }} din_towers {{ input: "q" attn_mlp {{ hidden_units: [8] activation: "Dice" }} }}
          final {{ hidden_units: [6] }} }}""",
        "sparse": "adagrad_optimizer { lr: 0.1 }",
        "dense": "sgd_optimizer { lr: 0.1 momentum: 0.5 }",  # a bias before a softmax has no gradient but noise, which Adam makes large
        "plan": {"a": "table_wise", "b": "row_wise", "c": "column_wise", "d": "data_parallel"},
    },
    "zch": {
        "rows": SOME_LEFT,
        "features": NUMBER + _zch("f0") + _zch("f1", extra='pooling: "mean"') + _ids("f2"),
        "groups": _group("dense", "x") + _group("sparse", "f0 f1 f2"),
        "model": "dlrm { dense_mlp { hidden_units: [8] } final { hidden_units: [8] } }",
        "sparse": "rowwise_adagrad_optimizer { lr: 0.1 }",
        "plan": {"f0_emb": "row_wise", "f1_emb": "row_wise", "f2_emb": "table_wise"},
    },
    "dynamic": {
        "rows": ONE_LEFT,
        "features": NUMBER
        + _growing("f0", column="far_f0")
        + _growing("f1", extra='pooling: "mean"')
        + _growing("s0", "sequence_id_feature", extra="sequence_length: 4")
        + _zch("f2")
        + _ids("f3"),
        "groups": _group("deep", "x f0 f1 f2 f3") + _group("p", "f3 s0", "SEQUENCE"),
        "model": """multi_tower_din { towers { input: "deep" mlp { hidden_units: [8] } } din_towers { input: "p" attn_mlp { hidden_units: [8] } }
          final { hidden_units: [6] } }""",
        "sparse": "adagrad_optimizer { lr: 0.1 initial_accumulator_value: 0.1 }",
        "dense": "sgd_optimizer { lr: 0.1 momentum: 0.5 }",
        "plan": {"f0_emb": "row_wise", "f1_emb": "row_wise", "s0_emb": "row_wise", "f2_emb": "row_wise", "f3_emb": "table_wise"},
    },
}


def make_data(folder: Path) -> None:
    """Files of as many rows as there are in `ONE_LEFT` and in `SOME_LEFT`."""
    for rows in (ONE_LEFT, SOME_LEFT):
        pq.write_table(make_table(rows), folder / f"{rows}.parquet", row_group_size=37)


def make_table(rows: int) -> pa.Table:
    """Rows with lists of ids, numbers, steps, and the same ids as numbers all over the 64 bits."""
    generator = np.random.default_rng(5)
    num_steps = generator.integers(0, 6, rows)  # the same for all sequences, as they lie side by side
    columns: dict[str, Any] = {"x": generator.normal(size=rows).astype(np.float32)}
    for place in range(7):
        lists = [generator.integers(0, 11, count).tolist() for count in generator.integers(0 if place else 1, 3 if place else 2, rows)]
        columns[f"f{place}"] = pa.array(lists, pa.list_(pa.int64()))
        columns[f"far_f{place}"] = pa.array([[one * (2**63 // 11) for one in row] for row in lists], pa.list_(pa.int64()))
        columns[f"s{place}"] = pa.array([generator.integers(0, 11, count).tolist() for count in num_steps], pa.list_(pa.int64()))
    columns["label"] = generator.integers(0, 2, rows)
    columns["weight"] = generator.random(rows).astype(np.float32)
    return pa.table(columns)


def config_text(case: str, data: Path, ranks: int, steps: int = STEPS) -> str:
    """The config of a case; `ranks` share its batches."""
    parts = CASES[case]
    return f"""
train_input_path: "{data}/{parts["rows"]}.parquet" eval_input_path: "{data}/{parts["rows"]}.parquet"
data_config {{
  batch_size: {BATCH // ranks} label_fields: "label" sample_weight_fields: "weight" fg_mode: FG_NONE dataset_type: ParquetDataset shuffle: true
}}
train_config {{
  sparse_optimizer {{ {parts["sparse"]} }}
  dense_optimizer {{ {parts.get("dense", "adam_optimizer { lr: 0.01 }")} }}
  grad_clipping {{ clipping_type: "norm" max_gradient: 0.5 }}
  num_steps: {steps} save_checkpoints_steps: 1000 log_step_count_steps: 5 seed: 3 use_tensorboard: false
}}
{parts["features"]}
model_config {{ {parts["groups"]} {parts["model"]} }}
"""


def plan_text(case: str, ranks: int) -> str:
    """A plan as a person would write it: tables that are not on all ranks are on the last ones."""
    last = ranks - 1
    places: dict[str, Any] = {"table_wise": [last], "column_wise": [last, 0], "table_column_wise": [0, last]}
    places["grid_shard"] = list(range(ranks))
    tables = {
        name: {"sharding_type": kind} | ({"ranks": places[kind]} if kind in places and ranks > 1 else {})
        for name, kind in CASES[case]["plan"].items()
    }
    return json.dumps({"format": "emberline.plan", "version": 1, "world_size": ranks, "local_world_size": ranks, "tables": tables})


def run_case(folder: Path, case: str) -> TrainResult:
    """Go on from the start, on this group's ranks."""
    with process_group() as ranks, shared_fate(ranks):
        home = folder / case
        output = home / f"on-{ranks.world_size}"
        if ranks.is_first:
            output.mkdir()
            (home / f"{ranks.world_size}.config").write_text(config_text(case, folder, ranks.world_size))
            (home / f"plan-{ranks.world_size}.json").write_text(plan_text(case, ranks.world_size))
        ranks.gather([0.0])  # until rank 0 has written
        config = load_config(home / f"{ranks.world_size}.config")
        run = TrainingRun(config, output, SharedStop(StopRequest(), ranks), home / f"plan-{ranks.world_size}.json", ranks)
        run.restore(store.find_checkpoint(home / "start"))
        return run.train()


def run_cases(folder: Path, cases: Sequence[str]) -> None:
    """Several cases, in one process group."""
    with process_group():
        for case in cases:
            run_case(folder, case)
