"""What was looked up of users and of rows, as the programs of untiled requests take it: what is a user's is repeated in each of the user's rows.

    user.pooled [U, Pu] ─ repeated ─┐
    item.pooled [B, Pi] ────────────┴─ columns in the schema's order ─► pooled [B, P]

Letters: U users, B rows, P columns.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter

import torch
from torch import Tensor

from emberline.program_inputs import full_inputs, step_inputs
from emberline.schema import ModelSchema
from emberline.serving.tiled_inputs import step_places

Run = tuple[bool, int, int]
"""Columns that lie side by side: whether they are the user's, and from where to where they are in that side's own matrix."""


class TileSpreader:
    """Makes the inputs that `program_inputs` lists of those of both sides, for one model.

    Args:
        schema: the model's description.
    """

    def __init__(self, schema: ModelSchema) -> None:
        per_user = {feature.name: feature.is_per_user for feature in schema.features}
        self._pooled = list(_runs([(per_user[lookup.feature], lookup.dim) for lookup in schema.lookups]))
        self._dense = _dense_runs(schema)
        self._streams = [(stream.name, per_user[stream.name], stream.padded) for stream in schema.streams]
        user = schema.part(per_user=True)
        self._user_steps = {f"steps.{key}": stream for key, stream, _ in step_inputs(user)}

    def __call__(self, user: Mapping[str, Tensor], item: Mapping[str, Tensor], rows: Tensor) -> dict[str, Tensor]:
        """The inputs of a batch, by name.

        Args:
            user: the inputs of the users, as if they were rows, by the names of `program_inputs`.
            item: the inputs of the rows.
            rows: int64 [B], the user of each row.
        """
        found = {"pooled": _interleave(self._pooled, user["pooled"], item["pooled"], rows)}
        found["dense"] = _interleave(self._dense, user["dense"], item["dense"], rows)
        found |= {name: values for name, values in item.items() if name.startswith("steps.")}
        places = {stream: step_places(user[f"lengths.{stream}"], rows) for stream in set(self._user_steps.values())}
        found |= {name: user[name].index_select(0, places[stream]) for name, stream in self._user_steps.items()}
        for stream, is_user, padded in self._streams:
            lengths = user[f"lengths.{stream}"].index_select(0, rows) if is_user else item[f"lengths.{stream}"]
            found[f"lengths.{stream}"] = lengths
            if padded:
                found[f"positions.{stream}"] = _positions(lengths)
        return found


class FullSpreader:
    """Makes the inputs that `full_inputs` lists of those of both sides, for one model.

    Args:
        schema: the model's description.
    """

    def __init__(self, schema: ModelSchema) -> None:
        user = schema.part(per_user=True)
        self._dense = _dense_runs(schema)
        self._user_pooled = [lookup.key for lookup in user.lookups]
        streams = {feature: stream.name for stream in user.streams for feature in stream.features}
        self._user_stepped = [(lookup.key, streams[lookup.feature]) for lookup in user.sequence_lookups]
        self._user_numbers = [(key, stream) for key, stream, _ in step_inputs(user) if key not in dict(self._user_stepped)]
        self._padded = [stream.name for stream in schema.streams if stream.padded]
        self._names = [given.name for given in full_inputs(schema)]

    def __call__(self, user: Mapping[str, Tensor], item: Mapping[str, Tensor], rows: Tensor) -> dict[str, Tensor]:
        """The inputs of a batch, by name.

        Args:
            user: the inputs of the users, as if they were rows.
            item: the inputs of the rows.
            rows: int64 [B], the user of each row.
        """
        found = dict(item) | {"dense": _interleave(self._dense, user["dense"], item["dense"], rows)}
        for key in self._user_pooled:
            _repeat(found, user, rows, f"lengths.{key}", f"rows.{key}", f"weights.{key}")
        for name in user:
            if name.startswith("step_counts."):
                found[name] = user[name].index_select(0, rows)
        for key, stream in self._user_stepped:
            steps = step_places(user[f"step_counts.{stream}"], rows)
            _repeat(found, user, steps, f"step_lengths.{key}", f"step_rows.{key}", f"step_weights.{key}")
        for key, stream in self._user_numbers:
            found[f"steps.{key}"] = user[f"steps.{key}"].index_select(0, step_places(user[f"step_counts.{stream}"], rows))
        found |= {f"positions.{stream}": _positions(found[f"step_counts.{stream}"]) for stream in self._padded}
        return {name: found[name] for name in self._names}


def _repeat(found: dict[str, Tensor], user: Mapping[str, Tensor], rows: Tensor, lengths: str, *items: str) -> None:
    """Add lengths, and those items of theirs that are there, of the entries at `rows`."""
    places = step_places(user[lengths], rows)
    found[lengths] = user[lengths].index_select(0, rows)
    found.update({name: user[name].index_select(0, places) for name in items if name in user})


def _positions(lengths: Tensor) -> Tensor:
    """0, 1, ... to the largest of some lengths, that one left out."""
    return torch.arange(int(lengths.max()) if lengths.numel() else 0, device=lengths.device)


def _dense_runs(schema: ModelSchema) -> list[Run]:
    """Those of the dense features without steps."""
    return list(_runs([(feature.is_per_user, feature.value_dim) for feature in schema.dense_features]))


def _runs(columns: Sequence[tuple[bool, int]]) -> Iterator[Run]:
    """Neighbours of one side, of features by side and width."""
    ends = {True: 0, False: 0}
    for per_user, run in groupby(columns, key=itemgetter(0)):
        start = ends[per_user]
        ends[per_user] += sum(dim for _, dim in run)
        yield per_user, start, ends[per_user]


def _interleave(runs: Sequence[Run], user: Tensor, item: Tensor, rows: Tensor) -> Tensor:
    """Both sides' columns in the schema's order: [B, P]."""
    user = user.index_select(0, rows)
    parts = [(user if per_user else item)[:, start:stop] for per_user, start, stop in runs]
    return torch.cat(parts, dim=1) if parts else item
