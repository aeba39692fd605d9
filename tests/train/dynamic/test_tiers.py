"""Tables with a second tier, beside the same tables all in memory: every number is the same, bit for bit."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from emberline.train.dynamic.options import ScoreStrategy
from emberline.train.kernels.optimizers import RowOptimizer
from tests.train.dynamic.beside import CALLS, OPTIMIZERS, all_fast, assert_equal_runs, bags, kernel, tables_of


@settings(max_examples=25, deadline=None)
@given(
    budgets=st.lists(st.one_of(st.none(), st.integers(0, 600)), min_size=3, max_size=3),
    caching=st.lists(st.booleans(), min_size=3, max_size=3),
    strategy=st.sampled_from([ScoreStrategy.STEP, ScoreStrategy.LFU]),
    threshold=st.sampled_from([0, 2]),
    optimizer=st.sampled_from(OPTIMIZERS),
    dtype=st.sampled_from([torch.float32, torch.float16]),
    steps=st.lists(st.tuples(CALLS, bags), max_size=12),
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
