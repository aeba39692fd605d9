"""What is wrong with the values of `train_config` and `eval_config`."""

import math
from dataclasses import fields

from emberline.schema import INT64_MAX
from emberline.train.config.optimizer_configs import DenseOptimizer, SgdConfig, SparseOptimizer
from emberline.train.config.train_config import EvalConfig, TrainConfig

SUMMARIES = ("loss", "learning_rate")
_BELOW_ONE = ("momentum", "beta1", "beta2", "rho", "alpha")


def train_problems(config: TrainConfig) -> list[str]:
    """One sentence for each problem."""
    found = [f"sparse_optimizer: {text}" for text in _optimizer_problems(config.sparse_optimizer.optimizer)]
    found += [f"dense_optimizer: {text}" for text in _optimizer_problems(config.dense_optimizer.optimizer)]
    for name in ("num_steps", "num_epochs", "log_step_count_steps"):
        value = getattr(config, name)
        if value is not None and value < 1:
            found.append(f"{name} must be at least 1, found {value}")
    found += [
        f"tensorboard_summaries: {name!r} is not supported yet; known: {', '.join(SUMMARIES)}"
        for name in config.tensorboard_summaries
        if name not in SUMMARIES
    ]
    if config.seed > INT64_MAX:
        found.append(f"seed must be below 2^63, found {config.seed}")
    return found


def eval_problems(config: EvalConfig) -> list[str]:
    """One sentence for each problem."""
    values = {"num_steps": config.num_steps, "log_step_count_steps": config.log_step_count_steps}
    return [f"{name} must be at least 1, found {value}" for name, value in values.items() if value is not None and value < 1]


def _optimizer_problems(optimizer: SparseOptimizer | DenseOptimizer) -> list[str]:
    found = []
    for field in fields(optimizer):
        value = getattr(optimizer, field.name)
        if isinstance(value, bool):
            continue
        if not math.isfinite(value) or value < 0.0:
            found.append(f"{field.name} must be a number of 0 or more, found {value}")
        elif field.name in _BELOW_ONE and value > 1.0:
            found.append(f"{field.name} must be at most 1, found {value}")
    if isinstance(optimizer, SgdConfig) and optimizer.nesterov and (optimizer.momentum <= 0.0 or optimizer.dampening != 0.0):
        found.append("nesterov needs a momentum above 0 and no dampening")
    return found
