"""Optimisers: tables learn in backward, by fused kernels (`sparse`); everything else by torch's optimisers (`dense`).

`training_step` puts them together with schedules, precision, scaling, clipping and moving averages; `border` stands between the two.
"""

from emberline.train.optim.dense import ModelOptimizer
from emberline.train.optim.sparse import apply_sparse_optimizer, check_device, initial_moment, moments_of, set_initial_moments
from emberline.train.optim.training_step import TrainingStep

__all__ = ["ModelOptimizer", "TrainingStep", "apply_sparse_optimizer", "check_device", "initial_moment", "moments_of", "set_initial_moments"]
