"""Requests whose arrays are on the engine's device already: checked and merged there, with one look from the host for a whole batch.

Only what is ordinary is: exact types, no steps, no users. Whatever is out of the ordinary, or wrong, goes to the host (`DeviceRequest.to_host`) and
the long way, which gives the same answers, and names what is wrong.

Letters: B rows of the batch, R requests, F sparse features, N ids of the batch, D dense floats a row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from emberline.schema import ModelSchema
from emberline.serving.lookup.bags import PackedBags
from emberline.serving.packed_request import PackedRequest
from emberline.serving.request_rows import id_bounds, most_ids

_MOST_BOUND = 2**63 - 1


@dataclass(frozen=True, eq=False)
class DeviceRequest:
    """One request as `PackedRequest` has it, each array a tensor on one device, of shape [n] or [1, n]. Making one checks nothing.

    Args:
        ids: int64 or int32 [N], feature after feature.
        lengths: int32 or int64 [F * B].
        weights: float32 [N], or None: all 1.
        dense: float32 [B * D]; None where the model has none.
    """

    ids: Tensor
    lengths: Tensor
    weights: Tensor | None = None
    dense: Tensor | None = None

    @property
    def num_bytes(self) -> int:
        """Of all of them."""
        return sum(part.nbytes for part in (self.ids, self.lengths, self.weights, self.dense) if part is not None)

    def to_host(self) -> PackedRequest:
        """The same request in the host's memory."""
        return PackedRequest(_on_host(self.ids), _on_host(self.lengths), _on_host(self.weights), _on_host(self.dense))


@dataclass(frozen=True, eq=False)
class DeviceBatch:
    """Some requests as one, checked.

    Args:
        bags: of all of them.
        sizes: ids of each feature.
        dense: float32 [B, D].
        num_rows: rows of each request, in order.
        num_ids: ids of each request, in order.
        places: int64 [N]: where each of the batch's ids lies in the requests' ids laid end to end; None for a single request.
    """

    bags: PackedBags
    sizes: list[int]
    dense: Tensor
    num_rows: list[int]
    num_ids: list[int]
    places: Tensor | None

    def split_ids(self, answer: Tensor) -> tuple[Tensor, ...]:
        """An answer with one entry for each id, by request, each in its request's own order."""
        if self.places is not None:
            answer = torch.empty_like(answer).index_copy_(0, self.places, answer)
        return torch.split(answer, self.num_ids)


class DeviceMerger:
    """Checks and merges requests for one model, on one device. Any number of threads may use it.

    Args:
        schema: the model's description.
        device: where requests are.
    """

    def __init__(self, schema: ModelSchema, device: torch.device) -> None:
        features = schema.sparse_features
        bounds = [(-(2**63), _MOST_BOUND) if bound > _MOST_BOUND else (0, bound) for bound in id_bounds(schema)]
        rows = [getattr(feature.encoder, "oov_row", None) for feature in features]
        self._device = torch.empty(0, device=device).device  # `cuda` by itself has no number
        self._num_features, self._dense_dim, self._weighted = len(features), schema.dense_dim, schema.has_weights
        self._least, self._largest = (torch.tensor([bound[end] for bound in bounds], dtype=torch.int64, device=device) for end in (0, 1))
        self._oov_rows = torch.tensor([-1 if row is None else row for row in rows], dtype=torch.int64, device=device)
        self._most = torch.tensor([most_ids(feature) for feature in features], dtype=torch.int64, device=device)[:, None]
        self._takes_any = bool(features) and not schema.sequences and not schema.streams

    def is_ordinary(self, request: DeviceRequest) -> bool:
        """Whether types and sizes, as far as they are known without a look at numbers, are those of a request that may be merged here."""
        ids, lengths, weights, dense = request.ids, request.lengths, request.weights, request.dense
        given = [part for part in (ids, lengths, weights, dense) if part is not None]
        if not self._takes_any or any(not (part.dim() == 1 or (part.dim() == 2 and part.shape[0] == 1)) for part in given):
            return False
        if any(part.device != self._device for part in given) or not {ids.dtype, lengths.dtype} <= {torch.int32, torch.int64}:
            return False
        if any(part.dtype != torch.float32 for part in (weights, dense) if part is not None):
            return False
        if weights is not None and not (self._weighted and weights.numel() == ids.numel()):
            return False
        num_rows, rest = divmod(lengths.numel(), self._num_features)
        return rest == 0 and num_rows > 0 and (0 if dense is None else dense.numel()) == num_rows * self._dense_dim

    def __call__(self, requests: Sequence[DeviceRequest]) -> tuple[DeviceBatch, list[bool]]:
        """The batch of at least one ordinary request, and which of them may be wrong: where one is, the batch is no good.

        One that is wrong may shift what others have: these may be told of too though they are right, or not though they are wrong. So what is left
        without those that are told of is to be merged again.
        """
        num_rows = [request.lengths.numel() // self._num_features for request in requests]
        num_ids = [request.ids.numel() for request in requests]
        told_sizes = torch.tensor([list(accumulate(num_rows)), num_ids, list(accumulate(num_ids, initial=0))[:-1]])
        rows_end, id_counts, begins = told_sizes.to(self._device, non_blocking=True).unbind(0)
        lengths = torch.cat([request.lengths.reshape(self._num_features, -1).long() for request in requests], dim=1)
        offsets = torch.zeros(self._num_features, lengths.shape[1] + 1, dtype=torch.int64, device=self._device)
        torch.cumsum(lengths, dim=1, out=offsets[:, 1:])
        totals = offsets[:, rows_end].diff(dim=1, prepend=offsets[:, :1])  # [F, R]: ids of each feature and request
        request_of_row = torch.searchsorted(rows_end, torch.arange(lengths.shape[1], device=self._device), right=True)
        wrong = totals.sum(0) != id_counts
        wrong = wrong | _any_of(((lengths < 0) | (lengths > self._most)).any(0), request_of_row, len(requests))

        feature_of, request_of, places = self._places(totals, begins, sum(num_ids))
        ids = torch.cat([request.ids.reshape(-1).long() for request in requests])[places]
        outside = (ids < self._least[feature_of]) | (ids > self._largest[feature_of])
        oov_rows = self._oov_rows[feature_of]
        ids = torch.where(outside & (oov_rows >= 0), oov_rows, ids)
        wrong = wrong | _any_of(outside & (oov_rows < 0), request_of, len(requests))

        weights = _weights(requests, num_ids)
        if weights is not None:
            weights = weights[places]
            wrong = wrong | _any_of(~weights.isfinite(), request_of, len(requests))
        dense = [request.dense.reshape(-1, self._dense_dim) for request in requests if request.dense is not None and self._dense_dim]
        numbers = torch.cat(dense) if dense else torch.empty(lengths.shape[1], 0, dtype=torch.float32, device=self._device)
        wrong = wrong | _any_of((~numbers.isfinite()).any(1), request_of_row, len(requests))

        told = torch.cat([wrong.long(), offsets[:, -1]]).tolist()  # the one look from the host
        moved = places if len(requests) > 1 else None
        batch = DeviceBatch(PackedBags(ids, offsets, weights), told[len(requests) :], numbers, num_rows, num_ids, moved)
        return batch, [bool(one) for one in told[: len(requests)]]

    def _places(self, totals: Tensor, begins: Tensor, total: int) -> tuple[Tensor, Tensor, Tensor]:
        """For each of the batch's ids [N]: its feature, its request, and where it lies in the requests' ids laid end to end.

        Whatever `totals` [F, R] are, all are within bounds: nobody has looked at them yet. `begins` [R] is where each request's ids begin.
        """
        num_requests = begins.numel()
        sources = (begins + totals.cumsum(0) - totals).reshape(-1)  # of each run of ids of one feature and request
        ends = totals.reshape(-1).cumsum(0)
        at = torch.arange(total, device=self._device)
        run = torch.searchsorted(ends, at, right=True).clamp_(max=ends.numel() - 1)
        places = (sources[run] + at - (ends - totals.reshape(-1))[run]).clamp_(0, max(0, total - 1))
        return run // num_requests, run % num_requests, places


def _on_host(tensor: Tensor | None) -> npt.NDArray[Any] | None:
    if tensor is None:
        return None
    found: npt.NDArray[Any] = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy(force=True)  # numpy has no bfloat16
    return found


def _any_of(where: Tensor, group_of: Tensor, num_groups: int) -> Tensor:
    """Whether any of each group's entries is true: bool [groups]."""
    return torch.zeros(num_groups, dtype=torch.int64, device=where.device).index_add_(0, group_of, where.long()) > 0


def _weights(requests: Sequence[DeviceRequest], num_ids: Sequence[int]) -> Tensor | None:
    """The weights end to end, 1 for those of requests without; None where no request has any."""
    if all(request.weights is None for request in requests):
        return None
    return torch.cat(
        [
            torch.ones(count, dtype=torch.float32, device=request.ids.device) if request.weights is None else request.weights.reshape(-1)
            for request, count in zip(requests, num_ids, strict=True)
        ]
    )
