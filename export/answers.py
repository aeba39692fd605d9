"""What an artifact must answer: what the trained model does in eval mode, with vectors for unknown ids in the place of its fallback rows."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from emberline.encoding import EncodedColumns, Jagged
from emberline.export.row_source import RowSource
from emberline.export.unknown import UnknownPlan
from emberline.schema import ModelSchema, UnknownIds
from emberline.serving.request import PackedRequest
from emberline.train.data import batch_from_encoded
from emberline.train.models import RecModel
from emberline.train.models.model import in_float32

Answers = tuple[dict[str, Tensor], dict[str, Tensor]]
"""Outputs and group tensors, both by name in schema order, as float32."""


def model_answers(model: RecModel, schema: ModelSchema, encoded: EncodedColumns) -> Answers:
    """The trained model's outputs and group tensors as it is."""
    batch = batch_from_encoded(model.embedding_group.features, encoded)
    with torch.no_grad():
        groups = model.embedding_group(batch)
        outputs = model(batch)
    return _named(schema, outputs, in_float32(groups))


class WantedAnswers:
    """The answers that an artifact with a plan for unknown ids must give.

    Args:
        model: unsharded, in eval mode, its rows read by `rows`.
        rows: of its tables. While an answer is reckoned, fallback rows are others there.
        plan: what unknown ids read.
    """

    def __init__(self, model: RecModel, rows: RowSource, plan: UnknownPlan) -> None:
        self._model = model
        self._rows = rows
        self._plan = plan
        self._schema = model.schema()

    def __call__(self, encoded: EncodedColumns) -> Answers:
        """The trained model's answers; where a feature's unknown ids read a vector of their own, it lies in the table's fallback rows meanwhile."""
        own = {policy for policy in self._plan.policies.values() if policy in (UnknownIds.ZEROS, UnknownIds.MEAN)}
        if not own:
            return model_answers(self._model, self._schema, encoded)
        group = self._model.embedding_group
        batch = batch_from_encoded(group.features, encoded)
        with torch.no_grad():
            pooled = group.lookup(batch)
            for policy in sorted(own):
                columns = self._columns_of(policy)
                with self._rows.instead(self._in_fallback_rows(policy)):
                    pooled[:, columns] = group.lookup(batch)[:, columns]
            groups = in_float32(group.assemble(pooled, group.dense(batch)))
            outputs = self._model.outputs_of(self._model.head(groups))
        return _named(self._schema, outputs, groups)

    def refused(self, encoded: EncodedColumns) -> dict[str, int]:
        """The features that hold ids to be refused, each with the first row that has one."""
        found = {}
        for name, unknown in self._unknown(encoded).items():
            if unknown.any():
                found[name] = int(np.searchsorted(encoded.sparse[name].lengths.cumsum(), int(unknown.argmax()), side="right"))
        return found

    def without_refused(self, encoded: EncodedColumns, request: PackedRequest) -> tuple[EncodedColumns, PackedRequest]:
        """The same rows, and the request that came with them, without the ids that are to be refused."""
        keep = {name: ~unknown for name, unknown in self._unknown(encoded).items()}
        sparse = {name: _kept(jagged, keep[name]) if name in keep else jagged for name, jagged in encoded.sparse.items()}
        order = [feature.name for feature in self._schema.sparse_features]
        in_request = np.concatenate([keep[name] if name in keep else np.ones(encoded.sparse[name].values.size, np.bool_) for name in order])
        assert request.ids is not None
        assert request.lengths is not None
        flat = _kept(Jagged(request.ids.reshape(-1), request.lengths.reshape(-1), request.weights), in_request)
        return EncodedColumns(encoded.num_rows, sparse, encoded.dense), PackedRequest(flat.values, flat.lengths, flat.weights, request.dense)

    def _unknown(self, encoded: EncodedColumns) -> dict[str, npt.NDArray[np.bool_]]:
        """By feature whose unknown ids are refused: whether each of its ids is one, bool [ids]."""
        refusing = [name for name, policy in self._plan.policies.items() if policy is UnknownIds.ERROR]
        return {name: ~np.isin(encoded.sparse[name].values, self._plan.known_ids[name]) for name in refusing}

    def _columns_of(self, policy: UnknownIds) -> list[int]:
        """The columns of the pooled tensor that features of a policy read, of tables that have unknown ids."""
        columns: list[int] = []
        start = 0
        for lookup in self._schema.lookups:
            if self._plan.policies.get(lookup.feature) is policy and lookup.table in self._plan.fallback_rows:
                columns += range(start, start + lookup.dim)
            start += lookup.dim
        return columns

    def _in_fallback_rows(self, policy: UnknownIds) -> dict[str, tuple[Tensor, Tensor]]:
        """Of each table that has a vector for a policy, its fallback rows and that vector."""
        return {table: (self._plan.fallback_rows[table], vectors[policy]) for table, vectors in self._plan.vectors.items() if policy in vectors}


def _named(schema: ModelSchema, outputs: Mapping[str, Tensor], groups: Mapping[str, Tensor]) -> Answers:
    return {output.name: outputs[output.name] for output in schema.outputs}, {group.name: groups[group.name] for group in schema.groups}


def _kept(jagged: Jagged, keep: npt.NDArray[np.bool_]) -> Jagged:
    """The bags with only some of their ids, in order."""
    bags = np.repeat(np.arange(jagged.lengths.size), jagged.lengths)
    lengths = np.bincount(bags[keep], minlength=jagged.lengths.size).astype(np.int32)
    return Jagged(jagged.values[keep], lengths, None if jagged.weights is None else jagged.weights[keep])
