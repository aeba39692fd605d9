"""What of a training run dynamic tables can't have."""

from collections.abc import Mapping

from emberline.train.config.optimizer_configs import FusedAdagradConfig, FusedAdamConfig, FusedRowWiseAdagradConfig, FusedSgdConfig
from emberline.train.config.train_config import TrainConfig
from emberline.train.features.feature import Feature

OPTIMIZERS = {
    FusedSgdConfig: "sgd_optimizer",
    FusedAdagradConfig: "adagrad_optimizer",
    FusedRowWiseAdagradConfig: "rowwise_adagrad_optimizer",
    FusedAdamConfig: "adam_optimizer",
}
"""The sparse optimisers that rows of dynamic tables know: those whose state is of a row alone."""


def dynamic_training_problems(train: TrainConfig, features: Mapping[str, Feature | None]) -> list[str]:
    """What is wrong with how the dynamic tables of these features are to be trained, one sentence each.

    Args:
        train: how.
        features: by name; None for one that has problems of its own.
    """
    dynamic = [name for name, feature in features.items() if feature is not None and feature.use_dynamicemb and feature.trainable]
    if not dynamic or type(train.sparse_optimizer.optimizer) in OPTIMIZERS:
        return []
    known = ", ".join(OPTIMIZERS.values())
    return [f"sparse_optimizer: the dynamic tables of {', '.join(dynamic)} know {known} only; choose one of them, or use zch instead of dynamicemb"]
