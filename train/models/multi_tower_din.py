"""Towers side by side, those over sequences with attention (Zhou et al., 2018, "Deep Interest Network for Click-Through Rate Prediction")."""

import torch
from torch import Tensor, nn

from emberline.errors import ConfigError
from emberline.schema import GroupKind
from emberline.train.config.model_config import MultiTowerDinConfig
from emberline.train.embedding import EmbeddingGroup
from emberline.train.embedding.columns import QUERY, SEQUENCE, SEQUENCE_LENGTH
from emberline.train.encoders import DinEncoderConfig, build_encoder
from emberline.train.models.groups import check_all_read, check_groups
from emberline.train.models.mlp import MLP, LogitLayer

_MODEL = "multi_tower_din"


class MultiTowerDinHead(nn.Module):
    """MLPs over groups and DIN attention over sequence groups, in that order, joined by an MLP.

    Groups: those that `towers` name, each [B, D], and those that `din_towers` name: query [B, Dq], sequence [B, L, Ds] and its lengths [B].

    Raises:
        ConfigError: a group is missing, of another kind, or read by no tower; a query is missing or wider than its sequence.
    """

    def __init__(self, embedding_group: EmbeddingGroup, config: MultiTowerDinConfig, num_class: int = 1) -> None:
        super().__init__()
        self.inputs = tuple(tower.input for tower in config.towers)
        self.din_inputs = tuple(tower.input for tower in config.din_towers)
        if not self.inputs + self.din_inputs:
            raise ConfigError(f"{_MODEL}: has no tower; name the groups in towers and din_towers")
        check_groups(embedding_group, self.inputs, f"{_MODEL}: towers")
        check_groups(embedding_group, self.din_inputs, f"{_MODEL}: din_towers", (GroupKind.SEQUENCE,))
        check_all_read(embedding_group, self.inputs + self.din_inputs, _MODEL)
        self.towers = nn.ModuleList(MLP(embedding_group.group_total_dim(tower.input), tower.mlp) for tower in config.towers)
        self.din_towers = nn.ModuleList()
        width = sum(tower.mlp.hidden_units[-1] for tower in config.towers)
        for tower in config.din_towers:
            query_dim, step_dim = (embedding_group.group_total_dim(f"{tower.input}.{part}") for part in (QUERY, SEQUENCE))
            self.din_towers.append(build_encoder(DinEncoderConfig(input=tower.input, attn_mlp=tower.attn_mlp), query_dim, step_dim))
            width += step_dim
        self.final_mlp = MLP(width, config.final)
        self.output = LogitLayer(self.final_mlp.out_dim, num_class)

    def forward(self, groups: dict[str, Tensor]) -> dict[str, Tensor]:
        """`logits` [B], or [B, C] for C classes."""
        parts = [tower(groups[name]) for name, tower in zip(self.inputs, self.towers, strict=True)]
        for name, tower in zip(self.din_inputs, self.din_towers, strict=True):
            query, sequence, lengths = (groups[f"{name}.{part}"] for part in (QUERY, SEQUENCE, SEQUENCE_LENGTH))
            parts.append(tower(query, sequence, lengths))
        return {"logits": self.output(self.final_mlp(torch.cat(parts, dim=1)))}
