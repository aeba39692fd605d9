"""The embedding group and the head as one module, and its two halves as programs for export.

Letters used in shapes: B rows, P summed width of all pooled lookups, D summed width of all dense features that are no sequences, C classes.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from torch import Tensor, nn

from emberline.program_inputs import program_inputs
from emberline.schema import FeatureSpec, ModelSchema, OutputSpec, TowerSpec
from emberline.train.embedding import EmbeddingGroup, SequenceParts
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
        return _outputs(found, self.tasks, self.vectors)

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


class DenseProgram(nn.Module):
    """From what was looked up to the model's outputs: what an artifact's `outputs` program holds. It has no tables inside."""

    def __init__(self, model: RecModel) -> None:
        super().__init__()
        self.groups = GroupsOf(model)
        self.head = model.head
        self._tasks, self._vectors = model.tasks, model.vectors
        self.train(model.training)

    def forward(self, pooled: Tensor, dense: Tensor, *steps: Tensor) -> tuple[Tensor, ...]:
        """The inputs that `program_inputs` lists -> the outputs in schema order."""
        found = self.head(self.groups(pooled, dense, *steps))
        return tuple(_outputs(found, self._tasks, self._vectors).values())


class GroupsProgram(nn.Module):
    """From what was looked up to the group tensors: what an artifact's `groups` program holds. It has no tables inside."""

    def __init__(self, model: RecModel) -> None:
        super().__init__()
        self.groups = GroupsOf(model)
        self._names = tuple(group.name for group in model.embedding_group.groups)
        self.train(model.training)

    def forward(self, pooled: Tensor, dense: Tensor, *steps: Tensor) -> tuple[Tensor, ...]:
        """The inputs that `program_inputs` lists -> the group tensors in schema order, floats as float32 whatever they were rounded to."""
        groups = self.groups(pooled, dense, *steps)
        # A program that hands out what it was given would share memory with its caller, which not every format can.
        return tuple(_not_among(groups[name], (pooled, dense, *steps)) for name in self._names)


class GroupsOf(nn.Module):
    """The embedding group behind its lookups, sharing all parameters, but without the tables."""

    def __init__(self, model: RecModel) -> None:
        super().__init__()
        self.embedding_group = _without_tables(model.embedding_group)
        self._inputs = tuple(wanted.name for wanted in program_inputs(model.schema()))[2:]
        self._streams = model.embedding_group.streams

    def forward(self, pooled: Tensor, dense: Tensor, *steps: Tensor) -> dict[str, Tensor]:
        """The inputs that `program_inputs` lists -> all group tensors by name, floats as float32."""
        given = dict(zip(self._inputs, steps, strict=True))
        parts = SequenceParts({name.removeprefix("steps."): tensor for name, tensor in given.items() if name.startswith("steps.")}, {}, {})
        for stream in self._streams:
            for name in stream.features:  # each of them may be the first of some group, which asks by its name
                parts.lengths[name] = given[f"lengths.{stream.name}"]
                if stream.padded:
                    parts.positions[name] = given[f"positions.{stream.name}"]
        return in_float32(self.embedding_group.assemble(pooled, dense, parts))


def _not_among(tensor: Tensor, others: Sequence[Tensor]) -> Tensor:
    return tensor.clone() if any(tensor is other for other in others) else tensor


def in_float32(groups: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Group tensors as heads take them: float32 whatever type the embedding group declares, so that their weights and sums are; same numbers."""
    return {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in groups.items()}


def _outputs(found: Mapping[str, Tensor], tasks: Sequence[Task], vectors: Sequence[OutputSpec]) -> dict[str, Tensor]:
    outputs: dict[str, Tensor] = {}
    for task in tasks:
        outputs.update(task.outputs(found))
    outputs.update({spec.name: found[spec.name] for spec in vectors})
    return outputs


def _without_tables(group: EmbeddingGroup) -> EmbeddingGroup:
    """The same group, sharing all parameters, but without the tables, which `assemble` does not need."""
    twin = copy.copy(group)
    twin._modules = {name: module for name, module in group._modules.items() if module not in (group.pooled, group.sequence_tables)}
    return twin
