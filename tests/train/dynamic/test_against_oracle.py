"""Random lives of two tables of one kernel, step by step beside dictionaries of rows."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from emberline.errors import CapacityError
from emberline.train.dynamic.options import DynamicEmbOptions, DynamicRuntime, FrequencyAdmission, Initializer, InitializerMode, ScoreStrategy
from emberline.train.dynamic.slots import KERNEL
from emberline.train.dynamic.state import DynamicTable
from emberline.train.dynamic.tables import BatchedDynamicEmbeddingTables
from emberline.train.kernels import RowWiseAdagrad
from tests.train.dynamic.oracle import NAMES, FullError, Oracle, Row

KEYS = [0, 1, 2, 3, -1, -2, 2**63 - 1, -(2**63), 2**32, 2**32 + 1, *range(100, 160)]
READS = (0, 1, 0)
_KEY = st.sampled_from(KEYS[:10]) | st.sampled_from(KEYS)
_BAG = st.lists(_KEY, max_size=6)
_LR, _EPS, _BEGIN = 0.5, 1e-3, 0.25


@pytest.fixture(params=["compiled", "stand-in"])
def _index(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "stand-in":
        monkeypatch.setattr(KERNEL, "get", lambda: None)
    elif KERNEL.get() is None:
        pytest.skip(f"no compiled index: {KERNEL.reason()}")


@st.composite
def _tables(draw: st.DrawFn, name: str, dim: int) -> DynamicTable:
    rows = draw(st.sampled_from([1, 2, 3, 5, 8, 70]))
    admission, counted = None, 0
    if draw(st.booleans()):
        counted = draw(st.sampled_from([1, 2, 5, 40]))
        admission = FrequencyAdmission(
            threshold=draw(st.integers(1, 3)), initializer=Initializer(mode=InitializerMode.UNIFORM), counter_capacity=counted
        )
    options = DynamicEmbOptions(
        max_capacity=rows,
        init_capacity_per_rank=draw(st.none() | st.integers(1, rows)),
        initializer=Initializer(mode=InitializerMode.NORMAL, std_dev=2.0),
        eval_initializer=Initializer(mode=InitializerMode.UNIFORM, lower=3.0, upper=4.0),
        score_strategy=draw(st.sampled_from(list(ScoreStrategy))),
        admission=admission,
    )
    return DynamicTable(name, dim, options, rows, counted)


class Lives(RuleBasedStateMachine):
    @initialize(first=_tables("a", 2), second=_tables("b", 4))
    def begin(self, first: DynamicTable, second: DynamicTable) -> None:
        self.step = self.now = self.since = 0
        self.oracles = [Oracle(table, _LR, _EPS, _BEGIN) for table in (first, second)]
        self.tables = self._new()
        self.tables.track_removals(True)

    @rule(bags=st.lists(st.tuples(_BAG, _BAG, _BAG), max_size=3), learns=st.booleans(), gradient=st.integers(-3, 3))
    def train(self, bags: list[tuple[list[int], list[int], list[int]]], learns: bool, gradient: int) -> None:
        self.now += 10
        reads = [[row[read] for row in bags] for read in range(len(READS))]
        own = [[key for read, bags in zip(READS, reads, strict=True) if read == table for bag in bags for key in bag] for table in (0, 1)]
        ids, offsets = _flat(reads)
        try:
            for oracle, keys in zip(self.oracles, own, strict=True):
                oracle.check(keys)
        except FullError:
            before = [oracle.numbers["failed"] for oracle in self.oracles]
            with pytest.raises(CapacityError, match="raise max_capacity"):
                self.tables(ids, offsets)
            assert [self.tables.counters(name).failed for name in "ab"] == before
            return
        self.step += 1
        found = [iter(oracle.read(keys, self.step, self.now)) for oracle, keys in zip(self.oracles, own, strict=True)]
        vectors = self.tables(ids, offsets)
        wanted = self._pooled(reads, found)
        np.testing.assert_allclose(vectors.detach().numpy(), wanted, rtol=1e-6, atol=1e-6)
        if learns and len(bags):
            factors = torch.arange(1, vectors.shape[1] + 1) * gradient
            (vectors * factors).sum().backward()
            for place, oracle in enumerate(self.oracles):
                self._learn(place, oracle, reads, factors.numpy().astype(np.float32))

    @rule(bag=_BAG)
    def look_up(self, bag: list[int]) -> None:
        self.tables.eval()
        vectors = self.tables(*_flat([[bag[:1]], [bag], [bag[1:]]])).detach().numpy()
        self.tables.train()
        for read, own, start in ((0, bag[:1], 0), (1, bag, 2), (0, bag[1:], 6)):
            oracle = self.oracles[read]
            rows = [oracle.rows[key].weights if key in oracle.rows else oracle.fixed("default") for key in own]
            np.testing.assert_allclose(vectors[0, start : start + oracle.table.dim], _sum(rows, oracle.table.dim), rtol=1e-6, atol=1e-6)
        for oracle in self.oracles:
            found, known = self.tables.find(oracle.table.name, torch.tensor(bag, dtype=torch.int64))
            assert known.tolist() == [key in oracle.rows for key in bag]
            for vector, key in zip(found, bag, strict=True):
                assert vector.tolist() == (oracle.rows[key].weights if key in oracle.rows else oracle.fixed("default")).tolist()

    @rule(place=st.integers(0, 1), keys=st.lists(_KEY, max_size=8))
    def remove(self, place: int, keys: list[int]) -> None:
        assert self.tables.remove("ab"[place], torch.tensor(keys, dtype=torch.int64)) == self.oracles[place].remove(keys)

    @rule(place=st.integers(0, 1), age=st.integers(0, 5))
    def expire(self, place: int, age: int) -> None:
        assert self.tables.expire("ab"[place], self.step - age) == self.oracles[place].expire(self.step - age)

    @rule(place=st.integers(0, 1), scores=st.dictionaries(_KEY, st.integers(-(2**63), 2**63 - 1) | st.integers(0, 2), max_size=6))
    def set_scores(self, place: int, scores: dict[int, int]) -> None:
        oracle = self.oracles[place]
        if oracle.table.options.score_strategy == ScoreStrategy.CUSTOMIZED:
            self.tables.set_scores("ab"[place], *(torch.tensor(list(part), dtype=torch.int64) for part in (scores.keys(), scores.values())))
            for key in set(scores) & set(oracle.rows):
                oracle.rows[key].score = scores[key]

    @rule()
    def dump_and_load_into_others(self) -> None:
        other = self._new()
        for name in "ab":
            assert other.load(name, self.tables.dump(name)) == 0
        assert other.step == self.step
        self.tables = other
        self.tables.track_removals(True)
        for oracle in self.oracles:
            oracle.removed = set()
        self.since = self.step + 1

    @invariant()
    def same(self) -> None:
        for oracle in self.oracles if hasattr(self, "oracles") else ():
            self._same(oracle)

    def _same(self, oracle: Oracle) -> None:
        state, name = self.tables.dump(oracle.table.name), oracle.table.name
        rows = sorted(oracle.rows.items())
        assert state.keys.tolist() == [key for key, _ in rows]
        assert state.last_steps.tolist() == [row.last_step for _, row in rows]
        assert state.scores.tolist() == [row.score for _, row in rows]
        assert state.weights.tolist() == [row.weights.tolist() for _, row in rows]
        assert state.moments["sum"].tolist() == [row.total for _, row in rows]
        assert list(zip(state.counted_keys.tolist(), state.counts.tolist(), strict=True)) == sorted(oracle.counts.items())
        counters: Any = self.tables.counters(name)
        assert {number: getattr(counters, number) for number in NAMES} == oracle.numbers
        assert len(rows) <= counters.capacity <= oracle.table.max_rows
        changed, removed = self.tables.changes_since(name, self.since)
        assert removed.tolist() == sorted(oracle.removed - set(oracle.rows))
        assert changed.keys.tolist() == [key for key, row in rows if row.last_step >= self.since]

    def _new(self) -> BatchedDynamicEmbeddingTables:
        optimizer = RowWiseAdagrad(lr=_LR, eps=_EPS, initial_accumulator_value=_BEGIN)
        tables = [oracle.table for oracle in self.oracles]
        return BatchedDynamicEmbeddingTables(tables, READS, optimizer, runtime=DynamicRuntime(seed=7), clock=lambda: self.now)

    def _pooled(self, reads: list[list[list[int]]], found: list[Iterator[Row | None]]) -> np.ndarray[Any, Any]:
        parts = []
        for read, bags in zip(READS, reads, strict=True):
            oracle = self.oracles[read]
            rows = [[next(found[read]) for _ in bag] for bag in bags]
            vectors = [_sum([oracle.fixed("unadmitted") if row is None else row.weights for row in own], oracle.table.dim) for own in rows]
            parts.append(np.array(vectors, dtype=np.float32).reshape(len(bags), oracle.table.dim))
        return np.concatenate(parts, axis=1)

    def _learn(self, place: int, oracle: Oracle, reads: list[list[list[int]]], factors: np.ndarray[Any, Any]) -> None:
        dims, starts = [2, 4, 2], [0, 2, 6]
        gradients: dict[int, np.ndarray[Any, Any]] = {}
        reached = iter(oracle.last_read)
        for read, table in enumerate(READS):
            if table == place:
                for key in (key for bag in reads[read] for key in bag):
                    if next(reached):
                        part = factors[starts[read] : starts[read] + dims[read]]
                        gradients[key] = gradients.get(key, np.zeros(dims[read], dtype=np.float32)) + part
        oracle.learn(gradients)


def _flat(reads: list[list[list[int]]]) -> tuple[torch.Tensor, torch.Tensor]:
    ids = [key for bags in reads for bag in bags for key in bag]
    lengths = [len(bag) for bags in reads for bag in bags]
    return torch.tensor(ids, dtype=torch.int64), torch.tensor([0, *lengths]).cumsum(0)


def _sum(vectors: list[Any], dim: int) -> Any:
    return np.sum(np.array(vectors, dtype=np.float32).reshape(-1, dim), axis=0)


@pytest.mark.usefixtures("_index")
def test_lives() -> None:
    checks = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
    run_state_machine_as_test(Lives, settings=settings(max_examples=12, stateful_step_count=40, deadline=None, suppress_health_check=checks))


@pytest.mark.parametrize("strategy", list(ScoreStrategy))
def test_long_lives(strategy: ScoreStrategy) -> None:
    """500 operations one after the other, of tables that are full most of the time."""
    rng, life = np.random.default_rng(list(ScoreStrategy).index(strategy)), Lives()
    admission = FrequencyAdmission(threshold=2, initializer=Initializer(mode=InitializerMode.UNIFORM), counter_capacity=30)
    normal = Initializer(mode=InitializerMode.NORMAL, std_dev=2.0)
    options = DynamicEmbOptions(max_capacity=40, init_capacity_per_rank=4, initializer=normal, score_strategy=strategy)
    life.begin(DynamicTable("a", 2, options, 40), DynamicTable("b", 4, replace(options, admission=admission), 40, 30))

    def keys(most: int) -> list[int]:
        return [KEYS[place] for place in rng.integers(0, len(KEYS), rng.integers(0, most, endpoint=True))]

    for number in range(500):
        place, kind = int(rng.integers(2)), rng.random()
        if kind < 0.6:
            life.train([(keys(4), keys(4), keys(4)) for _ in range(rng.integers(4))], bool(rng.integers(2)), int(rng.integers(-3, 4)))
        elif kind < 0.75:
            life.look_up(keys(6))
        elif kind < 0.85:
            life.remove(place, keys(20))
        elif kind < 0.9:
            life.expire(place, int(rng.integers(5, 30)))
        elif kind < 0.98:
            life.set_scores(place, {key: int(rng.integers(-5, 5)) for key in keys(6)})
        else:
            life.dump_and_load_into_others()
        if number % 10 == 9:
            life.same()
    assert life.step > 100
