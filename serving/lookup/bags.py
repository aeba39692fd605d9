"""The bags of one batch, cut by feature."""

from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy.typing as npt
import torch
from torch import Tensor

from emberline.serving.request import CheckedRequest


class PackedBags(NamedTuple):
    """All features of a batch in one.

    Args:
        ids: int64 [N], feature after feature.
        offsets: int64 [F, B + 1], from 0 in each feature.
        weights: float32 [N]; None where the request has none.
    """

    ids: Tensor
    offsets: Tensor
    weights: Tensor | None


@dataclass(frozen=True, eq=False)
class Bags:
    """The sparse part of a batch on the engine's device.

    Args:
        num_rows: B.
        ids: for each feature, int64 [its ids].
        offsets: for each feature, int64 [B + 1] from 0: bag b holds its ids [offsets[b], offsets[b + 1]).
        weights: for each feature, float32 [its ids]; None where the request has none.
        device: where all of them are.
        packed: the tensors that the others are parts of.
    """

    num_rows: int
    ids: tuple[Tensor, ...]
    offsets: tuple[Tensor, ...]
    weights: tuple[Tensor, ...] | None
    device: torch.device
    packed: PackedBags

    def weights_of(self, feature: int) -> Tensor:
        """The weights of one feature's ids: 1 each where the request has none, so that its company in a batch changes no bit of its answer."""
        return self.weights[feature] if self.weights is not None else torch.ones(self.ids[feature].numel(), dtype=torch.float32, device=self.device)

    @classmethod
    def cut(cls, request: CheckedRequest, num_features: int, device: torch.device) -> Self:
        """Cut a checked request by feature: one running sum over all lengths, views for the rest."""
        lengths = tensor(request.lengths, device).view(num_features, request.num_rows)
        ids, weights = tensor(request.ids, device), None if request.weights is None else tensor(request.weights, device)
        offsets = torch.zeros(num_features, request.num_rows + 1, dtype=torch.int64, device=device)
        torch.cumsum(lengths, dim=1, out=offsets[:, 1:])
        return cls.of(PackedBags(ids, offsets, weights), offsets[:, -1].tolist())

    @classmethod
    def of(cls, packed: PackedBags, sizes: list[int]) -> Self:
        """Bags of which all is known: `sizes` are the ids of each feature."""
        ids, offsets, weights = packed
        parts = None if weights is None else torch.split(weights, sizes)
        return cls(offsets.shape[1] - 1, torch.split(ids, sizes), offsets.unbind(0), parts, ids.device, packed)


def tensor(array: npt.NDArray[Any], device: torch.device) -> Tensor:
    """The array as a tensor: shared where it may be written to (torch warns about memory that may not), else copied."""
    return torch.from_numpy(array if array.flags.writeable else array.copy()).to(device)
