"""The embedding group and the head as one module."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from torch import Tensor, nn

from emberline.schema import FeatureSpec, ModelSchema, OutputSpec, TowerSpec
from emberline.train.embedding import EmbeddingGroup
from emberline.train.embedding.construct import dtype_name
from emberline.train.models.tasks import Task

if TYPE_CHECKING:
    from emberline.train.data import Batch


class RecModel(nn.Module):
    """A whole model: a batch's features in, outputs by name out.

    Args:
        embedding_group: features -> group tensors.
        head: group tensors -> what the tasks need, by name, such as `{"logits": ...}`.
        features: every feature's spec, in config order.
        tasks: what the model is trained for; they decide the outputs.
        vectors: what else the head gives, handed out as it is.
        towers: parts of the model that can answer by themselves.
    """

    def __init__(
        self,
        embedding_group: EmbeddingGroup,
        head: nn.Module,
        features: Sequence[FeatureSpec],
        tasks: Sequence[Task],
        vectors: Sequence[OutputSpec] = (),
        towers: Sequence[TowerSpec] = (),
    ) -> None:
        super().__init__()
        self.embedding_group = embedding_group
        self.head = head
        self.tasks = tuple(tasks)
        self.vectors = tuple(vectors)
        self.towers = tuple(towers)
        self._features = tuple(features)

    def forward(self, batch: "Batch") -> dict[str, Tensor]:
        """The outputs by name, in schema order."""
        return self.outputs_of(self.head(in_float32(self.embedding_group(batch))))

    def outputs_of(self, found: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The outputs by name, in schema order, from what the head gave."""
        return outputs_by_name(found, self.tasks, self.vectors)

    @property
    def outputs(self) -> tuple[OutputSpec, ...]:
        """Names and widths of what `forward` returns, in its order."""
        return (*(spec for task in self.tasks for spec in task.output_specs), *self.vectors)

    def schema(self) -> ModelSchema:
        """All that serving needs to know of this model."""
        group = self.embedding_group
        return ModelSchema(
            features=self._features,
            tables=group.tables,
            lookups=group.lookups,
            groups=group.groups,
            outputs=self.outputs,
            towers=self.towers,
            group_dtype=dtype_name(group.output_dtype),
            sequence_lookups=group.sequence_lookups,
            streams=group.streams,
        )


def in_float32(groups: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Group tensors as heads take them: float32 whatever type the embedding group declares, so that their weights and sums are; same numbers."""
    return {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in groups.items()}


def outputs_by_name(found: Mapping[str, Tensor], tasks: Sequence[Task], vectors: Sequence[OutputSpec]) -> dict[str, Tensor]:
    """A model's outputs in schema order, from what its head gave, its tasks and its vectors."""
    outputs: dict[str, Tensor] = {}
    for task in tasks:
        outputs.update(task.outputs(found))
    outputs.update({spec.name: found[spec.name] for spec in vectors})
    return outputs
