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
    tables = [request.lengths.reshape(num_features, -1) if num_features else request.lengths.reshape(0, 0) for request in requests]
    places = _places(np.stack([table.sum(axis=1, dtype=np.int64) for table in tables]))
    weights = None
    if any(request.weights is not None for request in requests):
        filled = [np.ones(request.ids.size, np.float32) if request.weights is None else request.weights for request in requests]
        weights = np.concatenate(filled)[places]
    batch = CheckedRequest(
        ids=np.concatenate([request.ids for request in requests])[places],
        lengths=np.concatenate(tables, axis=1).reshape(-1),
        weights=weights,
        dense=np.concatenate([request.dense for request in requests]),
        num_rows=sum(num_rows),
        checked_for=requests[0].checked_for,
    )
    return MergedBatch(batch, num_rows, num_ids, places)


def _places(totals: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Where the batch's ids come from.

    Args:
        totals: int64 [R, F]: ids of each request and feature; the requests' ids laid end to end run in this order, the
            batch's in that of its transpose.
    """
    ends = totals.cumsum().reshape(totals.shape)
    starts = (ends - totals).T.reshape(-1)
    sizes = totals.T.reshape(-1)
    shifts: npt.NDArray[np.int64] = np.repeat(starts - (sizes.cumsum() - sizes), sizes)
    return shifts + np.arange(shifts.size)
