"""A model with a table for each way to cut one and each optimiser: pooled, of a WIDE group, read step by step, and ZCH. Also a script: one of
several ranks.

    every_type.py FOLDER

trains it by FOLDER/optimizers.json (name -> config) and FOLDER/plan-R.json, on R ranks, and leaves what came of them for `read_parts`. Tables learn
from half the squares of the distances between what is looked up and random targets. Each step has five rows; rank r of R has those from r on:

    rows of 2 ranks     0 2 4 | 1 3          of 4 ranks     0 4 | 1 | 2 | 3
"""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from emberline.train.checkpoint.chunks import Chunks
from emberline.train.checkpoint.id_maps import id_map_tensors
from emberline.train.checkpoint.shards import table_shards
from emberline.train.checkpoint.table_state import table_state
from emberline.train.checkpoint.tensors import Stored
from emberline.train.config import parse_config, parse_train_config
from emberline.train.data import Batch
from emberline.train.embedding import EmbeddingGroup
from emberline.train.features import create_features
from emberline.train.optim import apply_sparse_optimizer
from emberline.train.sharding import create_sharders, shard_model
from emberline.train.sharding.fit_plan import sharding_plan
from emberline.train.sharding.hardware import Hardware
from emberline.train.sharding.process_group import Ranks, process_group
from emberline.train.sharding.saved_plan import read_plan

POOLED_TYPES = ("table_wise", "row_wise", "column_wise", "table_row_wise", "table_column_wise", "grid_shard", "data_parallel")
STEP_TYPES = ("table_wise", "row_wise", "column_wise", "data_parallel")
STEPS, BATCH_ROWS, LONGEST = 20, 5, 3
NUM_IDS, DIM, WIDE_DIM, ZCH_ROWS = 11, 16, 8, 60
FAR = 2**63 // NUM_IDS
"""ZCH ids lie so far apart, and so on all ranks."""
ZCH_START = 0.25
RANKS = {1: 1, 2: 2, 4: 2}
"""Ranks in all -> ranks of a machine."""


@dataclass(frozen=True)
class Read:
    """One feature's read of a table.

    Args:
        optimizer: of the table.
        kind: how it is cut; `zch` for a ZCH table, which is cut by rows.
        result: the group's tensor that has the vectors: each feature of a group has columns there, in order.
    """

    optimizer: str
    kind: str
    result: str

    @property
    def feature(self) -> str:
        """Whose ids."""
        prefix = {"deep": "p", "wide": "p", "steps.query": "q", "steps.sequence": "s"}[self.result]
        return f"{prefix}_{self.optimizer}_{self.kind}"

    @property
    def table(self) -> str:
        """What they are ids of: a query and its sequence share one."""
        if self.by_step or self.result == "steps.query":
            return f"s_{self.optimizer}_{self.kind}"
        return f"{self.feature}_emb{'_wide' if self.result == 'wide' else ''}"

    @property
    def dim(self) -> int:
        """Of the table."""
        return WIDE_DIM if self.result == "wide" else DIM

    @property
    def is_zch(self) -> bool:
        """Whether ids are raw."""
        return self.kind == "zch"

    @property
    def by_step(self) -> bool:
        """Whether there is a vector for each id."""
        return self.result == "steps.sequence"

    @property
    def mean(self) -> bool:
        """Whether bags are averaged, not summed: with half of the optimisers tables of every other type are, with the others those between."""
        return self.result in ("deep", "wide") and (("zch", *POOLED_TYPES).index(self.kind) + len(self.optimizer)) % 2 == 1


def reads_of(optimizers: Iterable[str]) -> Iterator[Read]:
    """All reads, in the order of the columns of each result."""
    for optimizer in optimizers:
        for result, kinds in {"deep": (*POOLED_TYPES, "zch"), "wide": POOLED_TYPES, "steps": (*STEP_TYPES, "zch")}.items():
            for kind in kinds:
                yield from (Read(optimizer, kind, one) for one in ((result,) if result != "steps" else ("steps.query", "steps.sequence")))


def _config_text(reads: Sequence[Read]) -> str:
    """Features and groups."""
    lines = []
    for read in {read.feature: read for read in reversed(reads)}.values():
        zch = f'zch {{ zch_size: {ZCH_ROWS} eviction_interval: 1 lfu {{}} }} init_fn: "nn.init.constant_,val={ZCH_START}"'
        rows = zch if read.is_zch else f"num_buckets: {NUM_IDS}"
        kind = f"sequence_id_feature {{ sequence_length: {LONGEST}" if read.by_step else "id_feature {"
        way = f'embedding_name: "{read.table}"' if read.table.startswith("s_") else f'pooling: "{"mean" if read.mean else "sum"}"'
        lines.append(f'feature_configs {{ {kind} feature_name: "{read.feature}" expression: "{read.feature}" embedding_dim: {DIM} {rows} {way} }} }}')
    for group, kind in {"deep": "DEEP", "wide": "WIDE", "steps": "SEQUENCE"}.items():
        names = " ".join(f'feature_names: "{read.feature}"' for read in reads if read.result.split(".")[0] == group)
        lines.append(f'feature_groups {{ group_name: "{group}" group_type: {kind} {names} }}')
    return "\n".join(lines)


def num_parts(read: Read, world_size: int) -> int:
    """Parts side by side of a table, on so many ranks."""
    local = RANKS[world_size]
    whole = {"column_wise": min(world_size, read.dim // 4), "table_column_wise": local, "grid_shard": world_size // local}
    return whole.get(read.kind, 1)


def plan_text(reads: Iterable[Read], world_size: int) -> str:
    """A plan as a person would write it: tables that are not on all ranks are on the last ones."""
    last, local, tables = world_size - 1, RANKS[world_size], {}
    for read in reads:
        ranks = {
            "table_wise": [last],
            "column_wise": [last - part for part in range(num_parts(read, world_size))],
            "table_row_wise": list(range(world_size - local, world_size)),
            "table_column_wise": [last - part for part in range(local)],
            "grid_shard": list(range(world_size)),
        }
        kind = "row_wise" if read.is_zch else read.kind
        tables[read.table] = {"sharding_type": kind} | ({"ranks": ranks[kind]} if kind in ranks else {})
    return json.dumps({"format": "emberline.plan", "version": 1, "world_size": world_size, "local_world_size": local, "tables": tables})


def start_weights(table: str, rows: int, columns: int, first_row: int = 0, first_column: int = 0) -> Tensor:
    """What a part of a table begins with: a number of its own in each place, or the same everywhere in ZCH tables, whose rows go to whoever comes."""
    if "_zch" in table:
        return torch.full((rows, columns), ZCH_START)
    row, column = torch.arange(first_row, first_row + rows)[:, None], torch.arange(first_column, first_column + columns)
    return torch.sin(row * 64.0 + column + len(table) * 0.1)


def make_rows(reads: Iterable[Read], step: int) -> dict[str, list[list[int]]]:
    """The ids of each feature in each row: one for queries, 0 to 3 for others; sequences are equally long, as they lie side by side."""
    generator = torch.Generator().manual_seed(step)
    num_steps = torch.randint(0, LONGEST + 1, (BATCH_ROWS,), generator=generator).tolist()
    found: dict[str, list[list[int]]] = {}
    for read in reads:
        lengths = torch.randint(0, LONGEST + 1, (BATCH_ROWS,), generator=generator).tolist()
        lengths = num_steps if read.by_step else [1] * BATCH_ROWS if read.result == "steps.query" else lengths
        ids = torch.randint(0, NUM_IDS, (sum(lengths),), generator=generator) * (FAR if read.is_zch else 1)
        found[read.feature] = [part.tolist() for part in torch.split(ids, lengths)]
    return found


def make_target(step: int, result: str, width: int) -> Tensor:
    """What a result's vectors are drawn to: [rows, width], or [rows, steps, width]."""
    generator = torch.Generator().manual_seed(1000 * len(result) + step)
    return torch.randn(BATCH_ROWS, *((LONGEST,) if result == "steps.sequence" else ()), width, generator=generator)


class Model(nn.Module):
    """A group."""

    def __init__(self, group: EmbeddingGroup) -> None:
        super().__init__()
        self.group = group

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        result: dict[str, Tensor] = self.group(batch)
        return result


def _loss(found: Mapping[str, Tensor], step: int, rows: Sequence[int]) -> Tensor:
    """Half the squares of the distances, over this rank's rows."""
    total = torch.zeros(())
    for result in ("deep", "wide", "steps.query", "steps.sequence"):
        vectors = found[result]
        target = make_target(step, result, vectors.shape[-1])[list(rows)]
        if result == "steps.sequence":
            mask = torch.arange(vectors.shape[1]) < found["steps.sequence_length"][:, None]
            vectors, target = vectors[mask], target[:, : vectors.shape[1]][mask]
        total = total + (vectors - target).square().sum() / 2
    return total


def _batch(reads: Iterable[Read], step: int, rows: Sequence[int]) -> Batch:
    ids = {feature: [bags[row] for row in rows] for feature, bags in make_rows(reads, step).items()}
    values = [one for bags in ids.values() for bag in bags for one in bag]
    lengths = torch.tensor([len(bag) for bags in ids.values() for bag in bags], dtype=torch.int32)
    return Batch(sparse_features={"__BASE__": KeyedJaggedTensor(keys=list(ids), values=torch.tensor(values, dtype=torch.int64), lengths=lengths)})


def train(folder: Path, ranks: Ranks) -> None:
    """The steps, and what came of the tables."""
    optimizers = json.loads((folder / "optimizers.json").read_text())
    reads = list(reads_of(optimizers))
    config = parse_config(_config_text(reads))
    group = EmbeddingGroup(create_features(config.feature_configs), config.feature_groups, wide_embedding_dim=WIDE_DIM, device="meta")
    weights = group.table_weights()
    for name, text in optimizers.items():
        own = {read.table: weights[read.table] for read in reads if read.optimizer == name}
        sparse = parse_train_config(f"sparse_optimizer {{ {text} }} dense_optimizer {{ sgd_optimizer {{}} }}").sparse_optimizer
        apply_sparse_optimizer(own, sparse.optimizer)
    model, sharders = Model(group), create_sharders()
    hardware = Hardware(device="cpu", world_size=ranks.world_size, local_world_size=ranks.local_world_size, ddr=1 << 32)
    plan = sharding_plan(read_plan(folder / f"plan-{ranks.world_size}.json"), model, sharders, hardware)
    sharded = shard_model(model, plan, sharders, ranks.world_size).train()
    for shard in table_shards(sharded):
        (rows, columns), (first_row, first_column) = shard.weight.shape, shard.offsets
        shard.weight.copy_(start_weights(shard.table, rows, columns, first_row, first_column))
    own_rows = range(ranks.rank, BATCH_ROWS, ranks.world_size)
    for step in range(STEPS):
        loss = _loss(sharded(_batch(reads, step, own_rows)), step, own_rows)
        (loss * ranks.world_size).backward()  # type: ignore[no-untyped-call]  # gradients are averaged, and losses are to be added up
    _write_parts(folder, ranks, {**table_state(table_shards(sharded)), **id_map_tensors(model, ranks.group)})


def _write_parts(folder: Path, ranks: Ranks, tensors: Mapping[str, Stored]) -> None:
    """What this rank would give to a checkpoint. A checkpoint's format would take most of the test's time for so many small tensors."""
    parts: dict[str, Tensor] = {}
    shapes: dict[str, str] = {}
    for name, held in tensors.items():
        chunks = [(chunk.offsets, chunk.tensor) for chunk in held.chunks] if isinstance(held, Chunks) else [((0,) * held.dim(), held)]
        shapes[name] = json.dumps(list(held.size()))
        parts |= {f"{name} {json.dumps(offsets)}": tensor.contiguous() for offsets, tensor in chunks}
    save_file(parts, folder / f"on-{ranks.world_size}-{ranks.rank}.safetensors", shapes)


def read_parts(folder: Path, world_size: int) -> dict[str, Tensor]:
    """The whole tensors, of all ranks' parts; a number that no rank has given is NaN, or 0 among whole numbers."""
    found: dict[str, Tensor] = {}
    for rank in range(world_size):
        path = folder / f"on-{world_size}-{rank}.safetensors"
        with safe_open(path, "pt") as file:
            shapes = {name: json.loads(shape) for name, shape in file.metadata().items()}
        for key, part in load_file(path).items():
            name, _, offsets = key.partition(" ")
            empty = torch.nan if part.is_floating_point() else 0
            whole = found.setdefault(name, torch.full(shapes[name], empty, dtype=part.dtype))
            whole[tuple(slice(first, first + size) for first, size in zip(json.loads(offsets), part.shape, strict=True))] = part
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    with process_group() as group:
        train(Path(sys.argv[1]), group)
