"""Tables on any device, beside those of the CPU: there, every number is the same, bit for bit."""

import torch
from fbgemm_gpu.split_table_batched_embeddings_ops_common import PoolingMode
from hypothesis import given, settings
from hypothesis import strategies as st

from emberline.train.dynamic.device_tables import DeviceDynamicEmbeddingTables
from emberline.train.dynamic.options import ScoreStrategy
from emberline.train.kernels.optimizers import RowOptimizer
from tests.train.dynamic.beside import CALLS, OPTIMIZERS, assert_equal_runs, bags, kernel, tables_of


@settings(max_examples=40, deadline=None)
@given(
    strategy=st.sampled_from(list(ScoreStrategy)),
    threshold=st.sampled_from([0, 2]),
    optimizer=st.sampled_from(OPTIMIZERS),
    dtype=st.sampled_from([torch.float32, torch.float16]),
    pooling=st.sampled_from([PoolingMode.SUM, PoolingMode.MEAN, PoolingMode.NONE]),
    steps=st.lists(st.tuples(CALLS, bags), max_size=12),
)
def test_numbers_are_those_of_the_cpu(
    strategy: ScoreStrategy,
    threshold: int,
    optimizer: RowOptimizer,
    dtype: torch.dtype,
    pooling: PoolingMode,
    steps: list[tuple[str, list[list[int]]]],
) -> None:
    tables = tables_of([None] * 3, [False] * 3, strategy, threshold, 3)
    made = kernel(tables, optimizer, dtype, pooling, DeviceDynamicEmbeddingTables)
    assert_equal_runs(made, kernel(tables, optimizer, dtype, pooling), steps)
