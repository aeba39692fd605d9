"""Reads of tables as bags of ids. Tables that lie in one memory are read together, in one call, where no gradient is wanted.

A call for each table costs as much as what it reads, and leaves vectors that have to be copied side by side. The one call writes them there.

Letters: B bags, N ids, d width of a vector.
"""

import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from emberline.schema import Pooling
from emberline.train.embedding.jagged import concatenated, mean_weights
from emberline.train.kernels.memory import table_memory


class BagRead(NamedTuple):
    """Bags of one table's rows.

    Args:
        table: [rows, d].
        ids: int64 [N], rows of `table`; None: all of them, in order.
        sizes: ids of each bag, [B]; None: one each, and B is N.
        weights: float32 [N], for a weighted sum; None for a plain one.
        mean: divide each sum by the bag's size; only without weights.
    """

    table: Tensor
    ids: Tensor | None
    sizes: Tensor | None
    weights: Tensor | None = None
    mean: bool = False

    @property
    def num_bags(self) -> int:
        """B."""
        if self.sizes is not None:
            return self.sizes.numel()
        return self.table.shape[0] if self.ids is None else self.ids.numel()


def bag_read(table: Tensor, ids: Tensor | None, sizes: Tensor | None, weights: Tensor | None, pooling: Pooling) -> BagRead:
    """A read whose weights are the ids' own, [N] of any float type: a mean is their weighted mean, and zeros where the weights add up to 0."""
    if weights is None:
        return BagRead(table, ids, sizes, None, pooling is Pooling.MEAN and sizes is not None)
    weights = weights.float()
    if pooling is Pooling.MEAN:
        weights = (weights != 0).to(weights.dtype) if sizes is None else mean_weights(weights, sizes)
    return BagRead(table, ids, sizes, weights)


def read_bags(reads: Iterable[BagRead]) -> list[Tensor]:
    """Each read's vectors, [B, d] float32; zeros for empty bags. Those of reads that were done together are columns of one matrix."""
    found: list[Tensor] = []
    for _, run in itertools.groupby(reads, key=_kind):
        alike = list(run)
        found += _read_together(alike) if _can_be_together(alike) else [_read(read) for read in alike]
    return found


def lay_together(weights: Iterable[nn.Parameter]) -> None:
    """Move parameters [rows, d] that lie on a CPU into one memory for each dtype, for reads together. They stay the same objects."""
    by_dtype: dict[torch.dtype, list[nn.Parameter]] = {}
    for weight in weights:
        if weight.device.type == "cpu":
            by_dtype.setdefault(weight.dtype, []).append(weight)
    for dtype, own in by_dtype.items():
        memory = table_memory((sum(weight.numel() for weight in own),), dtype)
        for weight, part in zip(own, torch.split(memory, [weight.numel() for weight in own]), strict=True):
            weight.data = part.view_as(weight).copy_(weight.detach())


def pool(table: Tensor, ids: Tensor | None, starts: Tensor, weights: Tensor | None = None, *, mean: bool = False) -> Tensor:
    """One table's bags as vectors, in float32 whatever the table's type; gradients flow to the table.

    Args:
        table: [rows, d].
        ids: int64 [N]; None: every row of `table` once, in order.
        starts: [B + 1], where each bag begins in `ids`, and the end.
        weights: float32 [N], for a weighted sum; None for a plain one.
        mean: divide each sum by the bag's length; only without weights.

    Returns:
        [B, d] float32; zeros for empty bags.
    """
    assert weights is None or not mean
    if ids is not None and table.dtype != torch.float32:
        table, ids = functional.embedding(ids, table), None
    if ids is None:
        table, ids = table.float(), torch.arange(table.shape[0], device=table.device)
    mode = "mean" if mean else "sum"
    if starts.numel() == 1:  # no rows: torch refuses that, and a batch of one empty bag keeps the gradient's path
        return functional.embedding_bag(ids, table, starts.new_zeros(2), mode=mode, per_sample_weights=weights, include_last_offset=True)[:0]
    return functional.embedding_bag(ids, table, starts, mode=mode, per_sample_weights=weights, include_last_offset=True)


def _read(read: BagRead) -> Tensor:
    """One read by itself."""
    if read.sizes is not None:
        return pool(read.table, read.ids, functional.pad(read.sizes.cumsum(0), (1, 0)), read.weights, mean=read.mean)
    vectors = (read.table if read.ids is None else functional.embedding(read.ids, read.table)).float()
    return vectors if read.weights is None else vectors * read.weights.unsqueeze(1)


def _kind(read: BagRead) -> tuple[object, ...]:
    """What reads that are done together have in common: their number of bags, weights or none, the memory."""
    return read.num_bags, read.weights is None, read.table.dtype, read.table.untyped_storage().data_ptr()


def _can_be_together(reads: Sequence[BagRead]) -> bool:
    """Whether reads of one kind can be done by fbgemm's kernel, through which no gradients flow here."""
    first = reads[0].table
    if first.device.type != "cpu" or first.dtype not in (torch.float32, torch.float16):
        return False
    if torch.is_grad_enabled() and any(read.table.requires_grad for read in reads):
        return False
    return all(read.ids is not None and read.table.is_contiguous() for read in reads)


def _read_together(reads: Sequence[BagRead]) -> list[Tensor]:
    """Reads of one kind, in one call."""
    first = reads[0].table.detach()
    memory = first.as_strided((first.untyped_storage().nbytes() // first.itemsize,), (1,), 0)
    dims = [read.table.shape[1] for read in reads]
    weights = [read.weights for read in reads if read.weights is not None]
    pooled = torch.ops.fbgemm.split_embedding_codegen_forward_cpu(
        memory,
        torch.tensor([read.table.storage_offset() for read in reads]),
        torch.tensor([0, *itertools.accumulate(dims)], dtype=torch.int32),
        sum(dims),
        torch.tensor([0, *itertools.accumulate(read.table.shape[0] for read in reads)]),
        concatenated([read.ids for read in reads if read.ids is not None]),
        _offsets(reads),
        0,  # sums
        concatenated(weights) if weights else None,
        0,  # float32
    )
    found = list(pooled.split(dims, dim=1))
    for read, vectors in zip(reads, found, strict=True):
        if read.mean and read.sizes is not None:
            vectors /= read.sizes.clamp(min=1).unsqueeze(1)  # as torch does it, which the kernel's own means differ from in the last bit
    return found


def _offsets(reads: Sequence[BagRead]) -> Tensor:
    """Where each bag of all reads begins, and the end, int64."""
    if all(read.sizes is None for read in reads):
        return torch.arange(sum(read.num_bags for read in reads) + 1)
    sizes = [torch.ones(read.num_bags, dtype=torch.int64) if read.sizes is None else read.sizes for read in reads]
    return functional.pad(concatenated(sizes).cumsum(0), (1, 0))
