"""The MLP that scores a step against the query. Letters: B rows, K steps, D width of a step, H width of the first layer."""

from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from emberline.train.batch_norm import normalise
from emberline.train.config.activations import Dice
from emberline.train.encoders.steps import Steps, without_float16

if TYPE_CHECKING:
    from emberline.train.config.model_config import MlpConfig


class AttentionMlp(nn.Module):
    """An MLP and a linear layer: from query and step to one score.

    In training, batch normalisation (that of Dice too) takes its statistics over the steps that are there, and over no padding, so that
    an answer does not depend on how long the batch's longest row is, and the running statistics are those of real steps.

    Args:
        in_dim: width of the MLP's input: a multiple of D.
        config: of the MLP.
    """

    def __init__(self, in_dim: int, config: "MlpConfig") -> None:
        super().__init__()
        # Imported here, since the package of models imports the embedding system, and that the encoders.
        from emberline.train.models.mlp import MLP

        self.mlp = MLP(in_dim, config)
        self.linear = nn.Linear(self.mlp.out_dim, 1)

    def first_weights(self, parts: int) -> tuple[Tensor, ...]:
        """The first layer's weight, cut into `parts` of [H, D]."""
        return self._first().weight.chunk(parts, dim=1)

    def forward(self, query: Tensor, steps: Steps, query_weight: Tensor, step_weight: Tensor, product_weight: Tensor) -> Tensor:
        """Scores [B, K] of MLP(W_q q + W_s s + W_p (q * s) + b).

        The part of the query is computed once a row; W_p (q * s) = (W_p diag(q)) s, so that nothing as large as [B, K, D] is built.

        Args:
            query: q [B, D].
            steps: s [B, K, D] in `values`.
            query_weight: W_q [H, D].
            step_weight: W_s [H, D].
            product_weight: W_p [H, D].
        """
        with without_float16():
            query, values = query.to(query_weight.dtype), steps.values.to(query_weight.dtype)
            of_query = functional.linear(query, query_weight, self._first().bias).unsqueeze(1)
            weights = step_weight + product_weight * query.unsqueeze(1)  # [B, H, D]
            hidden = torch.baddbmm(of_query, values, weights.transpose(1, 2))
            for layer in list(self.mlp.layers)[1:]:
                hidden = _apply(layer, hidden, steps.present)
            scores: Tensor = self.linear(hidden)
            return scores.squeeze(2)

    def _first(self) -> nn.Linear:
        return cast(nn.Linear, self.mlp.layers[0])


def padded_query(query: Tensor, sequence_dim: int, query_dim: int) -> Tensor:
    """A query [B, query_dim] with zeros on the right, up to the width of a step."""
    return functional.pad(query, (0, sequence_dim - query_dim)) if query_dim < sequence_dim else query


def _apply(layer: nn.Module, x: Tensor, present: Tensor) -> Tensor:
    """One layer on [B, K, H], where only the steps that are `present` [B, K] count; torch takes the second dimension for the channels."""
    if isinstance(layer, nn.BatchNorm1d):
        return normalise(layer, x, present)
    if isinstance(layer, Dice):
        share = torch.sigmoid(normalise(layer.bn, x, present))
        return x * (share + layer.alpha * (1.0 - share))
    if isinstance(layer, nn.PReLU):
        return torch.where(x > 0, x, x * layer.weight)
    out: Tensor = layer(x)
    return out
