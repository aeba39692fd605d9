"""One tower of a trained model as a model of its own: with its own features, tables and output, and no others."""

from dataclasses import replace
from typing import cast

import torch

from emberline.errors import CheckpointError
from emberline.train.checkpoint import names
from emberline.train.checkpoint.id_maps import copy_id_maps
from emberline.train.checkpoint.trained import Trained
from emberline.train.embedding import EmbeddingGroup
from emberline.train.embedding.collections import RowReader
from emberline.train.models import RecModel
from emberline.train.models.dssm import DssmHead, TowerHead


def tower_of(trained: Trained, name: str, reader: RowReader | None = None) -> Trained:
    """The tower, in eval mode; its tables are copies, its layers are the model's own.

    Args:
        trained: a model with towers, as `load_trained` gives it.
        name: of the tower, such as `user` or `item`.
        reader: what the model reads rows of its tables by, where those are on `meta`: the tower does so too.

    Returns:
        the same as `trained`, but with the tower's features and a model whose only output is the tower's vector [B, D].

    Raises:
        CheckpointError: the model has no such tower.
    """
    towers = {tower.name: tower for tower in trained.model.towers}
    if name not in towers:
        raise CheckpointError(f"{trained.path}: its model has no tower {name!r}; its towers are {', '.join(towers) or 'none'}")
    tower = towers[name]
    groups = [group for group in trained.config.feature_groups if group.group_name in tower.groups]
    read = {name for group in groups for name in group.all_feature_names}
    features = tuple(feature for feature in trained.features if feature.name in read)
    head = TowerHead(cast(DssmHead, trained.model.head).towers[name], tower.output)
    vectors = [spec for spec in trained.model.vectors if spec.name == tower.output]
    device = None if reader is None else "meta"
    embedding_group = EmbeddingGroup(features, groups, device=device, output_dtype=trained.model.embedding_group.output_dtype)
    if reader is not None:
        embedding_group.read_rows_by(reader)
    model = RecModel(embedding_group, head, [feature.spec for feature in features], (), vectors, (tower,))
    _copy(trained.model, model)
    return replace(trained, features=features, model=model.eval())


def _copy(model: RecModel, tower: RecModel) -> None:
    """Give the tower's tables, id maps and dense embeddings the model's values."""
    source = {**names.table_tensors(model), **names.dense_tensors(model)}
    into = {**names.table_tensors(tower), **{name: value for name, value in names.dense_tensors(tower).items() if name in source}}
    with torch.no_grad():
        for name, value in into.items():
            if not value.is_meta:
                value.copy_(source[name])
    copy_id_maps(model, tower)
