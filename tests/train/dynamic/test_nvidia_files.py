"""States by way of NVIDIA's files, against arrays written and read here."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from emberline.errors import CheckpointError
from emberline.train.dynamic import nvidia_files
from emberline.train.dynamic.nvidia import find_package
from emberline.train.dynamic.nvidia_files import StoredTable, dump_tables, load_tables
from emberline.train.dynamic.options import DynamicEmbOptions, FrequencyAdmission, Initializer, InitializerMode, ScoreStrategy
from emberline.train.dynamic.state import DynamicState, DynamicTable
from emberline.train.kernels import Adam, Moment, RowWiseAdagrad
from tests.train.dynamic.fake_nvidia import CALLS, FakeFiles, fake_package

KEYS = np.array([9, -(2**63), 2**63 - 1, 4], dtype=np.int64)
ORDER = [1, 3, 0, 2]
MODEL = nn.Identity()
END = ".rank_0.world_size_1"
Arrays = np.ndarray[Any, np.dtype[Any]]


def stored(
    strategy: ScoreStrategy = ScoreStrategy.STEP, moments: tuple[Moment, ...] = Adam().moments, dtype: torch.dtype = torch.float32
) -> StoredTable:
    constant = Initializer(mode=InitializerMode.CONSTANT, value=0.25)
    admission = FrequencyAdmission(threshold=2, counter_capacity=8, initializer=Initializer(mode=InitializerMode.CONSTANT, value=-1.0))
    options = DynamicEmbOptions(max_capacity=64, initializer=constant, eval_initializer=constant, score_strategy=strategy, admission=admission)
    return StoredTable(DynamicTable("t", 2, options, 64, 8), dtype, moments)


def fill(files: FakeFiles, kept: Arrays | None, *, values: Arrays | None = None, end: str = END) -> Arrays:
    weights = np.arange(8, dtype=np.float32).reshape(4, 2) if values is None else values
    parts = {"emb_keys": KEYS, "emb_values": weights, "emb_scores": np.array([7, 5, 3, 1], dtype=np.int64)}
    parts |= {} if kept is None else {"emb_opt_values": kept}
    parts |= {"counter_keys": np.array([8, -3], dtype=np.int64), "counter_frequencies": np.array([1, 6], dtype=np.int64)}
    files.tables = {f"t_{name}{end}": array.tobytes() for name, array in parts.items()}
    files.about = {"t": {"opt_type": "adam", "iters": 0, "evict_strategy": "KCustomized", "embedding_dtype": "float16", "step_score": 1}}
    return weights


def test_what_the_kernel_wrote_is_our_state(tmp_path: Path) -> None:
    kept = np.arange(16, dtype=np.float32).reshape(4, 4)
    with fake_package() as files:
        weights = fill(files, kept)
        state = dump_tables(find_package(), MODEL, {"t": stored()}, tmp_path, step=11)["t"]
        assert CALLS == [("dump", {"counter": True})]
    assert state.keys.tolist() == sorted(KEYS.tolist())
    assert torch.equal(state.weights, torch.from_numpy(weights[ORDER]))
    assert torch.equal(state.moments["exp_avg"], torch.from_numpy(kept[ORDER, :2]))
    assert torch.equal(state.moments["exp_avg_sq"], torch.from_numpy(kept[ORDER, 2:]))
    assert state.scores.tolist() == state.last_steps.tolist() == [5, 1, 7, 3]
    assert (state.counted_keys.tolist(), state.counts.tolist()) == ([-3, 8], [6, 1])
    assert (state.default.tolist(), state.unadmitted.tolist(), state.step) == ([0.25, 0.25], [-1.0, -1.0], 11)


def test_older_releases_write_no_counters_and_all_as_float32(tmp_path: Path) -> None:
    with fake_package(new=False) as files:
        weights = fill(files, np.repeat(np.arange(4, dtype=np.float32)[:, None], 4, axis=1))
        files.tables = {name: content for name, content in files.tables.items() if "counter" not in name and "scores" not in name}
        table = stored(ScoreStrategy.LFU, RowWiseAdagrad().moments, torch.bfloat16)
        state = dump_tables(find_package(), MODEL, {"t": table}, tmp_path, step=3)["t"]
        assert CALLS == [("dump", {"counter": None})]
    assert state.weights.dtype is torch.bfloat16
    assert torch.equal(state.weights.float(), torch.from_numpy(weights[ORDER]))
    assert state.moments["sum"].tolist() == [1.0, 3.0, 0.0, 2.0]  # the first of 16 bytes
    assert (state.counted_keys.tolist(), state.counts.tolist(), state.scores.tolist()) == ([], [], [0, 0, 0, 0])
    assert state.last_steps.tolist() == [3, 3, 3, 3]


def test_newer_ones_keep_the_tables_type(tmp_path: Path) -> None:
    with fake_package() as files:
        weights = fill(files, np.array([[1.5], [2.5], [3.5], [4.5]], dtype=np.float16), values=np.arange(8, dtype=np.float16).reshape(4, 2))
        state = dump_tables(find_package(), MODEL, {"t": stored(moments=RowWiseAdagrad().moments, dtype=torch.float16)}, tmp_path, step=3)["t"]
    assert torch.equal(state.weights, torch.from_numpy(weights[ORDER]))
    assert state.moments["sum"].tolist() == [2.5, 4.5, 1.5, 3.5]


def test_ages_become_times_and_times_ages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time_ns", lambda: 5_000_000)
    table = stored(ScoreStrategy.TIMESTAMP, ())
    with fake_package() as files:
        fill(files, None)
        files.tables[f"t_emb_scores{END}"] = np.array([7000, 5999, 0, 1], dtype=np.int64).tobytes()
        state = dump_tables(find_package(), MODEL, {"t": table}, tmp_path / "out", step=3)["t"]
        assert state.scores.tolist() == [4995, 5000, 4993, 5000]
        load_tables(find_package(), MODEL, {"t": table}, {"t": state}, tmp_path / "in")
        assert np.frombuffer(files.loaded[f"model/ebc/t_emb_scores{END}"], np.int64).tolist() == [5000, 0, 7000, 0]


def state_of(keys: Tensor, **others: Any) -> DynamicState:
    rows = torch.arange(2.0 * len(keys)).reshape(-1, 2)
    moments = {"exp_avg": rows + 100, "exp_avg_sq": rows + 200}
    counted = torch.tensor([-5, 6])
    values: dict[str, Any] = {"weights": rows, "scores": keys % 10, "counted_keys": counted, "counts": counted.abs(), **others}
    return DynamicState(keys=keys, moments=moments, last_steps=keys % 10, default=torch.zeros(2), unadmitted=torch.zeros(2), step=41, **values)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_state_becomes_their_files(tmp_path: Path, dtype: torch.dtype) -> None:
    state = state_of(torch.tensor([-4, 3, 12]), weights=torch.tensor([[0.5, 1.5], [2.5, 3.5], [4.5, 5.5]], dtype=dtype))
    with fake_package() as files:
        fill(files, None)
        load_tables(find_package(), MODEL, {"t": stored(dtype=dtype)}, {"t": state}, tmp_path)
        loaded = files.loaded
        assert [name for name, _ in CALLS] == ["dump", "load"]
        assert CALLS[1][1] == {"counter": True}
    assert sorted(loaded) == sorted(
        f"model/ebc/t_{part}"
        for part in (
            *(f"emb_{name}{END}" for name in ("keys", "values", "scores", "opt_values")),
            f"counter_keys{END}",
            f"counter_frequencies{END}",
            "opt_args.json",
        )
    )
    assert np.frombuffer(loaded[f"model/ebc/t_emb_keys{END}"], np.int64).tolist() == [-4, 3, 12]
    assert np.frombuffer(loaded[f"model/ebc/t_emb_values{END}"], np.float32).tolist() == [0.5, 1.5, 2.5, 3.5, 4.5, 5.5]
    kept = np.frombuffer(loaded[f"model/ebc/t_emb_opt_values{END}"], np.float32).reshape(3, 4)
    assert kept.tolist() == [[100, 101, 200, 201], [102, 103, 202, 203], [104, 105, 204, 205]]
    assert np.frombuffer(loaded[f"model/ebc/t_counter_frequencies{END}"], np.int64).tolist() == [5, 6]
    assert json.loads(loaded["model/ebc/t_opt_args.json"]) == {
        "opt_type": "adam",
        "iters": 41,
        "evict_strategy": "KCustomized",
        "embedding_dtype": "float32",
        "step_score": 42,
    }


def test_every_rank_reads_every_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With as many files as ranks each would read its own alone, and ids are its own by another rule than ours."""
    with fake_package() as files:
        for rank in (1, 0):
            monkeypatch.setattr(nvidia_files, "_rank", lambda rank=rank: (rank, 2))
            fill(files, None)
            folder = tmp_path if rank == 0 else tmp_path / "other"
            load_tables(find_package(), MODEL, {"t": stored()}, {"t": state_of(torch.tensor([rank]))}, folder)
            keys = {name[-len(".rank_0.world_size_3") :]: content for name, content in files.loaded.items() if "emb_keys" in name}
            expected = {f".rank_{rank}.world_size_3": np.array([rank], dtype=np.int64).tobytes()}
            assert keys == (expected | {".rank_2.world_size_3": b""} if rank == 0 else expected)


def test_negative_ids_that_their_loading_would_lose_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = state_of(torch.tensor([-4, 3, 12]))
    for new, ranks, lost in ((False, 3, True), (False, 6, True), (False, 4, False), (True, 3, False), (False, 1, False)):
        monkeypatch.setattr(nvidia_files, "_rank", lambda ranks=ranks: (0, ranks))
        with fake_package(new=new) as files:
            fill(files, None)
            folder = tmp_path / f"{new}{ranks}"
            if not lost:
                load_tables(find_package(), MODEL, {"t": stored()}, {"t": state}, folder)
                continue
            with pytest.raises(CheckpointError, match=f"table 't': dynamicemb unknown would lose 1 negative ids as it loads them on {ranks} ranks"):
                load_tables(find_package(), MODEL, {"t": stored()}, {"t": state}, folder)
            assert CALLS == []


def test_an_empty_table_comes_and_goes(tmp_path: Path) -> None:
    with fake_package() as files:
        fill(files, None)
        files.tables = {f"t_emb_{part}{END}": b"" for part in ("keys", "values", "scores", "opt_values")}
        state = dump_tables(find_package(), MODEL, {"t": stored()}, tmp_path / "out", step=0)["t"]
        assert (state.keys.tolist(), state.weights.shape, state.moments["exp_avg"].shape) == ([], (0, 2), (0, 2))
        load_tables(find_package(), MODEL, {"t": stored()}, {"t": state}, tmp_path / "in")
        assert files.loaded[f"model/ebc/t_emb_values{END}"] == b""


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
def test_files_that_do_not_fit_are_told(tmp_path: Path, part: str, content: bytes | None, message: str) -> None:
    with fake_package() as files:
        fill(files, np.zeros((4, 4), dtype=np.float32))
        files.tables.pop(f"t_{part}{END}")
        if content is not None:
            files.tables[f"t_{part}{END}"] = content
        with pytest.raises(CheckpointError, match=message):
            dump_tables(find_package(), MODEL, {"t": stored()}, tmp_path, step=0)
