"""NVIDIA's kernel as jobs and checkpoints know it: what it is spared, and states by way of its files, against arrays written and read here."""

import json
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torchrec import optim

from emberline.errors import CheckpointError, ConfigError
from emberline.train.dynamic.nvidia import tables as nvidia_tables
from emberline.train.dynamic.nvidia.files import nvidia_owner_of
from emberline.train.dynamic.nvidia.options import LearnedTable
from emberline.train.dynamic.nvidia.package import find_package
from emberline.train.dynamic.nvidia.tables import GuardedTables, guard
from emberline.train.dynamic.options import DynamicEmbOptions, DynamicRuntime, FrequencyAdmission, Initializer, InitializerMode, ScoreStrategy
from emberline.train.dynamic.state import DynamicState
from tests.train.dynamic.fake_nvidia import CALLS, NewTables, OldTables, Pooling, fake_package

KEYS = np.array([9, -(2**63), 2**63 - 1, 4], dtype=np.int64)
ORDER = [1, 3, 0, 2]
END = ".rank_0.world_size_1"
RUNTIME = DynamicRuntime()
Arrays = np.ndarray[Any, np.dtype[Any]]


def learned(
    strategy: ScoreStrategy = ScoreStrategy.STEP, optimizer: type[torch.optim.Optimizer] | None = optim.Adam, dtype: torch.dtype = torch.float32
) -> LearnedTable:
    constant = Initializer(mode=InitializerMode.CONSTANT, value=0.25)
    admission = FrequencyAdmission(threshold=2, counter_capacity=8, initializer=Initializer(mode=InitializerMode.CONSTANT, value=-1.0))
    options = DynamicEmbOptions(max_capacity=64, initializer=constant, eval_initializer=constant, score_strategy=strategy, admission=admission)
    return LearnedTable("t", 2, dtype, optimizer, options, 1)


def guarded(
    table: LearnedTable | None = None, pooling: Pooling = Pooling.SUM, dims: tuple[int, ...] = (2,), *, new: bool = True
) -> tuple[GuardedTables, Any]:
    """The kernel of a release, guarded, and the kernel itself."""
    kernel = (NewTables if new else OldTables)(pooling, list(dims))
    with fake_package(new=new):
        return GuardedTables(kernel, find_package(), {"t": table or learned()}, RUNTIME), kernel


@pytest.mark.parametrize("new", [True, False])
@pytest.mark.parametrize(("pooling", "shape"), [(Pooling.SUM, (3, 12)), (Pooling.MEAN, (3, 12)), (Pooling.NONE, (0, 8))])
@pytest.mark.parametrize("training", [True, False])
def test_a_rank_without_ids_does_not_launch(new: bool, pooling: Pooling, shape: tuple[int, int], training: bool) -> None:
    tables, _ = guarded(pooling=pooling, dims=(8, 4), new=new)
    tables.train(training)
    nothing, six_bags = torch.empty(0, dtype=torch.int64), torch.zeros(7, dtype=torch.int64)
    tables.prefetch(nothing, six_bags)
    found: Tensor = tables(nothing, six_bags)
    assert CALLS == []
    assert (found.shape, found.dtype, found.requires_grad) == (shape, torch.float32, training)
    assert not found.any()
    if training:
        found.sum().backward()  # type: ignore[no-untyped-call]
    assert tables.step == tables.tables.step == int(training)
    assert tables(nothing, torch.zeros(1, dtype=torch.int64)).shape == (0, shape[1])  # no rows either


def test_ids_go_to_the_kernel() -> None:
    tables, kernel = guarded(dims=(8, 4))
    indices, offsets, weights = torch.tensor([-1, 5]), torch.tensor([0, 1, 2]), torch.tensor([0.5, 2.0])
    tables.prefetch(indices, offsets)
    assert tables(indices, offsets, pooling_weights=weights).tolist() == [[1.0] * 12]
    assert [name for name, _ in CALLS] == ["prefetch", "forward"]
    assert CALLS[1][1]["indices"] is indices
    assert CALLS[1][1]["weights"] is weights
    CALLS.clear()
    assert (tables.step, tables.flush()) == (1, "flushed")
    tables.set_initial_moment(0.5)
    assert kernel.optimizer.first == 0.5
    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = tables.no_such_thing


def test_kernels_are_guarded_once() -> None:
    class Kernel(nn.Module):
        def __init__(self, tables: nn.Module) -> None:
            super().__init__()
            self._emb_module = tables

    inner = NewTables(Pooling.SUM, [2])
    lookup = nn.ModuleList([Kernel(inner), Kernel(nn.Linear(1, 1))])
    with fake_package():
        package = find_package()
        assert [guard(lookup, package, {"t": learned()}, RUNTIME) for _ in range(2)] == [1, 0]
    kernel: Any = lookup[0]
    assert kernel._emb_module._emb_module is inner
    kernel.set_initial_moment(0.125)
    assert inner.optimizer.first == 0.125


def test_ids_ranks_are_remainders_of_unsigned_numbers() -> None:
    keys = [0, 1, 5, -1, -4, 2**63 - 1, -(2**63), -(2**63) + 7]
    for ranks in (1, 2, 3, 5, 6, 7, 8, 4097):
        assert nvidia_owner_of(torch.tensor(keys), ranks).tolist() == [key % 2**64 % ranks for key in keys]


def fill(kernel: Any, kept: Arrays | None, values: Arrays | None = None) -> Arrays:
    weights = np.arange(8, dtype=np.float32).reshape(4, 2) if values is None else values
    parts = {"emb_keys": KEYS, "emb_values": weights, "emb_scores": np.array([7, 5, 3, 1], dtype=np.int64)}
    parts |= {} if kept is None else {"emb_opt_values": kept}
    parts |= {"counter_keys": np.array([8, -3], dtype=np.int64), "counter_frequencies": np.array([1, 6], dtype=np.int64)}
    kernel.content = {f"t_{name}{END}": array.tobytes() for name, array in parts.items()}
    kernel.about = {"opt_type": "adam", "iters": 0, "evict_strategy": "KCustomized", "embedding_dtype": "float16", "step_score": 1}
    return weights


def test_what_the_kernel_wrote_is_our_state() -> None:
    tables, kernel = guarded()
    kept = np.arange(16, dtype=np.float32).reshape(4, 4)
    weights = fill(kernel, kept)
    tables.step = 11
    state = tables.dump("t")
    assert CALLS.pop() == ("dump", {"optim": True, "counter": True, "table_names": ["t"]})
    assert state.keys.tolist() == sorted(KEYS.tolist())
    assert torch.equal(state.weights, torch.from_numpy(weights[ORDER]))
    assert torch.equal(state.moments["exp_avg"], torch.from_numpy(kept[ORDER, :2]))
    assert torch.equal(state.moments["exp_avg_sq"], torch.from_numpy(kept[ORDER, 2:]))
    assert state.scores.tolist() == state.last_steps.tolist() == [5, 1, 7, 3]
    assert (state.counted_keys.tolist(), state.counts.tolist()) == ([-3, 8], [6, 1])
    assert (state.default.tolist(), state.unadmitted.tolist(), state.step) == ([0.25, 0.25], [-1.0, -1.0], 11)


def test_older_releases_write_no_counters_and_all_as_float32() -> None:
    tables, kernel = guarded(learned(ScoreStrategy.LFU, optim.RowWiseAdagrad, torch.bfloat16), new=False)
    weights = fill(kernel, np.repeat(np.arange(4, dtype=np.float32)[:, None], 4, axis=1))
    kernel.content = {name: content for name, content in kernel.content.items() if "counter" not in name and "scores" not in name}
    tables.step = 3
    state = tables.dump("t")
    assert CALLS.pop() == ("dump", {"optim": True, "counter": False, "table_names": ["t"]})
    assert state.weights.dtype is torch.bfloat16
    assert torch.equal(state.weights.float(), torch.from_numpy(weights[ORDER]))
    assert state.moments["sum"].tolist() == [1.0, 3.0, 0.0, 2.0]  # the first of 16 bytes
    assert (state.counted_keys.tolist(), state.counts.tolist(), state.scores.tolist()) == ([], [], [0, 0, 0, 0])
    assert state.last_steps.tolist() == [3, 3, 3, 3]


def test_newer_ones_keep_the_tables_type() -> None:
    tables, kernel = guarded(learned(optimizer=optim.RowWiseAdagrad, dtype=torch.float16))
    weights = fill(kernel, np.array([[1.5], [2.5], [3.5], [4.5]], dtype=np.float16), np.arange(8, dtype=np.float16).reshape(4, 2))
    state = tables.dump("t")
    assert torch.equal(state.weights, torch.from_numpy(weights[ORDER]))
    assert state.moments["sum"].tolist() == [2.5, 4.5, 1.5, 3.5]


def test_ages_become_times_and_times_ages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time_ns", lambda: 5_000_000)
    tables, kernel = guarded(learned(ScoreStrategy.TIMESTAMP, torch.optim.SGD))
    fill(kernel, None)
    kernel.content[f"t_emb_scores{END}"] = np.array([7000, 5999, 0, 1], dtype=np.int64).tobytes()
    state = tables.dump("t")
    assert (state.scores.tolist(), dict(state.moments)) == ([4995, 5000, 4993, 5000], {})
    assert tables.load("t", state) == 0
    assert np.frombuffer(kernel.loaded[f"t_emb_scores{END}"], np.int64).tolist() == [5000, 0, 7000, 0]
    assert "step_score" not in json.loads(kernel.loaded["t_opt_args.json"]) or json.loads(kernel.loaded["t_opt_args.json"])["step_score"] == 1


def state_of(keys: list[int], **others: Any) -> DynamicState:
    """Rows 0.5, 1.5, ...; moments 100, 101, ... and 200, 201, ..."""
    ids = torch.tensor(keys, dtype=torch.int64)
    rows = torch.arange(2.0 * len(keys)).reshape(-1, 2)
    counted = torch.tensor([-5, 6])
    values: dict[str, Any] = {"weights": rows + 0.5, "scores": ids % 10, "counted_keys": counted, "counts": counted.abs(), **others}
    moments = {"exp_avg": rows + 100, "exp_avg_sq": rows + 200}
    return DynamicState(keys=ids, moments=moments, last_steps=ids % 10, default=torch.zeros(2), unadmitted=torch.zeros(2), step=41, **values)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_state_becomes_their_files(dtype: torch.dtype) -> None:
    tables, kernel = guarded(learned(dtype=dtype))
    fill(kernel, None)
    state = state_of([-4, 3, 12], weights=torch.tensor([[0.5, 1.5], [2.5, 3.5], [4.5, 5.5]], dtype=dtype))
    assert tables.load("t", state) == 0
    assert [name for name, _ in CALLS] == ["dump", "load"]
    assert CALLS.pop()[1] == {"optim": True, "counter": True, "table_names": ["t"]}
    CALLS.clear()
    loaded, parts = kernel.loaded, ("emb_keys", "emb_values", "emb_scores", "emb_opt_values", "counter_keys", "counter_frequencies")
    assert sorted(loaded) == sorted([*(f"t_{part}{END}" for part in parts), "t_opt_args.json"])
    assert np.frombuffer(loaded[f"t_emb_keys{END}"], np.int64).tolist() == [-4, 3, 12]
    assert np.frombuffer(loaded[f"t_emb_values{END}"], np.float32).tolist() == [0.5, 1.5, 2.5, 3.5, 4.5, 5.5]
    kept = np.frombuffer(loaded[f"t_emb_opt_values{END}"], np.float32).reshape(3, 4)
    assert kept.tolist() == [[100, 101, 200, 201], [102, 103, 202, 203], [104, 105, 204, 205]]
    assert np.frombuffer(loaded[f"t_counter_frequencies{END}"], np.int64).tolist() == [5, 6]
    about = json.loads(loaded["t_opt_args.json"])
    assert about == {"opt_type": "adam", "iters": 41, "evict_strategy": "KCustomized", "embedding_dtype": "float32", "step_score": 42}
    assert tables.step == 41


def test_a_rank_finds_files_of_all_and_rows_in_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvidia_tables, "_rank", lambda: (0, 3))
    others = {1: state_of([-2, 0, 7]), 2: state_of([])}

    def from_others(told: list[Any], src: int) -> None:
        CALLS.append(("told", {"src": src, "what": type(told[0]).__name__}))
        told[0] = others.get(src, told[0])

    monkeypatch.setattr("torch.distributed.broadcast_object_list", from_others)
    tables, kernel = guarded()
    fill(kernel, None)
    tables.load("t", state_of([3, 4]))
    told = [(name, given.get("src"), given.get("what")) for name, given in CALLS]
    assert told == [
        ("told", 0, "DynamicState"),
        ("told", 1, "NoneType"),
        ("told", 2, "NoneType"),
        ("dump", None, None),
        ("told", 0, "dict"),
        ("load", None, None),
    ]
    CALLS.clear()
    keys = {name.removeprefix("t_emb_keys"): content for name, content in kernel.loaded.items() if "emb_keys" in name}
    assert keys == {".rank_0.world_size_3": np.array([0, 3], dtype=np.int64).tobytes(), ".rank_1.world_size_3": b"", ".rank_2.world_size_3": b""}
    values = np.frombuffer(kernel.loaded["t_emb_values.rank_0.world_size_3"], np.float32)
    assert values.tolist() == [2.5, 3.5, 0.5, 1.5]  # of id 0, the second of its rank, and of 3
    assert np.frombuffer(kernel.loaded["t_emb_opt_values.rank_0.world_size_3"], np.float32).tolist() == [102, 103, 202, 203, 100, 101, 200, 201]


def test_negative_ids_that_their_loading_would_lose_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvidia_tables, "_from", lambda source, what: state_of([-4, 3, 12]) if what is None else what)
    for new, ranks, lost in ((False, 3, True), (False, 6, True), (False, 4, False), (True, 3, False), (False, 1, False)):
        monkeypatch.setattr(nvidia_tables, "_rank", lambda ranks=ranks: (0, ranks))
        tables, kernel = guarded(new=new)
        fill(kernel, None)
        if lost:
            with pytest.raises(CheckpointError, match=f"table 't': dynamicemb unknown would lose 1 negative ids as it loads them on {ranks} ranks"):
                tables.load("t", state_of([-4, 3, 12]))
            assert CALLS == []
        else:
            tables.load("t", state_of([-4, 3, 12]))
            assert len(kernel.loaded) == 6 * ranks + 1 if new else 4 * ranks + 1
        CALLS.clear()


def test_an_empty_table_comes_and_goes() -> None:
    tables, kernel = guarded()
    fill(kernel, None)
    kernel.content = {f"t_emb_{part}{END}": b"" for part in ("keys", "values", "scores", "opt_values")}
    state = tables.dump("t")
    assert (state.keys.tolist(), state.weights.shape, state.moments["exp_avg"].shape) == ([], (0, 2), (0, 2))
    tables.load("t", state)
    assert kernel.loaded[f"t_emb_values{END}"] == b""
    CALLS.clear()


def test_increments_are_refused() -> None:
    tables, _ = guarded()
    tables.track_removals(False)
    tables.forget_removals(5)
    with pytest.raises(ConfigError, match="NVIDIA's kernel does not tell which ids went; leave save_increments_steps out"):
        tables.track_removals(True)


@pytest.mark.parametrize(
    ("part", "content", "message"),
    [
        ("emb_keys", None, "0 files t_emb_keys"),
        ("emb_values", None, "emb_values.*missing"),
        ("emb_opt_values", None, "emb_opt_values.*missing"),
        ("emb_values", b"12345", "5 bytes, and 8 numbers have 32 or 32"),
        ("emb_opt_values", b"12345", "5 bytes are no whole numbers for 4 rows"),
        ("emb_opt_values", b"\0" * 32, "2 numbers a row, and the optimiser keeps 4"),
        ("counter_keys", b"\0" * 8, "1 ids and 2 counts"),
    ],
)
def test_files_that_do_not_fit_are_told(part: str, content: bytes | None, message: str) -> None:
    tables, kernel = guarded()
    fill(kernel, np.zeros((4, 4), dtype=np.float32))
    kernel.content.pop(f"t_{part}{END}")
    if content is not None:
        kernel.content[f"t_{part}{END}"] = content
    with pytest.raises(CheckpointError, match=message):
        tables.dump("t")
    CALLS.clear()
