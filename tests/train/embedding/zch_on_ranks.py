"""Two processes that share the rows of ZCH tables.

    zch_on_ranks.py FOLDER

as a rank reads bags of ids that belong to either of them, and leaves its answers and its shards in FOLDER.
"""

import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, row_wise
from torchrec.distributed.types import ShardingPlan
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from emberline.schema import BucketEncoder, FeatureKind, FeatureSpec, Pooling
from emberline.train.config.group_configs import FeatureGroupConfig
from emberline.train.data import Batch
from emberline.train.embedding import EmbeddingGroup
from emberline.train.features import Feature, LfuPolicy, ZchConfig
from emberline.train.sharding import create_sharders, process_group, shard_model
from emberline.train.zch import zch_modules

FAR = 2**62
BAGS = ([[1, FAR + 1], [], [2, 1, FAR + 2]], [[FAR + 2, 7], [FAR + 3], []])
"""For each rank its rows' bags, of the mean and of the sum alike: ids below 2^62 belong to rank 0, the others to rank 1."""
ROWS, DIM = 10, 4


def feature(name: str, pooling: Pooling) -> Feature:
    """A ZCH feature."""
    spec = FeatureSpec(name=name, kind=FeatureKind.SPARSE, columns=(name,), encoder=BucketEncoder(rows=ROWS))
    zch = ZchConfig(zch_size=ROWS, eviction_interval=1, eviction_policy=LfuPolicy(), routing="range")
    return Feature(name=name, spec=spec, embedding_name=f"{name}_emb", embedding_dim=DIM, rows=ROWS, zch=zch, pooling=pooling)


def bags(rank: int) -> KeyedJaggedTensor:
    """A rank's bags, the same for both features."""
    ids = [one for bag in BAGS[rank] for one in bag]
    return KeyedJaggedTensor(keys=["mean", "sum"], values=torch.tensor(2 * ids), lengths=torch.tensor(2 * [len(bag) for bag in BAGS[rank]]))


def main(rank: int, folder: Path) -> None:
    """Learn from one batch, and answer for it."""
    features = [feature("mean", Pooling.MEAN), feature("sum", Pooling.SUM)]
    group = EmbeddingGroup(features, [FeatureGroupConfig(group_name="g", feature_names=("mean", "sum"))], device="meta")
    sharders: Any = {sharder.module_type: sharder for sharder in create_sharders()}
    plans = {}
    for name, module in group.pooled.named_children():
        tables = {table: row_wise(compute_kernel="fused") for table in zch_modules(module)}
        plans[f"pooled.{name}"] = construct_module_sharding_plan(
            module, tables, sharder=sharders[type(module)], local_size=2, world_size=2, device_type="cpu"
        )
    sharded: nn.Module = shard_model(group, ShardingPlan(plans), list(sharders.values()), world_size=2)
    found: dict[str, torch.Tensor] = {}
    for name, value in sharded.state_dict().items():
        if name.endswith("weight"):
            (shard,) = value.local_shards()
            first_row = shard.metadata.shard_offsets[0]
            shard.tensor.copy_((torch.arange(first_row, first_row + shard.tensor.shape[0]) + 1.0)[:, None].expand_as(shard.tensor))
    batch = Batch(sparse_features={"__BASE__": bags(rank)})
    sharded.train()(batch)
    found["answer"] = sharded.eval()(batch)["g"].detach()
    for name, dtype in (("narrow", torch.int32), ("wide", torch.int64)):
        small = KeyedJaggedTensor(keys=["mean", "sum"], values=torch.tensor([1, 2, 7, 1, 2, 7], dtype=dtype), lengths=torch.tensor([1, 2, 2, 1]))
        found[name] = sharded(Batch(sparse_features={"__BASE__": small}))["g"].detach()
    for table, zch in zch_modules(sharded).items():
        found[f"{table}/ids"], found[f"{table}/rows"] = zch.owners()
    for name, value in sharded.state_dict().items():
        if name.endswith("weight"):
            found[f"{name.split('.')[-2]}/weight"] = value.local_shards()[0].tensor.clone()
    save_file(found, folder / f"rank-{rank}.safetensors")


if __name__ == "__main__":
    torch.set_num_threads(1)
    with process_group() as ranks:
        main(ranks.rank, Path(sys.argv[1]))
