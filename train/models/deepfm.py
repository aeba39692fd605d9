"""DeepFM (Guo et al., 2017, "DeepFM: A Factorization-Machine based Neural Network for CTR Prediction")."""

import torch
from torch import Tensor, nn

from emberline.errors import ConfigError
from emberline.train.config.model_config import DeepFmConfig
from emberline.train.embedding import EmbeddingGroup
from emberline.train.models.interaction import FactorizationMachine
from emberline.train.models.mlp import MLP, LogitLayer

WIDE_GROUP = "wide"
DEEP_GROUP = "deep"
FM_GROUP = "fm"


class DeepFmHead(nn.Module):
    """A linear part, second-order interactions and an MLP, added up, or joined by a further MLP where `final` is given.

    Groups: `wide` [B, W], `deep` [B, D], and `fm` [B, F * E] of F vectors of one width; without `fm`, the vectors are those of `deep`.

    Raises:
        ConfigError: a group is missing, vectors of the interaction differ in width, or there are several classes and no `final`.
    """

    def __init__(self, embedding_group: EmbeddingGroup, config: DeepFmConfig, num_class: int = 1) -> None:
        super().__init__()
        missing = [name for name in (WIDE_GROUP, DEEP_GROUP) if not embedding_group.has_group(name)]
        if missing:
            raise ConfigError(f"deepfm needs the feature groups {WIDE_GROUP!r} and {DEEP_GROUP!r}; missing: {', '.join(missing)}")
        self.fm_group = FM_GROUP if embedding_group.has_group(FM_GROUP) else DEEP_GROUP
        widths = embedding_group.group_feature_dims(self.fm_group)
        if len(set(widths.values())) > 1:
            listed = ", ".join(f"{name} has {width}" for name, width in widths.items())
            hint = "" if self.fm_group == FM_GROUP else f", or add a group {FM_GROUP!r} of those features that interact"
            raise ConfigError(f"deepfm: every feature of the group {self.fm_group!r} must have the same width{hint}; {listed}")
        if config.final is None and num_class > 1:
            raise ConfigError(f"deepfm: {num_class} classes need `final`: without it, the wide and FM parts are one number a row")
        self.num_vectors, self.dim = len(widths), next(iter(widths.values()))
        self.fm = FactorizationMachine()
        self.deep_mlp = MLP(embedding_group.group_total_dim(DEEP_GROUP), config.deep)
        width = self.deep_mlp.out_dim
        self.final_mlp: MLP | None = None
        if config.final is not None:
            self.final_mlp = MLP(1 + self.dim + width, config.final)
            width = self.final_mlp.out_dim
        self.output = LogitLayer(width, num_class)

    def forward(self, groups: dict[str, Tensor]) -> dict[str, Tensor]:
        """`logits` [B], or [B, C] for C classes."""
        wide = groups[WIDE_GROUP].sum(dim=1)
        fm = self.fm(groups[self.fm_group].reshape(-1, self.num_vectors, self.dim))
        deep = self.deep_mlp(groups[DEEP_GROUP])
        if self.final_mlp is None:
            return {"logits": wide + fm.sum(dim=1) + self.output(deep)}
        return {"logits": self.output(self.final_mlp(torch.cat([wide.unsqueeze(1), fm, deep], dim=1)))}
