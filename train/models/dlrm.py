"""DLRM (Naumov et al., 2019, "Deep Learning Recommendation Model for Personalization and Recommendation Systems")."""

import torch
from torch import Tensor, nn

from emberline.errors import ConfigError
from emberline.train.config.model_config import DlrmConfig
from emberline.train.embedding import EmbeddingGroup
from emberline.train.models.interaction import DotInteraction
from emberline.train.models.mlp import MLP, LogitLayer

DENSE_GROUP = "dense"
SPARSE_GROUP = "sparse"


class DlrmHead(nn.Module):
    """Numbers through an MLP, then the inner products of all pairs of that vector and the embeddings, then an MLP.

    Groups: `dense` [B, D], and `sparse` [B, F * E] of F embeddings that all have the width E of the dense MLP's last layer.

    Raises:
        ConfigError: a group is missing, or widths differ.
    """

    def __init__(self, embedding_group: EmbeddingGroup, config: DlrmConfig, num_class: int = 1) -> None:
        super().__init__()
        missing = [name for name in (DENSE_GROUP, SPARSE_GROUP) if not embedding_group.has_group(name)]
        if missing:
            raise ConfigError(f"dlrm needs the feature groups {DENSE_GROUP!r} and {SPARSE_GROUP!r}; missing: {', '.join(missing)}")
        self.dense_mlp = MLP(embedding_group.group_total_dim(DENSE_GROUP), config.dense_mlp)
        self.dim = self.dense_mlp.out_dim
        widths = embedding_group.group_feature_dims(SPARSE_GROUP)
        other = [f"{name} has {width}" for name, width in widths.items() if width != self.dim]
        if other:
            wanted = f"every feature of the group {SPARSE_GROUP!r} must be as wide as dense_mlp's last layer, {self.dim}"
            raise ConfigError(f"dlrm: {wanted}; {', '.join(other)}")
        self.with_sparse = config.arch_with_sparse
        self.num_sparse = len(widths)
        self.interaction = DotInteraction(1 + self.num_sparse)
        width = self.dim + self.interaction.out_dim + (self.dim * self.num_sparse if self.with_sparse else 0)
        self.final_mlp = MLP(width, config.final)
        self.output = LogitLayer(self.final_mlp.out_dim, num_class)

    def forward(self, groups: dict[str, Tensor]) -> dict[str, Tensor]:
        """`logits` [B], or [B, C] for C classes."""
        sparse = groups[SPARSE_GROUP]
        dense = self.dense_mlp(groups[DENSE_GROUP])
        vectors = torch.cat([dense, sparse], dim=1).reshape(-1, 1 + self.num_sparse, self.dim)
        parts = [dense, self.interaction(vectors)]
        if self.with_sparse:
            parts.append(sparse)
        return {"logits": self.output(self.final_mlp(torch.cat(parts, dim=1)))}
