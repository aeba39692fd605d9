"""Many requests become one batch, and its answers become theirs again.

Each request is feature-major, and so is the batch: the bags of one feature lie together, request after request.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from emberline.serving.request import CheckedRequest


@dataclass(frozen=True, eq=False)
class MergedBatch:
    """Some requests as one.

    Args:
        request: the batch.
        num_rows: rows of each request, in order.
        num_ids: ids of each request, in order.
        places: int64 [N]: where each of the batch's ids lies in the requests' ids laid end to end; None for a single request.
    """

    request: CheckedRequest
    num_rows: tuple[int, ...]
    num_ids: tuple[int, ...]
    places: npt.NDArray[np.int64] | None

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


def merge(requests: Sequence[CheckedRequest], num_features: int) -> MergedBatch:
    """One batch from at least one request for the same model; requests without weights get 1 where another one has them."""
    num_rows = tuple(request.num_rows for request in requests)
    num_ids = tuple(request.ids.size for request in requests)
    if len(requests) == 1:
        return MergedBatch(requests[0], num_rows, num_ids, None)
    lengths = np.concatenate([request.lengths.reshape(num_features, request.num_rows) for request in requests], axis=1)
    places = _places(lengths, np.array(num_rows))
    weights = None
    if any(request.weights is not None for request in requests):
        filled = [np.ones(request.ids.size, np.float32) if request.weights is None else request.weights for request in requests]
        weights = np.concatenate(filled)[places]
    batch = CheckedRequest(
        ids=np.concatenate([request.ids for request in requests])[places],
        lengths=lengths.reshape(-1),
        weights=weights,
        dense=np.concatenate([request.dense for request in requests]),
        num_rows=sum(num_rows),
        checked_for=requests[0].checked_for,
    )
    return MergedBatch(batch, num_rows, num_ids, places)


def _places(lengths: npt.NDArray[np.int32], num_rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Where each of the batch's ids lies in the requests' ids laid end to end.

    Args:
        lengths: int32 [F, B] of the batch.
        num_rows: int64 [R]: rows of each request; they add up to B.
    """
    ends = np.zeros((lengths.shape[0], lengths.shape[1] + 1), np.int64)
    lengths.cumsum(axis=1, out=ends[:, 1:])
    totals = np.diff(ends[:, num_rows.cumsum()], axis=1, prepend=0)  # [F, R]: ids of each feature and request, in the batch's order
    in_requests = totals.T.cumsum().reshape(totals.T.shape).T - totals
    sizes = totals.reshape(-1)
    shifts: npt.NDArray[np.int64] = np.repeat(in_requests.reshape(-1) - (sizes.cumsum() - sizes), sizes)
    return shifts + np.arange(shifts.size)
