"""Wide & Deep (Cheng et al., 2016, "Wide & Deep Learning for Recommender Systems")."""

import torch
from torch import Tensor, nn

from emberline.errors import ConfigError
from emberline.train.config.model_config import WideAndDeepConfig
from emberline.train.embedding import EmbeddingGroup
from emberline.train.models.groups import check_groups
from emberline.train.models.mlp import MLP, LogitLayer

WIDE_GROUP = "wide"
DEEP_GROUP = "deep"


class WideAndDeepHead(nn.Module):
    """A linear part and an MLP, added up, or joined by a further MLP where `final` is given.

    Groups: `wide` [B, W], whose numbers are added up, and `deep` [B, D].

    Raises:
        ConfigError: a group is missing, or there are several classes and no `final`.
    """

    def __init__(self, embedding_group: EmbeddingGroup, config: WideAndDeepConfig, num_class: int = 1) -> None:
        super().__init__()
        check_groups(embedding_group, (WIDE_GROUP, DEEP_GROUP), "wide_and_deep")
        if config.final is None and num_class > 1:
            raise ConfigError(f"wide_and_deep: {num_class} classes need `final`: without it, the wide part is one number a row")
        self.deep_mlp = MLP(embedding_group.group_total_dim(DEEP_GROUP), config.deep)
        width = self.deep_mlp.out_dim
        self.final_mlp: MLP | None = None
        if config.final is not None:
            self.final_mlp = MLP(1 + width, config.final)
            width = self.final_mlp.out_dim
        self.output = LogitLayer(width, num_class)

    def forward(self, groups: dict[str, Tensor]) -> dict[str, Tensor]:
        """`logits` [B], or [B, C] for C classes."""
        wide = groups[WIDE_GROUP].sum(dim=1)
        deep = self.deep_mlp(groups[DEEP_GROUP])
        if self.final_mlp is None:
            return {"logits": wide + self.output(deep)}
        return {"logits": self.output(self.final_mlp(torch.cat([wide.unsqueeze(1), deep], dim=1)))}
