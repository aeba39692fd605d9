"""From a config to a model."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from emberline.train.config.model_config import (
    CustomModelConfig,
    DeepFmConfig,
    DlrmConfig,
    DssmConfig,
    MmoeConfig,
    ModelConfig,
    MultiTowerDinConfig,
    WideAndDeepConfig,
)
from emberline.train.config.pipeline import PipelineConfig
from emberline.train.config.table_reads import WideTables
from emberline.train.embedding import EmbeddingGroup
from emberline.train.embedding.construct import OUTPUT_DTYPES
from emberline.train.features import Feature, create_features
from emberline.train.models.create_tasks import create_tasks
from emberline.train.models.custom import check_head, create_custom_head
from emberline.train.models.deepfm import DeepFmHead
from emberline.train.models.dlrm import DlrmHead
from emberline.train.models.dssm import DssmHead
from emberline.train.models.mmoe import MmoeHead
from emberline.train.models.model import RecModel
from emberline.train.models.multi_tower_din import MultiTowerDinHead
from emberline.train.models.wide_and_deep import WideAndDeepHead


def features_of(config: PipelineConfig) -> list[Feature]:
    """The features of a config, with its data's mode and separator; those that negatives have values of are in data groups of their own.

    Raises:
        ConfigError: as `create_features`.
    """
    data = config.data
    return create_features(config.feature_configs, data.neg_fields, data.fg_mode, data.fg_encoded_multival_sep)


def create_embedding_group(config: PipelineConfig, features: Sequence[Feature], device: torch.device | None = None) -> EmbeddingGroup:
    """The embedding system of a config, which may be without a model.

    Args:
        config: its groups, and what its model says of WIDE groups.
        features: `features_of` it.
        device: where the tables are; `meta` leaves them without memory.

    Raises:
        ConfigError: features and groups do not fit together.
    """
    wide = config.model.wide if config.model is not None else WideTables()
    return EmbeddingGroup(
        features,
        config.feature_groups,
        wide_embedding_dim=wide.dim,
        wide_init_fn=wide.init,
        device=device,
        output_dtype=OUTPUT_DTYPES[config.model.embedding_output_dtype if config.model is not None else "fp32"],
    )


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
    tasks = create_tasks(config)
    group = create_embedding_group(config, features, device)
    if search_paths is None:
        search_paths = [Path(config.source).parent if config.source else Path(), Path()]
    head = _create_head(group, model, search_paths)
    vectors, towers = (head.vectors, head.tower_specs) if isinstance(head, DssmHead) else ((), ())
    widths = {name: width for task in tasks for name, width in task.head_widths.items()} | {spec.name: spec.width for spec in vectors}
    check_head(head, group, widths, f"custom_model {model.class_path!r}" if model.class_path else model.name)
    return RecModel(group, head, [feature.spec for feature in features], tasks, vectors, towers)


def _create_head(group: EmbeddingGroup, config: ModelConfig, search_paths: Sequence[Path]) -> nn.Module:
    match config.model:
        case DlrmConfig():
            return DlrmHead(group, config.model, config.num_class)
        case DeepFmConfig():
            return DeepFmHead(group, config.model, config.num_class)
        case WideAndDeepConfig():
            return WideAndDeepHead(group, config.model, config.num_class)
        case MultiTowerDinConfig():
            return MultiTowerDinHead(group, config.model, config.num_class)
        case DssmConfig():
            return DssmHead(group, config.model)
        case MmoeConfig():
            return MmoeHead(group, config.model)
        case CustomModelConfig():
            return create_custom_head(group, config.model, search_paths)
