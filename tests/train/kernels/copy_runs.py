"""Tables of which every rank has a copy, trained by several ranks. Also a script: one of these ranks.

    copy_runs.py FOLDER

trains under each of `CASES`, and leaves what came of it as FOLDER/CASE-on-R, in the format of checkpoints, and what each rank holds as
FOLDER/CASE-on-R-RANK.safetensors; then `alone_and_apart` has its own checks. Rows of a batch go to the ranks in unequal parts, some of them empty:

    rows of 2 ranks     0 1 2 3 4 5 |         of 4 ranks     0 | 1 2 3 | | 4 5
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor, nn
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, data_parallel, table_wise
from torchrec.distributed.types import ShardingPlan
from torchrec.modules.embedding_configs import DataType, EmbeddingBagConfig, EmbeddingConfig, PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from emberline.errors import TrainingError
from emberline.train.checkpoint.shards import table_shards
from emberline.train.checkpoint.table_state import table_state
from emberline.train.checkpoint.tensors import save_tensors
from emberline.train.config import parse_train_config
from emberline.train.kernels import Copies, FusedTables, Sgd, Table, TableBank, UpdateGate
from emberline.train.optim import TrainingStep, apply_sparse_optimizer, set_initial_moments
from emberline.train.sharding import create_sharders, shard_model
from emberline.train.sharding.process_group import Ranks, process_group

BAGS = {"a": 9, "b": 3, "mean": 7, "frozen": 5, "other": 8}
"""Tables that are read pooled -> rows; `other` is on the last rank alone."""
STEPS_ROWS = 6
WIDTHS = {"b": 8, "steps": 4}
BATCH, NUM_STEPS, DIM = 6, 6, 4
ENDS: Mapping[int, Sequence[int]] = {1: (0, 6), 2: (0, 6, 6), 4: (0, 1, 4, 4, 6)}
"""Where each rank's rows of a batch end."""
_DENSE = "dense_optimizer { sgd_optimizer { lr: 0.05 momentum: 0 } }"


@dataclass(frozen=True)
class Case:
    """How to train.

    Args:
        config: of the training.
        dtype: of the tables.
        spoiled: the step at which the loss is infinite on the first rank.
    """

    config: str
    dtype: DataType = DataType.FP32
    spoiled: int | None = None


CASES: dict[str, Case] = {
    "adam": Case(f"sparse_optimizer {{ adam_optimizer {{ lr: 0.1 weight_decay: 0.1 }} }} {_DENSE}"),
    "bounded": Case(
        f"""sparse_optimizer {{ adagrad_optimizer {{ lr: 0.2 initial_accumulator_value: 0.5 gradient_clipping: true max_gradient: 0.05 }} }} {_DENSE}
            grad_clipping {{ clipping_type: "norm" max_gradient: 0.1 }}"""
    ),
    "scaled": Case(f"sparse_optimizer {{ sgd_optimizer {{ lr: 0.3 }} }} {_DENSE} grad_scaler {{ init_scale: 8 }}", spoiled=2),
    "added_up": Case(
        f"""sparse_optimizer {{ rowwise_adagrad_optimizer {{ lr: 0.2 }} }} {_DENSE} gradient_accumulation_steps: 2
            grad_scaler {{ init_scale: 8 }}""",
    ),
    "by_chance": Case(f"sparse_optimizer {{ adam_optimizer {{ lr: 0.02 }} }} {_DENSE}", DataType.BF16),
}


class Model(nn.Module):
    """Pooled reads with weights, one table read twice, one frozen; reads by position; and a dense part."""

    def __init__(self, dtype: DataType) -> None:
        super().__init__()
        meta = torch.device("meta")
        self.bags = EmbeddingBagCollection(
            tables=[
                EmbeddingBagConfig(
                    name=name,
                    num_embeddings=rows,
                    embedding_dim=WIDTHS.get(name, DIM),
                    feature_names=[name, "again"] if name == "a" else [name],
                    pooling=PoolingType.MEAN if name == "mean" else PoolingType.SUM,
                    data_type=dtype,
                )
                for name, rows in BAGS.items()
            ],
            is_weighted=True,
            device=meta,
        )
        self.bags.embedding_bags["frozen"].weight.requires_grad_(False)
        steps = [EmbeddingConfig(name="steps", num_embeddings=STEPS_ROWS, embedding_dim=DIM, feature_names=["steps"], data_type=dtype)]
        self.steps = EmbeddingCollection(tables=steps, device=meta)
        torch.manual_seed(0)
        self.head = nn.Linear(sum(WIDTHS.get(name, DIM) for name in BAGS) + DIM, 1)

    def forward(self, bags: KeyedJaggedTensor, steps: KeyedJaggedTensor) -> Tensor:
        found = self.steps(steps)["steps"]
        summed = torch.zeros(len(found.lengths()), DIM).index_add(
            0, torch.arange(len(found.lengths())).repeat_interleave(found.lengths()), found.values().sin()
        )
        vectors = self.bags(bags)
        out: Tensor = self.head(torch.cat([*(vectors[name] for name in BAGS), summed + vectors["again"]], dim=1)).squeeze(1)
        return out


def batch_part(seed: int, first: int, end: int) -> tuple[KeyedJaggedTensor, KeyedJaggedTensor, Tensor]:
    """Some rows of a batch of six: weighted bags of 0 to 3 ids, 0 to 3 steps, and targets."""
    generator = torch.Generator().manual_seed(seed)
    rows = {"a": BAGS["a"], "again": BAGS["a"], **{name: count for name, count in BAGS.items() if name != "a"}, "steps": STEPS_ROWS}
    ids = {
        name: [torch.randint(count, (int(n),), generator=generator) for n in torch.randint(4, (BATCH,), generator=generator)]
        for name, count in rows.items()
    }
    weights = {name: [torch.rand(len(bag), generator=generator) + 0.5 for bag in own] for name, own in ids.items()}
    target = torch.randn(BATCH, generator=generator)
    nothing = torch.empty(0, dtype=torch.int64)

    def jagged(names: Sequence[str], weighted: bool) -> KeyedJaggedTensor:
        own = [bag for name in names for bag in ids[name][first:end]]
        factors = [bag for name in names for bag in weights[name][first:end]]
        lengths = torch.tensor([len(bag) for bag in own] or [0] * len(names), dtype=torch.int32)  # one empty row in place of none
        return KeyedJaggedTensor(
            keys=list(names), values=torch.cat([nothing, *own]), lengths=lengths, weights=torch.cat([nothing.float(), *factors]) if weighted else None
        )

    return jagged([name for name in rows if name != "steps"], True), jagged(["steps"], False), target[first:end]


def train(case: Case, ranks: Ranks, folder: Path, *, copies: bool) -> dict[str, Tensor]:
    """Train on this rank's parts of the batches, with a checkpoint of the tables -> what this rank holds: `TABLE/weight`, `TABLE/MOMENT`, the weights
    that were drawn at first as `drawn/TABLE`, and what is not in tables.
    """
    config, model, sharders = parse_train_config(case.config), Model(case.dtype), create_sharders()
    weights = dict(model.bags.embedding_bags.items()) | dict(model.steps.embeddings.items())
    apply_sparse_optimizer({name: part.weight for name, part in weights.items()}, config.sparse_optimizer.optimizer)
    plan = {}
    for name, sharder in (("bags", sharders[0]), ("steps", sharders[1])):
        module = getattr(model, name)
        places = {table: _place(table, ranks.world_size, copies) for table in sharder.shardable_parameters(module)}
        plan[name] = construct_module_sharding_plan(
            module, places, sharder, local_size=ranks.world_size, world_size=ranks.world_size, device_type="cpu"
        )
    torch.manual_seed(ranks.rank)  # so that ranks draw other numbers where each draws its own
    sharded = shard_model(model, ShardingPlan(plan), sharders, ranks.world_size)
    set_initial_moments(sharded, config.sparse_optimizer.optimizer)
    shards = table_shards(sharded)
    drawn = {shard.table: shard.weight.clone() for shard in shards}
    for shard in shards:
        shard.weight.copy_(torch.randn(shard.shape, generator=torch.Generator().manual_seed(len(shard.table)))[: len(shard.weight)])
    step, ends = TrainingStep(sharded, config, {"frozen"}), ENDS[ranks.world_size]
    for seed in range(NUM_STEPS):
        bags, steps, target = batch_part(seed, ends[ranks.rank], ends[ranks.rank + 1])
        factor = torch.inf if seed == case.spoiled and ranks.is_first else ranks.world_size / BATCH
        step.run(lambda bags=bags, steps=steps, target=target, factor=factor: (sharded(bags, steps)[: len(target)] - target).square().sum() * factor)  # type: ignore[misc]
    held = {f"{shard.table}/{name}": value for shard in shards for name, value in {"weight": shard.weight, **shard.moments}.items()}
    held |= {f"drawn/{table}": weight for table, weight in drawn.items()}
    dense = {f"dense/{name}": parameter.detach() for name, parameter in step.optimizer.parameters.items()} | step.tensors()
    save_tensors(folder, table_state(shards))
    return {name: tensor.clone().contiguous() for name, tensor in (held | dense).items()}


def _place(table: str, ranks: int, copies: bool) -> Any:
    if table == "other" or not copies:
        return table_wise(rank=ranks - 1, compute_kernel="fused")
    return data_parallel()


def alone_and_apart(ranks: Ranks) -> None:
    """Only the last rank has a backward, then no rank; then ranks are at different tables."""
    group = dist.group.WORLD
    assert group is not None
    tables = FusedTables(TableBank([Table("t", 3, 2)], [0]), Sgd(lr=1.0), gate=UpdateGate(hold=True), copies=Copies(group, 7))
    if ranks.rank == ranks.world_size - 1:
        tables.pooled(torch.tensor([1, 1]), torch.tensor([0, 2]), 1).sum().backward()  # type: ignore[no-untyped-call]
    for _ in range(2):
        tables.apply_held()
    assert tables.step == 1
    assert tables.bank.weights()[0].tolist() == [[0, 0], [-2, -2], [0, 0]]
    tables.copies = Copies(group, ranks.rank)
    with pytest.raises(TrainingError, match="ranks update different data_parallel tables at the same time; every rank must run the same parts"):
        tables.apply_held()


def main(folder: Path) -> None:
    """What the docstring of the file says."""
    torch.set_num_threads(1)
    with process_group() as ranks:
        for name, case in CASES.items():
            found = train(case, ranks, folder / f"{name}-on-{ranks.world_size}", copies=True)
            save_file(found, folder / f"{name}-on-{ranks.world_size}-{ranks.rank}.safetensors")
        alone_and_apart(ranks)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
