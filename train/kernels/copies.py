"""Copies of the same tables on several ranks, which stay equal to the bit: each learns from the gradients of all.

    own rows, summed gradients ─► all ranks' ─► sums by row, taken in the order of the ranks ─► one update, the same everywhere

What travels are the rows of the batch, never a gradient of a table's size. All ranks must come here the same number of times and in the same order,
with rows or without: backward does so wherever ranks run the same model, and held updates are applied in the model's order.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from emberline.errors import TrainingError
from emberline.train.kernels.segments import RowGradients, by_row


@dataclass(frozen=True)
class Shared:
    """What all ranks learn from.

    Args:
        gradients: for each block, of all ranks together.
        seed: for what is drawn by chance in this update.
    """

    gradients: list[RowGradients]
    seed: int


@dataclass(frozen=True)
class Copies:
    """The ranks that hold a copy.

    Args:
        group: of them, on the CPU.
        key: a number that stands for the tables, the same on all ranks.
    """

    group: dist.ProcessGroup
    key: int

    def share(self, rows: int) -> tuple[int, int]:
        """Of so many rows, the first and the end of this rank's part of what is to be done once."""
        rank, ranks = dist.get_rank(self.group), dist.get_world_size(self.group)
        return rank * rows // ranks, (rank + 1) * rows // ranks

    def gather(self, own: Sequence[RowGradients], learns: bool, seed: int = 0) -> Shared | None:
        """Add up the gradients of all ranks, which call this together.

        Args:
            own: this rank's, one for each block.
            learns: whether this rank has had a backward; its gradients may be of no rows even so.
            seed: this rank's; rank 0's is taken.

        Returns:
            the same bits on all ranks; None where no rank has had a backward.

        Raises:
            TrainingError: other ranks are at other tables.
        """
        packed = _packed(own)
        heads = self._all(torch.tensor([self.key, int(learns), len(packed), seed]))
        if len({int(head[0]) for head in heads}) > 1:
            raise TrainingError("ranks update different data_parallel tables at the same time; every rank must run the same parts of the model")
        if not any(int(head[1]) for head in heads):
            return None
        longest = max(int(head[2]) for head in heads)
        found = [_unpacked(part, own) for part in self._all(functional.pad(packed, (0, longest - len(packed))))]
        gradients = [by_row(torch.cat([rows for rows, _ in parts]), torch.cat([sums for _, sums in parts])) for parts in zip(*found, strict=True)]
        return Shared(gradients, int(heads[0][3]))

    def _all(self, own: Tensor) -> list[Tensor]:
        """Each rank's tensor, in their order; all of one shape."""
        found = [torch.empty_like(own) for _ in range(dist.get_world_size(self.group))]
        dist.all_gather(found, own, group=self.group)
        return found


def _packed(gradients: Sequence[RowGradients]) -> Tensor:
    """Numbers of rows, rows, sums of all blocks as one int32 tensor of an even length."""
    counts = torch.tensor([len(part.rows) for part in gradients])
    integers = torch.cat([counts, *(part.rows for part in gradients)]).view(torch.int32)
    sums = torch.cat([part.sums(0, len(part.rows)).flatten() for part in gradients]).view(torch.int32)
    packed = torch.cat([integers, sums])
    return functional.pad(packed, (0, len(packed) % 2))


def _unpacked(packed: Tensor, like: Sequence[RowGradients]) -> list[tuple[Tensor, Tensor]]:
    """For each block the rows, int64 [U], and the sums, float32 [U, d], of one rank."""
    integers, numbers = packed.view(torch.int64), packed.view(torch.float32)
    counts = integers[: len(like)].tolist()
    rows = integers[len(like) :].split_with_sizes([*counts, len(integers) - len(like) - sum(counts)])
    found, start = [], 2 * (len(like) + sum(counts))
    for own, count, part in zip(rows, counts, like, strict=False):
        dim = part.gradients.shape[1]
        found.append((own, numbers[start : start + count * dim].view(count, dim)))
        start += count * dim
    return found
