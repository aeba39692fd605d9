"""Many requests become one batch, and its answers become theirs again.

Each request is feature-major, and so is the batch: the bags of one feature lie together, request after request. So do the steps of a sequence.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from emberline.schema import FeatureKind, ModelSchema
from emberline.serving.request import CheckedRequest

MOST_PADDING = 1 << 22
"""Steps of padding that requests may cost each other in a batch: one with a very long row would have all others filled up to it."""


@dataclass(frozen=True, eq=False)
class BatchLayout:
    """What of a schema merging needs to know.

    Args:
        num_features: sparse features.
        num_sequences: sequences, sparse and dense.
        sparse: places of the sparse ones among these.
        dense: places of the dense ones among these.
        widths: int64 [dense], numbers of a step of each dense one.
        streams: by a stream's name, the place of the sequence that names it.
        padded: those places of streams that are padded.
    """

    num_features: int
    num_sequences: int
    sparse: list[int]
    dense: list[int]
    widths: npt.NDArray[np.int64]
    streams: Mapping[str, int]
    padded: list[int]

    @classmethod
    def of(cls, schema: ModelSchema) -> Self:
        """The layout of a model's requests."""
        sequences = schema.sequences
        dense = [place for place, feature in enumerate(sequences) if feature.kind is FeatureKind.DENSE]
        names = [feature.name for feature in sequences]
        return cls(
            num_features=len(schema.sparse_features),
            num_sequences=len(sequences),
            sparse=[place for place in range(len(sequences)) if place not in dense],
            dense=dense,
            widths=np.array([sequences[place].value_dim for place in dense], np.int64),
            streams={stream.name: names.index(stream.name) for stream in schema.streams},
            padded=[names.index(stream.name) for stream in schema.streams if stream.padded],
        )


@dataclass(frozen=True, eq=False)
class MergedBatch:
    """Some requests as one.

    Args:
        request: the batch.
        layout: of all of them.
        num_rows: rows of each request, in order.
        num_ids: ids of each request, in order.
        places: int64 [N]: where each of the batch's ids lies in the requests' ids laid end to end; None for a single request.
        sides: the users and the rows of tiled requests, each merged; None for others.
        user_steps: of tiled requests: int32 [B], steps that each row has of its user, by the streams that are the user's.
    """

    request: CheckedRequest
    layout: BatchLayout
    num_rows: tuple[int, ...]
    num_ids: tuple[int, ...]
    places: npt.NDArray[np.int64] | None
    sides: "tuple[MergedBatch, MergedBatch] | None" = None
    user_steps: Mapping[str, npt.NDArray[np.int32]] = field(default_factory=dict)

    def split_rows(self, answer: Tensor) -> tuple[Tensor, ...]:
        """An answer with one entry for each row, by request."""
        return torch.split(answer, list(self.num_rows))

    def split_ids(self, answer: Tensor) -> tuple[Tensor, ...]:
        """An answer with one entry for each id, by request, each in its request's own order."""
        if self.places is not None:
            back = torch.empty_like(answer)
            back[torch.from_numpy(self.places).to(answer.device)] = answer
            answer = back
        return torch.split(answer, list(self.num_ids))

    def split_steps(self, answer: Tensor, stream: str) -> tuple[Tensor, ...]:
        """An answer with one entry for each step of a stream, row after row, by request."""
        return torch.split(answer, [int(steps.sum(dtype=np.int64)) for steps in self._steps_of(stream)])

    def split_padded(self, answer: Tensor, stream: str) -> tuple[Tensor, ...]:
        """An answer [B, L, ...] with a row's steps of a stream in each row, by request, each as long as its own longest row."""
        longest = [int(steps.max()) if steps.size else 0 for steps in self._steps_of(stream)]
        return tuple(part[:, :most] for part, most in zip(self.split_rows(answer), longest, strict=True))

    @property
    def pads_too_much(self) -> bool:
        """Whether rows are filled up by so many steps more than in batches of their own that the requests had better be answered one by one."""
        found = 0
        for stream, place in self.layout.streams.items():
            if place in self.layout.padded:
                alone = [(steps.size, int(steps.max()) if steps.size else 0) for steps in self._steps_of(stream)]
                most = max(longest for _, longest in alone)
                found += sum(rows * (most - longest) for rows, longest in alone)
        return found > MOST_PADDING

    def _steps_of(self, stream: str) -> list[npt.NDArray[np.int32]]:
        """Steps of each row of a stream, by request."""
        batch = self if self.sides is None else self.sides[1]
        steps = self.user_steps.get(stream)
        if steps is None:
            steps = batch.request.steps.reshape(batch.layout.num_sequences, batch.request.num_rows)[batch.layout.streams[stream]]
        return np.split(steps, np.cumsum(self.num_rows)[:-1])


def merge(requests: Sequence[CheckedRequest], layout: BatchLayout) -> MergedBatch:
    """One batch from at least one request for the same model; requests without weights get 1 where another one has them."""
    num_rows = tuple(request.num_rows for request in requests)
    num_ids = tuple(request.ids.size for request in requests)
    if len(requests) == 1:
        return MergedBatch(requests[0], layout, num_rows, num_ids, None)
    lengths = np.concatenate([request.lengths.reshape(layout.num_features, request.num_rows) for request in requests], axis=1)
    places = _places(lengths, np.array(num_rows))
    weights = _or_ones([request.weights for request in requests], num_ids, np.float32)
    batch = CheckedRequest(
        ids=np.concatenate([request.ids for request in requests])[places],
        lengths=lengths.reshape(-1),
        weights=None if weights is None else weights[places],
        dense=np.concatenate([request.dense for request in requests]),
        num_rows=sum(num_rows),
        checked_for=requests[0].checked_for,
        **(_merged_steps(requests, layout) if layout.num_sequences else {}),
    )
    return MergedBatch(batch, layout, num_rows, num_ids, places)


def _merged_steps(requests: Sequence[CheckedRequest], layout: BatchLayout) -> dict[str, Any]:
    """The sequences of the batch, arrays by field of the request."""
    tables = [request.steps.reshape(layout.num_sequences, request.num_rows) for request in requests]
    num_rows = np.array([request.num_rows for request in requests])
    steps = np.concatenate(tables, axis=1)
    found: dict[str, Any] = {"steps": steps.reshape(-1)}
    counts = [int(table[layout.sparse].sum(dtype=np.int64)) for table in tables]
    sizes = _or_ones([request.step_lengths for request in requests], counts, np.int32)
    if sizes is not None:
        found["step_lengths"] = sizes[_places(steps[layout.sparse], num_rows)]
    if layout.dense:
        numbers = np.concatenate([request.dense_steps for request in requests])
        found["dense_steps"] = numbers[_places(steps[layout.dense] * layout.widths[:, None], num_rows)]
    return found


def _or_ones(parts: Sequence[npt.NDArray[Any] | None], sizes: Sequence[int], dtype: type[np.generic]) -> npt.NDArray[Any] | None:
    """The parts end to end, with ones for those that are not there; None where none is."""
    if all(part is None for part in parts):
        return None
    found: npt.NDArray[Any] = np.concatenate([np.ones(size, dtype) if part is None else part for part, size in zip(parts, sizes, strict=True)])
    return found


def _places(lengths: npt.NDArray[Any], num_rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Where each of the batch's items lies in the requests' items laid end to end.

    Args:
        lengths: [F, B] of the batch: items of each feature and row.
        num_rows: int64 [R]: rows of each request; they add up to B.
    """
    ends = np.zeros((lengths.shape[0], lengths.shape[1] + 1), np.int64)
    lengths.cumsum(axis=1, out=ends[:, 1:])
    totals = np.diff(ends[:, num_rows.cumsum()], axis=1, prepend=0)  # [F, R]: items of each feature and request, in the batch's order
    in_requests = totals.T.cumsum().reshape(totals.T.shape).T - totals
    sizes = totals.reshape(-1)
    shifts: npt.NDArray[np.int64] = np.repeat(in_requests.reshape(-1) - (sizes.cumsum() - sizes), sizes)
    return shifts + np.arange(shifts.size)
