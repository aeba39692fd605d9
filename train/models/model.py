"""The embedding group and the head as one module, and its two halves as programs for export.

Letters used in shapes: B rows, P summed width of all lookups, D summed width of all dense features, C classes.
"""

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from emberline.schema import FeatureSpec, ModelSchema, OutputSpec
from emberline.train.config.model_config import L2LossConfig, LossConfig
from emberline.train.embedding import EmbeddingGroup

if TYPE_CHECKING:
    from emberline.train.data import Batch

LOGITS = "logits"
PROBS = "probs"
VALUE = "y"


class RecModel(nn.Module):
    """A whole model: a batch's features in, outputs by name out.

    Outputs: `logits` and `probs` for a model of yes-or-no labels ([B]) or of C classes ([B, C]); `y` ([B]) for squared error.

    Args:
        embedding_group: features -> group tensors.
        head: group tensors -> `{"logits": ...}`.
        features: every feature's spec, in config order.
        num_class: 1, or C.
        losses: what the model is trained for; it decides the outputs.
    """

    def __init__(
        self, embedding_group: EmbeddingGroup, head: nn.Module, features: Sequence[FeatureSpec], num_class: int, losses: Sequence[LossConfig]
    ) -> None:
        super().__init__()
        self.embedding_group = embedding_group
        self.head = head
        self.num_class = num_class
        self._features = tuple(features)
        self._is_value = all(isinstance(loss, L2LossConfig) for loss in losses)

    def forward(self, batch: "Batch") -> dict[str, Tensor]:
        """The outputs by name, in schema order."""
        return self.outputs_of(self.head(self.embedding_group(batch))[LOGITS])

    def outputs_of(self, logits: Tensor) -> dict[str, Tensor]:
        """The outputs by name, in schema order, from what the head said: [B] or [B, C]."""
        return _outputs(logits, self.num_class, self._is_value)

    def raw_output(self, outputs: dict[str, Tensor]) -> Tensor:
        """What losses and metrics read: [B] or [B, C]."""
        return outputs[VALUE if self._is_value else LOGITS]

    @property
    def outputs(self) -> tuple[OutputSpec, ...]:
        """Names and widths of what `forward` returns, in its order."""
        width = 0 if self.num_class == 1 else self.num_class
        return tuple(OutputSpec(name=name, width=width) for name in ((VALUE,) if self._is_value else (LOGITS, PROBS)))

    def schema(self) -> ModelSchema:
        """All that serving needs to know of this model."""
        group = self.embedding_group
        return ModelSchema(features=self._features, tables=group.tables, lookups=group.lookups, groups=group.groups, outputs=self.outputs)


class DenseProgram(nn.Module):
    """From looked-up vectors and numbers to the model's outputs: what an artifact's `outputs` program holds. It has no tables inside."""

    def __init__(self, model: RecModel) -> None:
        super().__init__()
        self.embedding_group = _without_tables(model.embedding_group)
        self.head = model.head
        self._num_class, self._is_value = model.num_class, model._is_value
        self.train(model.training)

    def forward(self, pooled: Tensor, dense: Tensor) -> tuple[Tensor, ...]:
        """Pooled [B, P], dense [B, D] -> the outputs in schema order."""
        logits = self.head(self.embedding_group.assemble(pooled, dense))[LOGITS]
        return tuple(_outputs(logits, self._num_class, self._is_value).values())


class GroupsProgram(nn.Module):
    """From looked-up vectors and numbers to the group tensors: what an artifact's `groups` program holds. It has no tables inside."""

    def __init__(self, model: RecModel) -> None:
        super().__init__()
        self.embedding_group = _without_tables(model.embedding_group)
        self.train(model.training)

    def forward(self, pooled: Tensor, dense: Tensor) -> tuple[Tensor, ...]:
        """Pooled [B, P], dense [B, D] -> the group tensors in schema order."""
        groups = self.embedding_group.assemble(pooled, dense)
        return tuple(groups[group.name] for group in self.embedding_group.groups)


def _outputs(logits: Tensor, num_class: int, is_value: bool) -> dict[str, Tensor]:
    if is_value:
        return {VALUE: logits}
    return {LOGITS: logits, PROBS: torch.sigmoid(logits) if num_class == 1 else torch.softmax(logits, dim=1)}


def _without_tables(group: EmbeddingGroup) -> EmbeddingGroup:
    """The same group, sharing all parameters, but without the tables, which `assemble` does not need."""
    twin = copy.copy(group)
    twin._modules = {name: module for name, module in group._modules.items() if module is not group.pooled}
    return twin
