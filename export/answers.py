"""What an artifact must answer: what the trained model does in eval mode, with vectors for unknown ids in the place of its fallback rows."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from emberline.encoding import EncodedColumns, Jagged, JaggedSteps
from emberline.export.row_source import RowSource
from emberline.export.unknown import UnknownPlan
from emberline.schema import ModelSchema, UnknownIds
from emberline.serving.request import PackedRequest
from emberline.train.data import batch_from_encoded
from emberline.train.models import RecModel
from emberline.train.models.model import in_float32

Answers = tuple[dict[str, Tensor], dict[str, Tensor]]
"""Outputs and group tensors, both by name in schema order, as float32; numbers of steps as int64."""


def model_answers(model: RecModel, schema: ModelSchema, encoded: EncodedColumns) -> Answers:
    """The trained model's outputs and group tensors as it is."""
    batch = batch_from_encoded(model.embedding_group.features, encoded)
    with torch.no_grad():
        groups = in_float32(model.embedding_group(batch))
        outputs = model.outputs_of(model.head(groups))  # what `model(batch)` is, without reading all rows again
    return _named(schema, outputs, groups)


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
            pooled, sequences = group.lookup(batch), group.sequence_lookup(batch)
            for policy in sorted(own):
                columns, keys = self._columns_of(policy), self._steps_of(policy)
                with self._rows.instead(self._in_fallback_rows(policy)):
                    pooled[:, columns] = group.lookup(batch)[:, columns]
                    sequences.values.update({key: values for key, values in group.sequence_lookup(batch).values.items() if key in keys})
            groups = in_float32(group.assemble(pooled, group.dense(batch), sequences))
            outputs = self._model.outputs_of(self._model.head(groups))
        return _named(self._schema, outputs, groups)

    def refused(self, encoded: EncodedColumns) -> dict[str, int]:
        """The features that hold ids to be refused, each with the first row that has one."""
        found = {}
        for name, unknown in self._unknown(encoded).items():
            if unknown.any():
                found[name] = int(np.searchsorted(_bags(encoded, name).lengths.cumsum(), int(unknown.argmax()), side="right"))
        return found

    def without_refused(self, encoded: EncodedColumns, request: PackedRequest) -> tuple[EncodedColumns, PackedRequest]:
        """The same rows, and the request that came with them, without the ids that are to be refused."""
        keep = {name: ~unknown for name, unknown in self._unknown(encoded).items()}
        all_kept = {feature.name: np.ones(_bags(encoded, feature.name).values.size, np.bool_) for feature in self._schema.sparse_features} | keep
        return _only_kept(encoded, keep), self._without(request, all_kept)

    def answerable(self, encoded: EncodedColumns) -> EncodedColumns:
        """The same rows without the ids that are to be refused."""
        return _only_kept(encoded, {name: ~unknown for name, unknown in self._unknown(encoded).items()})

    def _without(self, request: PackedRequest, keep: Mapping[str, npt.NDArray[np.bool_]]) -> PackedRequest:
        """A request with only some of its ids; steps that lose theirs stay.

        Args:
            request: well-formed.
            keep: of each sparse feature, bool [ids].
        """
        assert request.ids is not None
        assert request.lengths is not None
        in_request = np.concatenate([keep[feature.name] for feature in self._schema.sparse_features])
        flat = _kept(Jagged(request.ids.reshape(-1), request.lengths.reshape(-1), request.weights), in_request)
        found = replace(
            PackedRequest(dense=request.dense, dense_steps=request.dense_steps), ids=flat.values, lengths=flat.lengths, weights=flat.weights
        )
        names = [feature.name for feature in self._schema.sparse_sequences]
        if not names:
            return found
        lengths = dict(zip([feature.name for feature in self._schema.sparse_features], request.lengths.reshape(len(keep), -1), strict=True))
        in_steps = np.concatenate([keep[name] for name in names])
        sizes = np.ones(in_steps.size, np.int32) if request.step_lengths is None else request.step_lengths.reshape(-1)
        steps = np.concatenate([lengths[name] for name in names]) if request.steps is None else request.steps
        return replace(found, steps=steps, step_lengths=_kept(Jagged(in_steps.astype(np.int64), sizes), in_steps).lengths)

    def _unknown(self, encoded: EncodedColumns) -> dict[str, npt.NDArray[np.bool_]]:
        """By feature whose unknown ids are refused: whether each of its ids is one, bool [ids]."""
        refusing = [name for name, policy in self._plan.policies.items() if policy is UnknownIds.ERROR]
        return {name: ~np.isin(_bags(encoded, name).values, self._plan.known_ids[name]) for name in refusing}

    def _steps_of(self, policy: UnknownIds) -> set[str]:
        """The keys of the lookups that keep steps, of features of a policy and tables that have unknown ids."""
        reads = self._schema.sequence_lookups
        return {read.key for read in reads if self._plan.policies.get(read.feature) is policy and read.table in self._plan.fallback_rows}

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
    named = {group.name: groups[group.name].long() if group.is_lengths else groups[group.name] for group in schema.groups}
    return {output.name: outputs[output.name] for output in schema.outputs}, named


def _bags(encoded: EncodedColumns, name: str) -> Jagged:
    """A sparse feature's ids of each row, its steps forgotten."""
    return encoded.sparse[name] if name in encoded.sparse else encoded.sparse_sequences[name].bags()


def _only_kept(encoded: EncodedColumns, keep: Mapping[str, npt.NDArray[np.bool_]]) -> EncodedColumns:
    """The rows with only some of the ids of some features."""
    sparse = {name: _kept(jagged, keep[name]) if name in keep else jagged for name, jagged in encoded.sparse.items()}
    sequences = {name: _kept_steps(steps, keep[name]) if name in keep else steps for name, steps in encoded.sparse_sequences.items()}
    return replace(encoded, sparse=sparse, sparse_sequences=sequences)


def _kept_steps(steps: JaggedSteps, keep: npt.NDArray[np.bool_]) -> JaggedSteps:
    """The steps with only some of their ids."""
    kept = _kept(Jagged(steps.values, steps.step_lengths, steps.weights), keep)
    return JaggedSteps(kept.values, kept.lengths, steps.lengths, kept.weights)


def _kept(jagged: Jagged, keep: npt.NDArray[np.bool_]) -> Jagged:
    """The bags with only some of their ids, in order."""
    bags = np.repeat(np.arange(jagged.lengths.size), jagged.lengths)
    lengths = np.bincount(bags[keep], minlength=jagged.lengths.size).astype(np.int32)
    return Jagged(jagged.values[keep], lengths, None if jagged.weights is None else jagged.weights[keep])
