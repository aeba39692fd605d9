"""One rank of a sharded model, by a plan: `run_rank.py FOLDER`. Not a test.

FOLDER has `model.pbtxt`; it gets `rank-N.pt`: the group's tensors for this rank's batch, and the plan's types by table.
"""

import json
import sys
from pathlib import Path

import torch
from torch import nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

sys.path.insert(0, str(Path(__file__).parent))

from cases import cpus, group_of, planner_of  # type: ignore[import-not-found]

from emberline.train.data import Batch
from emberline.train.embedding import EmbeddingGroup
from emberline.train.sharding import create_sharders, shard_model
from emberline.train.sharding.bandwidth import measure_bandwidths
from emberline.train.sharding.process_group import Ranks, process_group

ROWS = 5


class Model(nn.Module):
    """A group, and a parameter of its own."""

    def __init__(self, group: EmbeddingGroup) -> None:
        super().__init__()
        self.group, self.scale = group, nn.Parameter(torch.ones(1))

    def forward(self, batch: Batch) -> dict[str, torch.Tensor]:
        """The group's tensors."""
        result: dict[str, torch.Tensor] = self.group(batch)
        return result


def values(table: str, rows: int, dim: int, first_row: int = 0, first_column: int = 0) -> torch.Tensor:
    """What a part of a table holds: a number of its own in each place; the same everywhere in ZCH tables, whose rows go to whoever comes first."""
    if table.startswith("z"):
        return torch.full((rows, dim), 0.5)
    row = torch.arange(first_row, first_row + rows).unsqueeze(1)
    column = torch.arange(first_column, first_column + dim)
    return torch.sin(row * 64.0 + column + len(table) * 0.1)


def batch_of(group: EmbeddingGroup, rank: int) -> Batch:
    """Ids of a rank: 0 to 3 a row, drawn by the rank's seed."""
    generator = torch.Generator().manual_seed(rank)
    names = [feature.name for feature in group.features]
    lengths = torch.randint(0, 4, (len(names) * ROWS,), generator=generator)
    most = [2**40 if feature.zch is not None else feature.rows for feature in group.features]
    ids = [torch.randint(0, bound, (int(lengths[place * ROWS : (place + 1) * ROWS].sum()),), generator=generator) for place, bound in enumerate(most)]
    return Batch(sparse_features={"__BASE__": KeyedJaggedTensor(keys=names, values=torch.cat(ids), lengths=lengths.to(torch.int32))})


def run(ranks: Ranks, folder: Path) -> None:
    """Shard by the planner's plan, fill the tables, look up."""
    rank, world_size, local_world_size = ranks.rank, ranks.world_size, ranks.local_world_size
    group = group_of((folder / "model.pbtxt").read_text())
    model, sharders = Model(group), create_sharders()
    plan = planner_of(model, cpus(world_size, local_world_size)).collective_plan(model, sharders)
    sharded = shard_model(model, plan, sharders, world_size)
    for name, tensor in sharded.state_dict().items():
        if not name.endswith("_emb.weight"):
            continue
        table = name.split(".")[-2]
        if not hasattr(tensor, "local_shards"):
            tensor.copy_(values(table, *tensor.shape))
            continue
        for shard in tensor.local_shards():
            (rows, dim), (row, column) = shard.metadata.shard_sizes, shard.metadata.shard_offsets
            shard.tensor.copy_(values(table, rows, dim, row, column))
    with torch.no_grad():
        found = sharded(batch_of(group, rank))
    types = {name: [own.sharding_type, own.ranks] for tables in plan.plan.values() for name, own in tables.items()}
    speeds = measure_bandwidths("cpu", local_world_size, copy_bytes=1 << 16, exchange_bytes=1 << 12)
    torch.save({"found": found, "types": json.dumps(types), "speeds": speeds}, folder / f"rank-{rank}.pt")


if __name__ == "__main__":
    torch.set_num_threads(1)
    with process_group() as group:
        run(group, Path(sys.argv[1]))
