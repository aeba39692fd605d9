"""What `training.py` trains: DLRM on data in the shape of Criteo's, by Emberline's job and by a plain TorchRec script.

The plain script is TorchRec's own DLRM with the same layers. It has its ids and numbers in memory, and reads and checks nothing; Emberline reads
parquet files of raw values, hashes the categories, and checks, logs and counts as any run does.
"""

import itertools
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim.apply_optimizer_in_backward import _apply_optimizer_in_backward
from torch.nn import functional
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, table_wise
from torchrec.distributed.types import ShardingPlan
from torchrec.models.dlrm import DLRM
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.optim import RowWiseAdagrad
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from emberline.train.checkpoint.run_state import Progress, RunTensors, content_of
from emberline.train.checkpoint.saver import CheckpointSaver
from emberline.train.config import load_config, parse_config
from emberline.train.job import run_training
from emberline.train.job_build import build_parts
from emberline.train.job_folder import METRICS_NAME

NUM_TABLES, NUM_RAW, DIM, BATCH_ROWS = 26, 13, 16, 4096
DENSE, OVER = [128, 64, DIM], [256, 128]
LR, DENSE_LR = 0.02, 0.001
NUM_BATCHES = 8
Batch = tuple[torch.Tensor, KeyedJaggedTensor, torch.Tensor]


def draw(source: np.random.Generator, rows: int) -> tuple[Any, Any, Any]:
    """Categories, few of them frequent: int64 [26, rows]; counts: int64 [13, rows]; labels: int64 [rows], one in four is 1."""
    categories = (1e9 * source.random((NUM_TABLES, rows)) ** 4).astype(np.int64)
    counts = (np.exp(source.normal(2, 2, (NUM_RAW, rows)))).astype(np.int64)
    return categories, counts, (source.random(rows) < 0.25).astype(np.int64)


def write_data(path: Path, rows: int) -> None:
    """A parquet file of raw values."""
    categories, counts, labels = draw(np.random.default_rng(0), rows)
    columns = {"label": labels, **{f"int_{n}": counts[n] for n in range(NUM_RAW)}, **{f"cat_{n}": categories[n] for n in range(NUM_TABLES)}}
    pq.write_table(pa.table(columns), path, row_group_size=1 << 16)


def write_config(folder: Path, table_rows: int, steps: int, window: int) -> Path:
    """A whole pipeline for the data of the folder."""
    ids = "".join(
        f'feature_configs {{ id_feature {{ feature_name: "cat_{n}" hash_bucket_size: {table_rows} embedding_dim: {DIM} }} }}\n'
        for n in range(NUM_TABLES)
    )
    normalizer = "method=log10,threshold=1,default=0"
    raw = "".join(f'feature_configs {{ raw_feature {{ feature_name: "int_{n}" normalizer: "{normalizer}" }} }}\n' for n in range(NUM_RAW))
    groups = "".join(
        f'feature_groups {{ group_name: "{name}" group_type: DEEP feature_names: {json.dumps(names)} }}\n'
        for name, names in (("dense", [f"int_{n}" for n in range(NUM_RAW)]), ("sparse", [f"cat_{n}" for n in range(NUM_TABLES)]))
    )
    path = folder / "pipeline.pbtxt"
    path.write_text(f"""
train_input_path: "{folder / "train.parquet"}"
data_config {{ dataset_type: ParquetDataset fg_mode: FG_NORMAL label_fields: "label" batch_size: {BATCH_ROWS} shuffle: true
  shuffle_buffer_rows: 65536 drop_remainder: true }}
train_config {{
  sparse_optimizer {{ rowwise_adagrad_optimizer {{ lr: {LR} }} }}
  dense_optimizer {{ adam_optimizer {{ lr: {DENSE_LR} }} }}
  num_steps: {steps} save_checkpoints_steps: 0 log_step_count_steps: {window} use_tensorboard: false
}}
{ids}{raw}
model_config {{
{groups}
  dlrm {{ dense_mlp {{ hidden_units: {DENSE} }} arch_with_sparse: false final {{ hidden_units: {OVER} }} }}
  losses {{ binary_cross_entropy {{}} }} metrics {{ auc {{}} }}
}}
""")
    return path


def emberline(config: Path, output: Path) -> list[float]:
    """Rows a second of each window of a whole training job, data loading included; the first windows are left out."""
    run_training(load_config(config), output)
    if dist.get_rank():
        return []
    lines = [json.loads(line) for line in (output / METRICS_NAME).read_text().splitlines()]
    return [line["rows_per_s"] for line in lines if "rows_per_s" in line][1:]


def plain(table_rows: int, sharded: bool, windows: int, window: int) -> list[float]:
    """Rows a second of each window of a plain loop over batches in memory; the first is left out."""
    ranks = dist.get_world_size()
    model, optimizer = _plain_sharded(table_rows) if sharded else _plain_whole(table_rows)
    batches = itertools.cycle([_plain_batch(seed * ranks + dist.get_rank(), table_rows) for seed in range(NUM_BATCHES)])
    found = []
    for _ in range(windows + 1):
        begin = time.perf_counter()
        for numbers, ids, labels in itertools.islice(batches, window):
            optimizer.zero_grad()
            functional.binary_cross_entropy_with_logits(model(numbers, ids).squeeze(1), labels).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        found.append(window * BATCH_ROWS * ranks / (time.perf_counter() - begin))
    return found[1:]


def _plain_batch(seed: int, table_rows: int) -> Batch:
    categories, counts, labels = draw(np.random.default_rng(seed), BATCH_ROWS)
    ids = torch.from_numpy(categories % table_rows).flatten()
    lengths = torch.ones(NUM_TABLES * BATCH_ROWS, dtype=torch.int32)
    numbers = np.log10(np.maximum(counts.T, 1)).astype(np.float32)
    keys = [f"cat_{n}" for n in range(NUM_TABLES)]
    return torch.from_numpy(numbers), KeyedJaggedTensor(keys=keys, values=ids, lengths=lengths), torch.from_numpy(labels).float()


def _plain_model(table_rows: int, device: str) -> DLRM:
    configs = [EmbeddingBagConfig(name=f"t_{n}", num_embeddings=table_rows, embedding_dim=DIM, feature_names=[f"cat_{n}"]) for n in range(NUM_TABLES)]
    tables = EmbeddingBagCollection(tables=configs, device=torch.device(device))
    return DLRM(tables, NUM_RAW, DENSE, [*OVER, 1])


def _plain_whole(table_rows: int) -> tuple[nn.Module, Any]:
    model = _plain_model(table_rows, "cpu")
    tables = list(model.sparse_arch.parameters())
    rest = [*model.dense_arch.parameters(), *model.over_arch.parameters()]
    return model, _Both([RowWiseAdagrad(tables, lr=LR, eps=1e-8), torch.optim.Adam(rest, lr=DENSE_LR)])


def _plain_sharded(table_rows: int) -> tuple[nn.Module, Any]:
    model, ranks, sharder = _plain_model(table_rows, "meta"), dist.get_world_size(), EmbeddingBagCollectionSharder()
    tables = model.sparse_arch.embedding_bag_collection
    _apply_optimizer_in_backward(RowWiseAdagrad, tables.parameters(), {"lr": LR})
    kernel = EmbeddingComputeKernel.FUSED.value
    placed = {name: table_wise(rank=place % ranks, compute_kernel=kernel) for place, name in enumerate(tables.embedding_bags)}
    plan = construct_module_sharding_plan(tables, placed, sharder=sharder, local_size=ranks, world_size=ranks, device_type="cpu")
    sharded = DistributedModelParallel(
        model, device=torch.device("cpu"), plan=ShardingPlan({"sparse_arch.embedding_bag_collection": plan}), sharders=[sharder]
    )
    fused = set(sharded.fused_optimizer.params)
    return sharded, torch.optim.Adam([value for name, value in sharded.named_parameters() if name not in fused], lr=DENSE_LR)


class _Both:
    """Two optimisers as one."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._optimizers = optimizers

    def zero_grad(self) -> None:
        for optimizer in self._optimizers:
            optimizer.zero_grad()

    def step(self) -> None:
        for optimizer in self._optimizers:
            optimizer.step()


def stalls(config: Path, folder: Path, saves: int) -> dict[str, Any]:
    """Seconds that each save keeps the loop waiting, asynchronous and not, the first left out; and the bytes of a checkpoint."""
    read = parse_config(config.read_text())
    parts = build_parts(read)
    tensors = RunTensors(parts.sharded, parts.model, parts.step.optimizer, parts.step.tensors())
    found: dict[str, Any] = {}
    step = 0
    for name, asynchronous in (("async", True), ("sync", False)):
        seconds = []
        with CheckpointSaver(folder, asynchronous=asynchronous) as saver:
            for _ in range(saves + 1):
                step += 1
                before = saver.stalled_s
                saver.save(content_of(tensors, read, Progress(step=step, updates=step, config_folder=str(folder))))
                seconds.append(saver.stalled_s - before)
                saver.wait()
        found[name] = seconds[1:]
    newest = max((path for path in folder.iterdir() if path.is_dir()), key=lambda path: path.stat().st_mtime)
    found["bytes"] = sum(path.stat().st_size for path in newest.rglob("*") if path.is_file())
    return found
