"""Tables with a second tier, beside the same tables all in memory: every number is the same, bit for bit."""

import copy
import errno
import mmap
import os
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from emberline.errors import CapacityError
from emberline.train.dynamic import tables as dynamic_tables
from emberline.train.dynamic.initial_values import first_vectors, stream
from emberline.train.dynamic.options import DynamicEmbOptions, DynamicRuntime, ScoreStrategy
from emberline.train.dynamic.state import DynamicTable
from emberline.train.dynamic.tables import BatchedDynamicEmbeddingTables
from emberline.train.dynamic.tiers import blocks as tiers
from emberline.train.dynamic.tiers.blocks import TierCounters, Tiers
from emberline.train.kernels.optimizers import Adagrad, RowOptimizer
from tests.train.dynamic.beside import CALLS, OPTIMIZERS, UNIFORM, all_fast, assert_equal_runs, assert_same_ids, bags, kernel, tables_of


@settings(max_examples=15, deadline=None)
@given(
    budgets=st.lists(st.one_of(st.none(), st.integers(0, 600)), min_size=3, max_size=3),
    caching=st.lists(st.booleans(), min_size=3, max_size=3),
    strategy=st.sampled_from([ScoreStrategy.STEP, ScoreStrategy.LFU]),
    threshold=st.sampled_from([0, 2]),
    optimizer=st.sampled_from(OPTIMIZERS),
    dtype=st.sampled_from([torch.float32, torch.float16]),
    steps=st.lists(st.tuples(CALLS, bags), max_size=9),
)
def test_numbers_do_not_depend_on_tiers(
    budgets: list[int | None],
    caching: list[bool],
    strategy: ScoreStrategy,
    threshold: int,
    optimizer: RowOptimizer,
    dtype: torch.dtype,
    steps: list[tuple[str, list[list[int]]]],
) -> None:
    tables = tables_of(budgets, caching, strategy, threshold)
    assert_equal_runs(kernel(tables, optimizer, dtype), kernel(all_fast(tables), optimizer, dtype), steps)


MIB = 1 << 20
DIM, ROWS = 64, 1 << 16
"""16 MiB of weights, and as much of a moment."""


def large(caching: bool, folder: Path, monkeypatch: pytest.MonkeyPatch, *, fast: int = 2 * MIB, most: int = ROWS) -> BatchedDynamicEmbeddingTables:
    monkeypatch.setattr(dynamic_tables, "Tiers", partial(Tiers, kept_bytes=2 * MIB))
    options = DynamicEmbOptions(max_capacity=most, initializer=UNIFORM, caching=caching, local_hbm_for_values=fast)
    return BatchedDynamicEmbeddingTables([DynamicTable("t", DIM, options, most)], [0], Adagrad(lr=0.5), runtime=DynamicRuntime(1, folder))


def own_memory() -> int:
    """Bytes of this process that are in memory, files that it maps included."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


@pytest.mark.parametrize("caching", [False, True])
def test_a_table_larger_than_its_memory_learns(caching: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = large(caching, tmp_path, monkeypatch)
    generator = torch.Generator().manual_seed(5)
    keys = torch.randperm(ROWS, generator=generator)
    grew, before = 0, own_memory()
    for ids in torch.split(torch.cat([keys, keys[: 1 << 14]]), 2048):
        made(ids, torch.arange(len(ids) + 1)).sum().backward()
        grew = max(grew, own_memory() - before)
    assert made.sizes() == {"t": ROWS}
    assert grew < 20 * MIB  # of 32
    state = made.dump("t")
    first = first_vectors(UNIFORM, stream(1, "t", "rows"), state.keys.numpy(), DIM)
    steps = torch.where(torch.isin(state.keys, keys[: 1 << 14]), 0.5 + 0.5 / 2**0.5, 0.5)  # gradients of 1, once or twice
    torch.testing.assert_close(state.weights, torch.from_numpy(first) - steps.unsqueeze(1))
    assert made.load("t", state) == 0
    again = made.dump("t")
    assert torch.equal(again.weights, state.weights)
    assert torch.equal(again.moments["sum"], state.moments["sum"])
    assert list(tmp_path.iterdir()) == []


def test_hybrid_tells_where_rows_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = large(False, tmp_path, monkeypatch, fast=DIM * 4 * 2 * 100 + 7)
    assert made.tiers("t") == TierCounters(mode="HYBRID", fast_rows=100, fast_bytes=51200)
    made(torch.arange(150), torch.arange(151))
    made(torch.arange(90, 150), torch.arange(61))
    found = made.tiers("t")
    assert (found.fast_reads, found.slow_reads, found.hit_rate) == (110, 100, 110 / 210)
    assert found.slow_bytes == 2 * MIB  # the file of each plane grows by this much at least


def test_caching_keeps_what_was_used_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = large(True, tmp_path, monkeypatch, fast=DIM * 4 * 2 * 100)
    for ids in (torch.arange(100), torch.arange(50, 150), torch.arange(50, 150), torch.arange(50)):
        made(ids, torch.arange(len(ids) + 1))
    found = made.tiers("t")
    assert (found.mode, found.fast_rows) == ("CACHING", 100)
    assert (found.fast_reads, found.slow_reads) == (50 + 100, 100 + 50 + 50)


def test_a_bound_beyond_all_memory_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for caching in (False, True):
        made = large(caching, tmp_path, monkeypatch, most=2**31 - 64)  # 512 GiB of weights
        before = own_memory()
        made(torch.arange(1000), torch.arange(1001)).sum().backward()
        assert made.sizes() == {"t": 1000}
        assert own_memory() - before < 16 * MIB


def full(file: int, offset: int, length: int) -> None:
    """A disk without room."""
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_disk_that_is_full_at_the_start_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(CapacityError, match=r"'what no id owns': .* the disk is full"):
        large(True, tmp_path, monkeypatch)  # rows of the first tier have their place in the file
    large(False, tmp_path, monkeypatch)  # nothing of it is written before rows are given


def test_a_full_disk_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for caching in (False, True):
        made = large(caching, tmp_path, monkeypatch)
        made(torch.arange(10), torch.arange(11)).sum().backward()
        before = made.dump("t")

        with monkeypatch.context() as patched:
            patched.setattr(os, "posix_fallocate", full)
            with pytest.raises(CapacityError, match=r"table 't': .* the disk is full"):
                made(torch.arange(20_000), torch.arange(20_001))
        assert_same_ids(made.dump("t"), before)
        made(torch.arange(20_000), torch.arange(20_001))
        assert made.sizes() == {"t": 20_000}


def test_all_tables_of_one_width_are_fetched_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = kernel(tables_of([0, 0, 0], [False] * 3, ScoreStrategy.STEP, 0), Adagrad())  # "a" and "c" are as wide; "b" is read twice
    ids, offsets = torch.tensor([1, 2, 3, 1, 4]), torch.tensor([0, 2, 3, 4, 5])
    made(ids, offsets)
    fetched: list[list[int]] = []
    monkeypatch.setattr(tiers, "touch", lambda rows, tensors: fetched.append(rows.tolist()))
    made.prefetch(ids, offsets)
    for block in made.bank.blocks:
        block.wait()
    assert sorted(map(sorted, fetched)) == [[0, 1], [0, 1, 6]]  # rows of "c" follow the six of "a"


def test_errors_of_fetching_come_with_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = large(False, tmp_path, monkeypatch, fast=0)
    ids, offsets = torch.arange(100), torch.arange(101)
    made(ids, offsets)
    made.prefetch(ids, offsets)
    (block,) = made.bank.blocks
    block.wait()

    def fails(rows: torch.Tensor, tensors: list[torch.Tensor]) -> None:
        raise OSError("input/output error")

    monkeypatch.setattr(tiers, "touch", fails)
    made.prefetch(ids, offsets)
    with pytest.raises(OSError, match="input/output error"):
        block.wait()


def test_rows_in_files_are_not_copied_by_accident(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for caching in (False, True):
        with pytest.raises(TypeError, match="dump the table instead"):
            copy.deepcopy(large(caching, tmp_path, monkeypatch).bank.blocks[0].rows)


@pytest.mark.parametrize("sizes", [None, [3, 1], [0, 4], [4, 0]])
def test_what_is_fetched_ahead_is_what_each_table_is_asked_for(sizes: list[int] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = DynamicEmbOptions(max_capacity=64, initializer=UNIFORM, caching=True, local_hbm_for_values=DIM * 4 * 2 * 2)
    made = BatchedDynamicEmbeddingTables(
        [DynamicTable(name, DIM, options, 64) for name in "ab"], [0, 1], Adagrad(lr=0.5), runtime=DynamicRuntime(1, tmp_path)
    )
    ids, offsets, each = torch.arange(8), torch.tensor([0, 2, 5, 6, 8]), sizes or [2, 2]
    made(ids, offsets, batch_sizes=sizes)
    asked: list[int] = []
    for block in {id(block): block for block in made.bank.blocks}.values():
        monkeypatch.setattr(block, "prefetch", lambda rows: asked.extend(rows.tolist()))
    made.prefetch(ids, offsets, sizes)
    end = int(offsets[each[0]])
    assert len(asked) == 8
    wanted = []
    for table, own in enumerate((ids[:end], ids[end:])):
        block, within = made.bank.keyed(table)
        wanted += (made._keyed[table].index.find(own.numpy()) + block.first_rows[within]).tolist()
    assert sorted(asked) == sorted(wanted)
