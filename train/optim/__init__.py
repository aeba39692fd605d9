"""Optimisers: tables learn in backward, by fused kernels (`sparse`); everything else by torch's optimisers (`dense`)."""

from emberline.train.optim.dense import ModelOptimizer
from emberline.train.optim.sparse import apply_sparse_optimizer, initial_moment, set_initial_moments

__all__ = ["ModelOptimizer", "apply_sparse_optimizer", "initial_moment", "set_initial_moments"]
