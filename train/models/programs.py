"""What stands behind a model's lookups, as programs for export: from what was looked up to group tensors, or on to the outputs.

    program_inputs ─► assemble ───────┐
    tiled_inputs ───► assemble_tiled ─┴─► group tensors ─► head ─► outputs

Letters: U users, B rows, D width.
"""

import copy
import itertools
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from emberline.program_inputs import program_inputs, tiled_inputs, tiled_streams
from emberline.schema import ModelSchema
from emberline.train.embedding import EmbeddingGroup, SequenceParts, SideParts, TiledParts
from emberline.train.models.model import RecModel, in_float32, outputs_by_name


class DenseProgram(nn.Module):
    """From what was looked up to the model's outputs: what an artifact's `outputs` program holds. It has no tables inside.

    Args:
        model: shares all parameters.
        tiled: of tiled requests.
    """

    def __init__(self, model: RecModel, *, tiled: bool = False) -> None:
        super().__init__()
        self.groups = groups_of(model, tiled=tiled)
        self.head = model.head
        self._tasks, self._vectors = model.tasks, model.vectors
        self.train(model.training)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The inputs that `program_inputs`, or `tiled_inputs`, lists -> the outputs in schema order."""
        found = self.head(self.groups(*inputs))
        return tuple(outputs_by_name(found, self._tasks, self._vectors).values())


class GroupsProgram(nn.Module):
    """From what was looked up to the group tensors: what an artifact's `groups` program holds. It has no tables inside.

    Args:
        model: shares all parameters.
        tiled: of tiled requests.
    """

    def __init__(self, model: RecModel, *, tiled: bool = False) -> None:
        super().__init__()
        self.groups = groups_of(model, tiled=tiled)
        self._names = tuple(group.name for group in model.embedding_group.groups)
        self.train(model.training)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The inputs that `program_inputs`, or `tiled_inputs`, lists -> the group tensors in schema order, floats as float32."""
        groups = self.groups(*inputs)
        # A program that hands out what it was given would share memory with its caller, which not every format can.
        return tuple(_not_among(groups[name], inputs) for name in self._names)


def groups_of(model: RecModel, *, tiled: bool) -> nn.Module:
    """The embedding group behind its lookups, sharing all parameters, but without the tables: from a program's inputs to group tensors by name."""
    return TiledGroupsOf(model) if tiled else GroupsOf(model)


class GroupsOf(nn.Module):
    """See `groups_of`."""

    def __init__(self, model: RecModel) -> None:
        super().__init__()
        self.embedding_group, schema = _without_tables(model.embedding_group), model.schema()
        self._inputs = tuple(wanted.name for wanted in program_inputs(schema))
        # Each of a stream's features may be the first of some group, which asks by its name.
        self._lengths = {name: stream.name for stream in schema.streams for name in stream.features}
        self._positions = _positions(schema)

    def forward(self, *inputs: Tensor) -> dict[str, Tensor]:
        """The inputs that `program_inputs` lists -> all group tensors by name, floats as float32."""
        given = dict(zip(self._inputs, inputs, strict=True))
        parts = SequenceParts(_steps(given), _each(given, "lengths", self._lengths), _each(given, "positions", self._positions))
        return in_float32(self.embedding_group.assemble(given["pooled"], given["dense"], parts))


class TiledGroupsOf(nn.Module):
    """See `groups_of`; what is the users' alone is reckoned once for each of them."""

    def __init__(self, model: RecModel) -> None:
        super().__init__()
        self.embedding_group, schema = _without_tables(model.embedding_group), model.schema()
        self._inputs = tuple(wanted.name for wanted in tiled_inputs(schema))
        user, item = (schema.part(per_user=per_user) for per_user in (True, False))
        self._lengths = {name: stream.name for part in (user, item) for stream in part.streams for name in stream.features}
        self._positions = _positions(schema)
        jagged = {stream.user for stream in tiled_streams(schema) if stream.jagged}
        self._places = {name: stream.name for stream in user.streams if stream.name in jagged for name in stream.features}
        sides = model.embedding_group.sides
        self._user_dense = _DenseColumns(user, [feature.name for feature in sides.user.dense])
        self._item_dense = _DenseColumns(item, [feature.name for feature in sides.item.dense])

    def forward(self, *inputs: Tensor) -> dict[str, Tensor]:
        """The inputs that `tiled_inputs` lists -> all group tensors by name, of B rows, floats as float32."""
        given = dict(zip(self._inputs, inputs, strict=True))
        # Names tell the sides apart: it does not matter which of them brings a sequence.
        steps = SequenceParts(_steps(given), _each(given, "lengths", self._lengths), _each(given, "positions", self._positions))
        user = SideParts(given["user.pooled"], self._user_dense(given["user.dense"]), steps)
        item = SideParts(given["pooled"], self._item_dense(given["dense"]), SequenceParts({}, {}, {}))
        return in_float32(self.embedding_group.assemble_tiled(TiledParts(user, item, given["rows"], _each(given, "places", self._places))))


class _DenseColumns:
    """Of the numbers of a schema's dense features those of some, side by side: [B, D]."""

    def __init__(self, schema: ModelSchema, wanted: Sequence[str]) -> None:
        widths = {feature.name: feature.value_dim for feature in schema.dense_features}
        ends = dict(zip(widths, itertools.accumulate(widths.values()), strict=True))
        self._parts = None if list(widths) == list(wanted) else [(ends[name] - widths[name], ends[name]) for name in wanted]

    def __call__(self, dense: Tensor) -> Tensor:
        if self._parts is None:
            return dense
        return torch.cat([dense[:, :0], *(dense[:, start:stop] for start, stop in self._parts)], dim=1)


def _positions(schema: ModelSchema) -> dict[str, str]:
    """The stream of each feature of padded streams."""
    return {name: stream.name for stream in schema.streams if stream.padded for name in stream.features}


def _steps(given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix("steps."): tensor for name, tensor in given.items() if name.startswith("steps.")}


def _each(given: Mapping[str, Tensor], kind: str, streams: Mapping[str, str]) -> dict[str, Tensor]:
    """By feature, an input of its stream."""
    return {name: given[f"{kind}.{stream}"] for name, stream in streams.items()}


def _not_among(tensor: Tensor, others: Sequence[Tensor]) -> Tensor:
    return tensor.clone() if any(tensor is other for other in others) else tensor


def _without_tables(group: EmbeddingGroup) -> EmbeddingGroup:
    """The same group, sharing all parameters, but without the tables, which `assemble` does not need."""
    twin = copy.copy(group)
    twin._modules = {name: module for name, module in group._modules.items() if module not in (group.pooled, group.sequence_tables)}
    return twin
