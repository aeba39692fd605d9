"""The bags of one batch, cut by feature."""

from dataclasses import dataclass
from typing import Any, Self

import numpy.typing as npt
import torch
from torch import Tensor

from emberline.serving.request import CheckedRequest


@dataclass(frozen=True, eq=False)
class Bags:
    """The sparse part of a batch on the engine's device.

    Args:
        num_rows: B.
        ids: for each feature, int64 [its ids].
        offsets: for each feature, int64 [B + 1] from 0: bag b holds its ids [offsets[b], offsets[b + 1]).
        weights: for each feature, float32 [its ids]; None where the request has none.
        device: where all of them are.
    """

    num_rows: int
    ids: tuple[Tensor, ...]
    offsets: tuple[Tensor, ...]
    weights: tuple[Tensor, ...] | None
    device: torch.device

    def weights_of(self, feature: int) -> Tensor:
        """The weights of one feature's ids: 1 each where the request has none, so that its company in a batch changes no bit of its answer."""
        return self.weights[feature] if self.weights is not None else torch.ones(self.ids[feature].numel(), device=self.device)

    @classmethod
    def cut(cls, request: CheckedRequest, num_features: int, device: torch.device) -> Self:
        """Cut a checked request by feature: one running sum over all lengths, views for the rest."""
        lengths = tensor(request.lengths, device).view(num_features, request.num_rows)
        offsets = torch.zeros(num_features, request.num_rows + 1, dtype=torch.int64, device=device)
        torch.cumsum(lengths, dim=1, out=offsets[:, 1:])
        sizes = offsets[:, -1].tolist()
        weights = None if request.weights is None else torch.split(tensor(request.weights, device), sizes)
        return cls(request.num_rows, torch.split(tensor(request.ids, device), sizes), offsets.unbind(0), weights, device)


def tensor(array: npt.NDArray[Any], device: torch.device) -> Tensor:
    """The array as a tensor: shared where it may be written to (torch warns about memory that may not), else copied."""
    return torch.from_numpy(array if array.flags.writeable else array.copy()).to(device)
