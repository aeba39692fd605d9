"""Lives of two tables that grow on two ranks, beside a dictionary of rows for each rank: `lives_on_ranks.py SOCKET`, with torchrun's variables.

Not a test: `test_dynamic_lives` starts it, and sends each rank the same lives by the socket, a line each; it answers with what differs, and how the
life went. Ids that rank 0 and rank 1 ask for go to their owners; a rank's dictionary reads what its owner part gets, in the order in which it comes:
feature by feature, and of each first the bags of rank 0.
"""

import json
import socket
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from random import Random
from typing import Any

import numpy as np
import torch
from dynamic.oracle import NAMES, FullError, Oracle  # type: ignore[import-not-found]
from torch import Tensor, nn
from torch.distributed.optim.apply_optimizer_in_backward import _apply_optimizer_in_backward
from torchrec import optim
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, row_wise
from torchrec.distributed.types import ShardingPlan
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from emberline.routing import MIXED, owner_of
from emberline.train.dynamic.options import DynamicEmbOptions, DynamicRuntime, FrequencyAdmission, Initializer, InitializerMode, ScoreStrategy
from emberline.train.dynamic.sharding import with_growth
from emberline.train.dynamic.state import DynamicTable
from emberline.train.dynamic.tables import BatchedDynamicEmbeddingTables
from emberline.train.sharding import create_sharders, process_group, shard_model
from emberline.train.sharding.dynamic_kernels import dynamic_tables
from emberline.train.sharding.process_group import Ranks

KEYS = [0, 1, 2, 3, -1, -2, 2**63 - 1, -(2**63), 2**32, *range(100, 130)]
READS = {"f": "a", "g": "b", "h": "a"}
DIMS = {"a": 2, "b": 4}
RATE, EPSILON = 0.5, 1e-3
KINDS = 8
"""How many pairs of tables there are to live with."""
Batch = Sequence[Sequence[Sequence[list[int]]]]
"""Of each rank, rows with a bag for each read."""
Models = tuple[nn.Module, dict[str, BatchedDynamicEmbeddingTables]]
"""A sharded model, and what holds its tables here."""


def options(chance: Random) -> DynamicEmbOptions:
    """Of a table that is soon full, or is not."""
    admission = None
    if chance.random() < 0.5:
        admission = FrequencyAdmission(threshold=2, initializer=Initializer(mode=InitializerMode.UNIFORM), counter_capacity=chance.choice([4, 40]))
    return DynamicEmbOptions(
        max_capacity=chance.choice([16, 24, 32, 64]),
        init_capacity_per_rank=chance.choice([None, 1, 3]),
        initializer=Initializer(mode=InitializerMode.NORMAL, std_dev=2.0),
        eval_initializer=Initializer(mode=InitializerMode.UNIFORM, lower=3.0, upper=4.0),
        score_strategy=chance.choice([*[ScoreStrategy.STEP, ScoreStrategy.LFU, ScoreStrategy.TIMESTAMP] * 2, ScoreStrategy.NO_EVICTION]),
        admission=admission,
    )


class Bags(nn.Module):
    """Two tables, one of them read twice."""

    def __init__(self) -> None:
        super().__init__()
        features = {table: [read for read, own in READS.items() if own == table] for table in DIMS}
        self.bags = EmbeddingBagCollection(
            tables=[EmbeddingBagConfig(name=name, num_embeddings=60, embedding_dim=dim, feature_names=features[name]) for name, dim in DIMS.items()],
            device=torch.device("meta"),
        )

    def forward(self, asked: KeyedJaggedTensor) -> Tensor:
        """[rows, widths of all reads]."""
        found = self.bags(asked).to_dict()
        return torch.cat([found[read] for read in READS], dim=1)


class Life:
    """A model, and what this rank's tables should be.

    Args:
        asked: how tables grow.
        ranks: this one, among two.
        models: two that may be used: to build one takes longer than many lives.
    """

    def __init__(self, asked: dict[str, DynamicEmbOptions], ranks: Ranks, models: Sequence[Models]) -> None:
        self.asked, self.ranks, self.step, self.now = asked, ranks, 0, 0
        own = {name: DynamicTable(name, DIMS[name], one, -(-one.max_capacity // 2), _counted(one)) for name, one in asked.items()}
        self.oracles = [{name: Oracle(table, RATE, EPSILON, 0.0) for name, table in own.items()} for _ in range(2)]
        self.differs: list[str] = []
        """What was not as it should be; a rank that stopped at once would leave the other waiting."""
        self._models = list(models)
        self._begin()

    @property
    def model(self) -> nn.Module:
        """What lives now."""
        return self._models[0][0]

    @property
    def held(self) -> dict[str, BatchedDynamicEmbeddingTables]:
        """Its tables on this rank."""
        return self._models[0][1]

    def compare(self, what: str, found: object, wanted: object) -> None:
        """Take note of what is not exactly so."""
        if not np.array_equal(np.asarray(found), np.asarray(wanted)):
            self.differs.append(f"rank {self.ranks.rank}, step {self.step}, {what}: {found} is not {wanted}")

    def train(self, batch: Batch) -> None:
        """A step, of each rank's rows; none where some rank has no room for all of its ids, which would end it."""
        if not all(_has_room(oracle, [key for *_, key in _places(batch, name) if _owner(key) == owner]) for owner, name, oracle in self._all()):
            return
        self.step, self.now = self.step + 1, self.now + 10
        self.model.train()
        vectors = self.model(_asked(batch[self.ranks.rank]))
        wanted = self._answers(batch, self._read(batch))
        self.compare("vectors", vectors.detach().numpy(), wanted)
        factors = torch.arange(1.0, vectors.shape[1] + 1) * (1 + self.step % 3)
        (vectors * factors * 2).sum().backward()  # gradients are means over the ranks
        self._learn(batch, factors.numpy())

    def look(self, batch: Batch) -> None:
        """An evaluation of each rank's rows."""
        self.model.eval()
        with torch.no_grad():
            vectors = self.model(_asked(batch[self.ranks.rank]))
        rows = {(owner, name): {key: row.weights for key, row in oracle.rows.items()} for owner, name, oracle in self._all()}
        found = [
            [
                [
                    [rows[_owner(key), name].get(key, self.oracles[0][name].fixed("default")) for key in bag]
                    for bag, name in zip(row, READS.values(), strict=True)
                ]
                for row in own
            ]
            for own in batch
        ]
        self.compare("vectors of an evaluation", vectors.numpy(), self._answers(batch, found))

    def remove(self, keys: list[int]) -> None:
        """Take ids out, each where it is."""
        for name in DIMS:
            gone = self.held[name].remove(name, torch.tensor(keys, dtype=torch.int64))
            found = [oracles[name].remove([key for key in keys if _owner(key) == owner]) for owner, oracles in enumerate(self.oracles)]
            self.compare("removed", gone, found[self.ranks.rank])

    def expire(self, age: int) -> None:
        """Take out what was not read for so many steps."""
        for name in DIMS:
            gone = self.held[name].expire(name, self.step - age)
            self.compare("expired", gone, [oracles[name].expire(self.step - age) for oracles in self.oracles][self.ranks.rank])

    def move(self) -> None:
        """Dump, and load into another model."""
        before = {name: held.dump(name) for name, held in self.held.items()}
        self._models.reverse()
        self._begin()
        self.compare("dropped", [self.held[name].load(name, state) for name, state in before.items()], [0, 0])

    def same(self) -> None:
        """The tables on this rank are as its dictionaries."""
        for name, oracle in self.oracles[self.ranks.rank].items():
            state, rows = self.held[name].dump(name), sorted(oracle.rows.items())
            self.compare("ids", state.keys.numpy(), np.array([key for key, _ in rows], dtype=np.int64))
            self.compare("last steps", state.last_steps.tolist(), [row.last_step for _, row in rows])
            self.compare("scores", state.scores.tolist(), [row.score for _, row in rows])
            self.compare("weights", state.weights.numpy(), np.array([row.weights for _, row in rows]).reshape(-1, oracle.table.dim))
            self.compare("sums", state.moments["sum"].numpy(), np.array([row.total for _, row in rows], dtype=np.float32))
            self.compare("counts", list(zip(state.counted_keys.tolist(), state.counts.tolist(), strict=True)), sorted(oracle.counts.items()))
            self.compare("numbers", [state.counters[number] for number in NAMES], [oracle.numbers[number] for number in NAMES])

    def _begin(self) -> None:
        """Tables without ids, and counters at nothing."""
        for name, held in self.held.items():
            empty = held.dump(name)
            nothing = {field: getattr(empty, field)[:0] for field in ("keys", "weights", "last_steps", "scores", "counted_keys", "counts")}
            moments = {field: values[:0] for field, values in empty.moments.items()}
            held.step = 0
            held.load(name, replace(empty, **nothing, moments=moments, counters=dict.fromkeys(empty.counters, 0), step=0))
            held._clock = lambda: self.now

    def _all(self) -> list[tuple[int, str, Oracle]]:
        return [(owner, name, oracle) for owner, oracles in enumerate(self.oracles) for name, oracle in oracles.items()]

    def _read(self, batch: Batch) -> list[list[list[list[np.ndarray[Any, Any]]]]]:
        """Of each rank, row and read the vectors of a bag's ids; each owner's tables read theirs in the order in which they come."""
        found: Any = [[[[None] * len(bag) for bag in row] for row in own] for own in batch]
        for owner, name, oracle in self._all():
            places = [place for place in _places(batch, name) if _owner(place[-1]) == owner]
            rows = oracle.read([key for *_, key in places], self.step, self.now)
            for (rank, row, read, at, _), one in zip(places, rows, strict=True):
                found[rank][row][read][at] = oracle.fixed("unadmitted") if one is None else one.weights
        return found  # type: ignore[no-any-return]

    def _learn(self, batch: Batch, factors: np.ndarray[Any, Any]) -> None:
        starts = np.cumsum([0, *(DIMS[name] for name in READS.values())])
        for owner, name, oracle in self._all():
            reached = iter(oracle.last_read)
            gradients: dict[int, np.ndarray[Any, Any]] = {}
            for _, _, read, _, key in [place for place in _places(batch, name) if _owner(place[-1]) == owner]:
                if next(reached):
                    part = factors[starts[read] : starts[read + 1]]
                    gradients[key] = gradients.get(key, np.zeros(len(part), dtype=np.float32)) + part
            oracle.learn(gradients)

    def _answers(self, batch: Batch, found: Sequence[Any]) -> np.ndarray[Any, Any]:
        """What this rank's rows read: of each bag the sum of each owner's part, one id after the other, and the sum of both owners'."""
        rows = []
        for row, bags in zip(found[self.ranks.rank], batch[self.ranks.rank], strict=True):
            sums = [[np.zeros(DIMS[name], dtype=np.float32) for _ in range(2)] for name in READS.values()]
            for read, (vectors, keys) in enumerate(zip(row, bags, strict=True)):
                for vector, key in zip(vectors, keys, strict=True):
                    sums[read][_owner(key)] += vector
            rows.append(np.concatenate([first + second for first, second in sums]))
        return np.array(rows)


def _places(batch: Batch, table: str) -> list[tuple[int, int, int, int, int]]:
    """Rank, row, read, place in the bag, and id, of all that a table is asked for, in the order in which it comes."""
    own = [place for place, name in enumerate(READS.values()) if name == table]
    return [
        (rank, row, read, at, key)
        for read in own
        for rank, rows in enumerate(batch)
        for row, bags in enumerate(rows)
        for at, key in enumerate(bags[read])
    ]


def _asked(rows: Sequence[Sequence[list[int]]]) -> KeyedJaggedTensor:
    bags = [row[read] for read in range(len(READS)) for row in rows]
    ids, lengths = torch.tensor([key for bag in bags for key in bag], dtype=torch.int64), torch.tensor([len(bag) for bag in bags])
    return KeyedJaggedTensor(keys=list(READS), values=ids, lengths=lengths, stride=len(rows))


def _has_room(oracle: Oracle, keys: list[int]) -> bool:
    try:
        oracle.copy().check(keys)
    except FullError:
        return False
    return True


@cache
def _owner(key: int) -> int:
    return int(owner_of(np.array([key]), 2, MIXED)[0])


def _counted(asked: DynamicEmbOptions) -> int:
    return -(-asked.admission.counter_capacity // 2) if asked.admission is not None else 0


def _built(asked: dict[str, DynamicEmbOptions]) -> Models:
    model, sharders = Bags(), create_sharders(DynamicRuntime(seed=7))
    _apply_optimizer_in_backward(optim.RowWiseAdagrad, model.parameters(), {"lr": RATE, "eps": EPSILON})
    placed = dict.fromkeys(DIMS, row_wise(compute_kernel="fused"))
    plan: Any = construct_module_sharding_plan(model.bags, placed, sharder=sharders[0], local_size=2, world_size=2, device_type="cpu")
    for name, own in asked.items():
        plan[name] = with_growth(plan[name], own)
    sharded = shard_model(model, ShardingPlan({"bags": plan}), sharders, 2)
    return sharded, dynamic_tables(sharded)


@cache
def _kind(kind: int) -> tuple[dict[str, DynamicEmbOptions], list[Models]]:
    """One of the pairs of tables, and models with them."""
    chance = Random(kind)
    asked = {name: options(chance) for name in DIMS}
    return asked, [_built(asked), _built(asked)]


def live(kind: int, operations: Sequence[tuple[str, Any]], ranks: Ranks) -> dict[str, Any]:
    """One life; what differs, and how it went."""
    asked, models = _kind(kind)
    life = Life(asked, ranks, models)
    life.same()
    for what, given in operations:
        getattr(life, what)(*given)
        life.same()
    evicted = sum(oracle.numbers["evicted"] for _, _, oracle in life._all())
    return {"differs": life.differs[:3], "trained": life.step, "evicted": evicted}


if __name__ == "__main__":
    torch.set_num_threads(1)
    with process_group() as group, socket.socket(socket.AF_UNIX) as asking:
        asking.connect(sys.argv[1])
        with asking.makefile("rw") as lines:
            for line in lines:
                kind, operations = json.loads(line)
                lines.write(json.dumps(live(kind, operations, group)) + "\n")
                lines.flush()
