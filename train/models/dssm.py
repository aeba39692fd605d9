"""DSSM (Huang et al., 2013, "Learning Deep Structured Semantic Models for Web Search using Clickthrough Data")."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from emberline.errors import ConfigError
from emberline.schema import OutputSpec, TowerSpec
from emberline.train.config.model_config import DssmConfig, Similarity, TowerConfig
from emberline.train.embedding import EmbeddingGroup
from emberline.train.features.feature import BASE_DATA_GROUP
from emberline.train.models.groups import check_all_read, check_groups
from emberline.train.models.mlp import MLP
from emberline.train.models.tasks import ITEM_EMBEDDING, LOGITS, USER_EMBEDDING

_MODEL = "dssm"


class Tower(nn.Module):
    """An MLP and a linear layer over one group: group tensors -> one vector a row. A program of its own: it reads no other group.

    Args:
        in_dim: width of the group.
        config: group and MLP.
        output_dim: D, width of the vector.
        unit_length: whether vectors are scaled to length 1; one of zeros stays as it is.
    """

    def __init__(self, in_dim: int, config: TowerConfig, output_dim: int, *, unit_length: bool = False) -> None:
        super().__init__()
        self.input = config.input
        self.unit_length = unit_length
        self.mlp = MLP(in_dim, config.mlp)
        self.output = nn.Linear(self.mlp.out_dim, output_dim)

    def forward(self, groups: dict[str, Tensor]) -> Tensor:
        """[B, D]."""
        vectors: Tensor = self.output(self.mlp(groups[self.input]))
        return functional.normalize(vectors, dim=1) if self.unit_length else vectors


class DssmHead(nn.Module):
    """Two towers; their vectors' similarity, divided by the temperature, is the logit.

    With negatives, the item's group has more rows than the user's: those of the rows' own items come first, and only they have a logit.

    Groups: the user's [B, Du] and the item's [B, Di].

    Raises:
        ConfigError: a group is missing, is a sequence, is read by no tower, or both towers read one.
    """

    def __init__(self, embedding_group: EmbeddingGroup, config: DssmConfig) -> None:
        super().__init__()
        sides = {"user": config.user_tower, "item": config.item_tower}
        inputs = [tower.input for tower in sides.values()]
        check_groups(embedding_group, inputs, _MODEL)
        check_all_read(embedding_group, inputs, _MODEL)
        if inputs[0] == inputs[1]:
            raise ConfigError(f"{_MODEL}: both towers read the feature group {inputs[0]!r}; give each a group of its own")
        groups = {group.name: group for group in embedding_group.registry.groups}
        if groups[inputs[0]].data_group != BASE_DATA_GROUP:
            raise ConfigError(f"{_MODEL}: the user's feature group {inputs[0]!r} reads columns with negatives; only an item has those")
        self.temperature = config.temperature
        self.output_dim = config.output_dim
        unit_length = config.similarity is Similarity.COSINE
        towers = {
            side: Tower(embedding_group.group_total_dim(tower.input), tower, config.output_dim, unit_length=unit_length)
            for side, tower in sides.items()
        }
        self.towers: Any = nn.ModuleDict(towers)

    @property
    def vectors(self) -> tuple[OutputSpec, ...]:
        """The towers' vectors, as outputs."""
        return tuple(OutputSpec(name=name, width=self.output_dim) for name in (USER_EMBEDDING, ITEM_EMBEDDING))

    @property
    def tower_specs(self) -> tuple[TowerSpec, ...]:
        """What can be exported apart."""
        outputs = (("user", USER_EMBEDDING), ("item", ITEM_EMBEDDING))
        return tuple(TowerSpec(name=side, groups=(self.towers[side].input,), output=output) for side, output in outputs)

    def forward(self, groups: dict[str, Tensor]) -> dict[str, Tensor]:
        """`logits` [B], `user_tower_emb` [B, D], `item_tower_emb` [rows of the item's group, D]."""
        users, items = self.towers["user"](groups), self.towers["item"](groups)
        own = items[: users.shape[0]]
        return {LOGITS: torch.sum(users * own, dim=1) / self.temperature, USER_EMBEDDING: users, ITEM_EMBEDDING: items}


class TowerHead(nn.Module):
    """One tower as a whole model's head.

    Args:
        tower: the tower.
        output: the output's name.
    """

    def __init__(self, tower: Tower, output: str) -> None:
        super().__init__()
        self.tower = tower
        self.output = output

    def forward(self, groups: dict[str, Tensor]) -> dict[str, Tensor]:
        """The tower's vectors [B, D], by the output's name."""
        return {self.output: self.tower(groups)}
