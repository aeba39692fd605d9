"""What is wrong with the values of one dataclass, looked at alone: checked as soon as it is read, so that nothing hides behind a bigger mistake."""

import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from emberline.schema import INT64_MAX
from emberline.train.config.model_config import DeepFmConfig, MlpConfig
from emberline.train.config.optimizer_configs import (
    AdadeltaConfig,
    AdagradConfig,
    AdamConfig,
    AdamWConfig,
    DenseOptimizer,
    FusedAdagradConfig,
    FusedRowWiseAdagradConfig,
    FusedSgdConfig,
    RmsPropConfig,
    SgdConfig,
    SparseOptimizer,
)
from emberline.train.config.train_config import EvalConfig, TrainConfig

SUMMARIES = ("loss", "learning_rate")
_AT_MOST_ONE = ("momentum", "beta1", "beta2", "rho", "alpha")


def problems_of(config: Any) -> list[str]:
    """One sentence for each problem of a dataclass that was just read."""
    check = _CHECKS.get(type(config))
    return check(config) if check else []


def mlp_problems(mlp: MlpConfig) -> list[str]:
    """Layers, ratios and normalisation must fit together."""
    found = []
    if not all(width > 0 for width in mlp.hidden_units):
        found.append("hidden_units must be at least 1 each")
    if len(mlp.dropout_ratio) not in (0, 1, len(mlp.hidden_units)):
        found.append(f"dropout_ratio has {len(mlp.dropout_ratio)} values for {len(mlp.hidden_units)} layers; give none, one, or one a layer")
    if not all(0.0 <= ratio < 1.0 for ratio in mlp.dropout_ratio):
        found.append("dropout_ratio must be in [0, 1)")
    if mlp.use_bn and mlp.use_ln:
        found.append("use_bn and use_ln exclude each other")
    return found


def deepfm_problems(config: DeepFmConfig) -> list[str]:
    """Wide tables must have a width."""
    return [] if config.wide_embedding_dim >= 1 else [f"wide_embedding_dim must be at least 1, found {config.wide_embedding_dim}"]


def optimizer_problems(optimizer: SparseOptimizer | DenseOptimizer) -> list[str]:
    """All of an optimiser's numbers are finite and not negative; decay rates of averages are at most 1."""
    found = []
    for field in fields(optimizer):
        value = getattr(optimizer, field.name)
        if isinstance(value, bool):
            continue
        if not math.isfinite(value) or value < 0.0:
            found.append(f"{field.name} must be a number of 0 or more, found {value}")
        elif field.name in _AT_MOST_ONE and value > 1.0:
            found.append(f"{field.name} must be at most 1, found {value}")
    if isinstance(optimizer, AdamConfig) and max(optimizer.beta1, optimizer.beta2) == 1.0:
        found.append("beta1 and beta2 must be below 1")
    if isinstance(optimizer, SgdConfig) and optimizer.nesterov and (optimizer.momentum <= 0.0 or optimizer.dampening != 0.0):
        found.append("nesterov needs a momentum above 0 and no dampening")
    return found


def train_problems(config: TrainConfig) -> list[str]:
    """One sentence for each problem."""
    found = []
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


_OPTIMIZERS: tuple[type[Any], ...] = (FusedSgdConfig, FusedAdagradConfig, FusedRowWiseAdagradConfig)
_OPTIMIZERS += (SgdConfig, AdagradConfig, AdamConfig, AdamWConfig, AdadeltaConfig, RmsPropConfig)
_CHECKS: Mapping[type[Any], Callable[[Any], list[str]]] = {
    MlpConfig: mlp_problems,
    DeepFmConfig: deepfm_problems,
    TrainConfig: train_problems,
    EvalConfig: eval_problems,
    **dict.fromkeys(_OPTIMIZERS, optimizer_problems),
}
