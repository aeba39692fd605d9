"""From a config to a model."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from emberline.errors import ConfigError
from emberline.train.config.model_config import (
    BinaryCrossEntropyConfig,
    CustomModelConfig,
    DeepFmConfig,
    DlrmConfig,
    ModelConfig,
    SoftmaxCrossEntropyConfig,
)
from emberline.train.config.pipeline import PipelineConfig
from emberline.train.embedding import EmbeddingGroup
from emberline.train.features import Feature, create_features
from emberline.train.models.custom import check_head, create_custom_head
from emberline.train.models.deepfm import DeepFmHead
from emberline.train.models.dlrm import DlrmHead
from emberline.train.models.model import RecModel


def features_of(config: PipelineConfig) -> list[Feature]:
    """The features of a config, with its data's mode and separator.

    Raises:
        ConfigError: as `create_features`.
    """
    return create_features(config.feature_configs, fg_mode=config.data.fg_mode, encoded_separator=config.data.fg_encoded_multival_sep)


def build_model(
    config: PipelineConfig,
    features: Sequence[Feature],
    device: torch.device | None = None,
    *,
    search_paths: Sequence[Path] | None = None,
) -> RecModel:
    """The model that a config describes, with initial weights drawn from torch's generator.

    Args:
        config: the whole config; its `model` part must be there.
        features: `create_features` of its feature configs.
        device: where the embedding tables are; `meta` leaves them without memory, for sharding. The rest is on the CPU.
        search_paths: folders that a user's own module may be imported from; by default the config's and the working directory.

    Raises:
        ConfigError: the model does not fit its groups or losses, or a user's own module cannot be used.
    """
    model = config.need_model()
    _check_losses(model, config.source)
    wide = model.model if isinstance(model.model, DeepFmConfig) else None
    group = EmbeddingGroup(
        features,
        config.feature_groups,
        wide_embedding_dim=wide.wide_embedding_dim if wide else None,
        wide_init_fn=wide.wide_init_fn if wide else None,
        device=device,
    )
    if device is not None and device.type == "meta":
        _materialize(group.emb_impls)
    if search_paths is None:
        search_paths = [Path(config.source).parent if config.source else Path(), Path()]
    head = _create_head(group, model, search_paths)
    check_head(head, group, model.num_class, f"custom_model {model.class_path!r}" if model.class_path else model.name)
    return RecModel(group, head, [feature.spec for feature in features], model.num_class, model.losses)


def _materialize(module: nn.Module) -> None:
    """Give parameters on the meta device memory on the CPU, and initial values."""
    module.to_empty(device=torch.device("cpu"))
    for part in module.modules():
        reset = getattr(part, "reset_parameters", None)
        if callable(reset):
            reset()


def _create_head(group: EmbeddingGroup, config: ModelConfig, search_paths: Sequence[Path]) -> nn.Module:
    match config.model:
        case DlrmConfig():
            return DlrmHead(group, config.model, config.num_class)
        case DeepFmConfig():
            return DeepFmHead(group, config.model, config.num_class)
        case CustomModelConfig():
            return create_custom_head(group, config.model, search_paths)


def _check_losses(config: ModelConfig, source: str) -> None:
    """Losses and classes that belong together."""
    kinds = {type(loss) for loss in config.losses}
    if not kinds:
        raise ConfigError("model_config has no losses; add binary_cross_entropy {}", source)
    if len(kinds) > 1:
        raise ConfigError("model_config has losses of several kinds, which need different outputs; keep one", source)
    if SoftmaxCrossEntropyConfig in kinds and config.num_class < 2:
        raise ConfigError(f"softmax_cross_entropy needs num_class of at least 2, found {config.num_class}", source)
    if SoftmaxCrossEntropyConfig not in kinds and config.num_class != 1:
        name = "binary_cross_entropy" if BinaryCrossEntropyConfig in kinds else "l2_loss"
        raise ConfigError(f"{name} needs num_class 1, found {config.num_class}; for several classes use softmax_cross_entropy", source)
