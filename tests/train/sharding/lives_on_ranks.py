"""Random lives of two tables that grow on two ranks, beside a dictionary of rows for each rank: `lives_on_ranks.py`, with torchrun's variables.

Not a test: `test_dynamic_lives` starts it. Ids that rank 0 and rank 1 ask for go to their owners; a rank's dictionary reads what its owner part gets,
in the order in which it comes: feature by feature, and of each first the bags of rank 0. All ranks draw the same lives.
"""

from collections.abc import Sequence
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
LIVES, OPERATIONS = 14, 36
Batch = tuple[list[tuple[list[int], ...]], ...]
"""Of each rank, rows with a bag for each read."""


def options(chance: Random) -> DynamicEmbOptions:
    """Of a table that is soon full, or is not."""
    admission = None
    if chance.random() < 0.5:
        admission = FrequencyAdmission(threshold=2, initializer=Initializer(mode=InitializerMode.UNIFORM), counter_capacity=chance.choice([4, 40]))
    return DynamicEmbOptions(
        max_capacity=chance.choice([12, 16, 24, 64]),
        init_capacity_per_rank=chance.choice([None, 1, 3]),
        initializer=Initializer(mode=InitializerMode.NORMAL, std_dev=2.0),
        eval_initializer=Initializer(mode=InitializerMode.UNIFORM, lower=3.0, upper=4.0),
        score_strategy=chance.choice([ScoreStrategy.STEP, ScoreStrategy.LFU, ScoreStrategy.TIMESTAMP, ScoreStrategy.NO_EVICTION]),
        admission=admission,
    )


def batch_of(chance: Random) -> Batch:
    """A row or two for each rank."""
    return tuple([tuple(_bag(chance) for _ in READS) for _ in range(chance.randint(1, 2))] for _ in range(2))


def _bag(chance: Random) -> list[int]:
    return chance.choices(KEYS, k=chance.randint(1, 2)) if chance.random() < 0.5 else chance.choices(KEYS[:9], k=chance.randint(0, 3))


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
    """The model, and what this rank's tables should be."""

    def __init__(self, asked: dict[str, DynamicEmbOptions], ranks: Ranks) -> None:
        self.asked, self.ranks, self.step, self.now = asked, ranks, 0, 0
        own = {name: DynamicTable(name, DIMS[name], one, -(-one.max_capacity // 2), _counted(one)) for name, one in asked.items()}
        self.oracles = [{name: Oracle(table, RATE, EPSILON, 0.0) for name, table in own.items()} for _ in range(2)]
        self.model, self.held = self._built()

    def train(self, batch: Batch) -> None:
        """A step, of each rank's rows; none where some rank has no room for all of its ids, which would end it."""
        if not all(_has_room(oracle, [key for *_, key in _places(batch, name) if _owner(key) == owner]) for owner, name, oracle in self._all()):
            return
        self.step, self.now = self.step + 1, self.now + 10
        self.model.train()
        vectors = self.model(_asked(batch[self.ranks.rank]))
        wanted = self._answers(batch, self._read(batch))
        np.testing.assert_allclose(vectors.detach().numpy(), wanted, rtol=1e-5, atol=1e-5)
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
        np.testing.assert_allclose(vectors.numpy(), self._answers(batch, found), rtol=1e-5, atol=1e-5)

    def remove(self, keys: list[int]) -> None:
        """Take ids out, each where it is."""
        for name in DIMS:
            gone = self.held[name].remove(name, torch.tensor(keys, dtype=torch.int64))
            found = [oracles[name].remove([key for key in keys if _owner(key) == owner]) for owner, oracles in enumerate(self.oracles)]
            assert gone == found[self.ranks.rank]

    def expire(self, age: int) -> None:
        """Take out what was not read for so many steps."""
        for name in DIMS:
            gone = self.held[name].expire(name, self.step - age)
            assert gone == [oracles[name].expire(self.step - age) for oracles in self.oracles][self.ranks.rank]

    def move(self) -> None:
        """Dump, and load into a model that is new."""
        before = {name: held.dump(name) for name, held in self.held.items()}
        self.model, self.held = self._built()
        assert [self.held[name].load(name, state) for name, state in before.items()] == [0, 0]

    def same(self) -> None:
        """The tables on this rank are as its dictionaries."""
        for name, oracle in self.oracles[self.ranks.rank].items():
            state, rows = self.held[name].dump(name), sorted(oracle.rows.items())
            assert state.keys.tolist() == [key for key, _ in rows]
            assert state.last_steps.tolist() == [row.last_step for _, row in rows]
            assert state.scores.tolist() == [row.score for _, row in rows]
            weights = np.array([row.weights for _, row in rows]).reshape(-1, oracle.table.dim)
            np.testing.assert_allclose(state.weights.numpy(), weights, rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(state.moments["sum"].numpy(), [row.total for _, row in rows], rtol=1e-5, atol=1e-5)
            assert list(zip(state.counted_keys.tolist(), state.counts.tolist(), strict=True)) == sorted(oracle.counts.items())
            assert {number: state.counters[number] for number in NAMES} == oracle.numbers

    def _built(self) -> tuple[nn.Module, dict[str, BatchedDynamicEmbeddingTables]]:
        model, sharders = Bags(), create_sharders(DynamicRuntime(seed=7))
        _apply_optimizer_in_backward(optim.RowWiseAdagrad, model.parameters(), {"lr": RATE, "eps": EPSILON})
        placed = dict.fromkeys(DIMS, row_wise(compute_kernel="fused"))
        plan: Any = construct_module_sharding_plan(model.bags, placed, sharder=sharders[0], local_size=2, world_size=2, device_type="cpu")
        for name, own in self.asked.items():
            plan[name] = with_growth(plan[name], own)
        sharded = shard_model(model, ShardingPlan({"bags": plan}), sharders, 2)
        held = dynamic_tables(sharded)
        for kernel in held.values():
            kernel._clock = lambda: self.now
        return sharded, held

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
        """What this rank's rows read: sums over bags."""
        rows = []
        for row in found[self.ranks.rank]:
            parts = [np.sum(np.array(bag, dtype=np.float32).reshape(-1, DIMS[name]), axis=0) for bag, name in zip(row, READS.values(), strict=True)]
            rows.append(np.concatenate(parts))
        assert len(rows) == len(batch[self.ranks.rank])
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


def _asked(rows: list[tuple[list[int], ...]]) -> KeyedJaggedTensor:
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


def lives(ranks: Ranks) -> None:
    """Many of them; all ranks draw the same."""
    chance, lived = Random(1), {"steps": 0, "trained": 0, "evicted": 0}
    for _ in range(LIVES):
        life = Life({name: options(chance) for name in DIMS}, ranks)
        for what in chance.choices(["train", "look", "remove", "expire", "move"], [60, 15, 10, 10, 5], k=OPERATIONS):
            if what in ("train", "look"):
                getattr(life, what)(batch_of(chance))
            elif what == "remove":
                life.remove(chance.choices(KEYS, k=3))
            elif what == "expire":
                life.expire(chance.randint(3, 8))
            else:
                life.move()
            life.same()
        lived["steps"] += OPERATIONS
        lived["trained"] += life.step
        lived["evicted"] += sum(oracle.numbers["evicted"] for _, _, oracle in life._all())
    print(f"lived {lived['steps']} steps, trained {lived['trained']}, evicted {lived['evicted']}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    with process_group() as group:
        lives(group)
