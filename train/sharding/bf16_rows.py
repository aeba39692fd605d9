"""BF16 tables in fused kernels on a CPU, where fbgemm's own kernels read FP32 and FP16 only.

The kernel still holds rows and moments, so that states, checkpoints and learning rates are where TorchRec looks for them; only its lookup, and
the update of rows in backward, are done here. Sums are taken in float32, moments are float32, and a row is rounded once a step: by chance, up
or down, each as likely as the number is near (stochastic rounding, as fbgemm does on a GPU). Rounding to the nearest would lose every step
smaller than 1/512 of a number.

Letters: B bags of each feature, N ids, d width of a table, D of all features.
"""

from collections.abc import Sequence
from typing import Any

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import PoolingMode
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torchrec.distributed.batched_embedding_kernel import (
    BatchedDenseEmbedding,
    BatchedDenseEmbeddingBag,
    BatchedFusedEmbedding,
    BatchedFusedEmbeddingBag,
)

from emberline.errors import ConfigError
from emberline.train.embedding.bag_reads import pool

_HOLDERS = (BatchedFusedEmbedding, BatchedFusedEmbeddingBag, BatchedDenseEmbedding, BatchedDenseEmbeddingBag)
_OPTIMIZERS = (EmbOptimType.EXACT_SGD, EmbOptimType.EXACT_ADAGRAD, EmbOptimType.EXACT_ROWWISE_ADAGRAD)


def use_bf16_lookups(module: nn.Module) -> None:
    """Let every kernel of BF16 tables on the CPU in a sharded module be read and trained here; others are left alone.

    Args:
        module: TorchRec's sharded form of a collection; changed in place.

    Raises:
        ConfigError: a table's kernel or optimiser is not one that BF16 tables can have here; names the tables.
    """
    lookups = [lookup for part in module.modules() for lookup in getattr(part, "_lookups", ())]  # TorchRec hides them in plain lists
    for holder in [part for lookup in lookups for part in lookup.modules() if isinstance(part, _HOLDERS)]:
        kernel: Any = holder.emb_module
        if kernel.weights_precision != SparseType.BF16 or not kernel.use_cpu:
            continue
        names = ", ".join(table.name for table in holder.config.embedding_tables)
        if isinstance(holder, BatchedDenseEmbedding | BatchedDenseEmbeddingBag):
            raise ConfigError(f"tables {names}: data_type BF16 needs the fused kernel on a CPU, not the dense one; plan them so, or use FP32")
        settings = kernel.optimizer_args
        if kernel.optimizer not in _OPTIMIZERS or settings.weight_decay or settings.gradient_clipping:
            wanted = "sgd, adagrad or rowwise_adagrad, without weight_decay and gradient_clipping"
            raise ConfigError(f"tables {names}: data_type BF16 can be trained on a CPU with {wanted}; use one of them, or FP32")
        kernel.forward = Bf16Lookup(kernel)


class Bf16Lookup:
    """The lookup of one kernel of BF16 tables.

    Args:
        kernel: fbgemm's table-batched embedding, on the CPU.
    """

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel

    def __call__(self, indices: Tensor, offsets: Tensor, per_sample_weights: Tensor | None = None) -> Tensor:
        """Bags as vectors.

        Args:
            indices: rows, integers [N], of all features one after the other.
            offsets: integers [features * B + 1].
            per_sample_weights: float32 [N], or None for 1 each.

        Returns:
            float32 [B, D] of pooled bags, or [N, d] where the kernel does not pool; backward updates the tables.
        """
        weights = None if per_sample_weights is None else per_sample_weights.float()
        ids = _Ids(self.kernel, indices, offsets, weights)
        found: Tensor = _Lookup.apply(self.kernel.placeholder_autograd_tensor, self.kernel, ids)  # type: ignore[no-untyped-call]
        return found


class _Ids:
    """The ids of one call, cut by feature."""

    def __init__(self, kernel: Any, indices: Tensor, offsets: Tensor, weights: Tensor | None) -> None:
        self.tables: list[int] = list(kernel.feature_table_map)
        bags = (offsets.numel() - 1) // len(self.tables)
        starts = [offsets[place * bags : (place + 1) * bags + 1].long() for place in range(len(self.tables))]
        self.cuts = [slice(int(own[0]), int(own[-1])) for own in starts]
        self.starts = [own - own[:1] for own in starts]
        self.ids = [indices[cut].long() for cut in self.cuts]
        self.weights = [None if weights is None else weights[cut] for cut in self.cuts]


class _Lookup(torch.autograd.Function):
    """Forward reads rows; backward trains them, and hands no gradient on."""

    @staticmethod
    def forward(ctx: Any, _placeholder: Tensor, kernel: Any, ids: _Ids) -> Tensor:
        """See `Bf16Lookup`."""
        ctx.kernel, ctx.ids = kernel, ids
        rows = [kernel.split_embedding_weights()[table] for table in ids.tables]
        if kernel.pooling_mode == PoolingMode.NONE:
            return torch.cat([table[own].float() for table, own in zip(rows, ids.ids, strict=True)])
        mean = kernel.pooling_mode == PoolingMode.MEAN
        bags = zip(rows, ids.ids, ids.starts, ids.weights, strict=True)
        columns = [pool(table, own, starts, weights, mean=mean) for table, own, starts, weights in bags]
        return torch.cat(columns, dim=1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, None]:
        """Update the rows that were read."""
        kernel, ids = ctx.kernel, ctx.ids
        rate = kernel.get_learning_rate()
        if rate:  # frozen tables have a rate of 0, and must not take part whatever the gradient is
            parts = _id_gradients(kernel, ids, gradient.float())
            for table in dict.fromkeys(ids.tables):
                own = [place for place, of in enumerate(ids.tables) if of == table]
                _update(kernel, table, torch.cat([ids.ids[place] for place in own]), torch.cat([parts[place] for place in own]), rate)
        return None, None, None


def _id_gradients(kernel: Any, ids: _Ids, gradient: Tensor) -> Sequence[Tensor]:
    """The gradient of the row that each id read, [its ids, d], by feature."""
    if kernel.pooling_mode == PoolingMode.NONE:
        return [gradient[cut] for cut in ids.cuts]
    columns = torch.split(gradient, [kernel.embedding_specs[table][1] for table in ids.tables], dim=1)
    parts = []
    for own, starts, weights in zip(columns, ids.starts, ids.weights, strict=True):
        sizes = starts.diff()
        if kernel.pooling_mode == PoolingMode.MEAN:
            own = own / sizes.clamp(min=1).unsqueeze(1)
        part = own[torch.repeat_interleave(sizes)]
        parts.append(part if weights is None else part * weights.unsqueeze(1))
    return parts


def _update(kernel: Any, table: int, ids: Tensor, gradients: Tensor, rate: float) -> None:
    """One step of the kernel's optimiser on the rows `ids` [n] of a table, whose gradients are [n, d]."""
    rows, places = torch.unique(ids, return_inverse=True)
    step = torch.zeros(rows.numel(), gradients.shape[1]).index_add_(0, places, gradients)
    if kernel.optimizer != EmbOptimType.EXACT_SGD:
        (moments,) = kernel.split_optimizer_states()[table]
        by_row = moments.dim() == 1
        found = moments[rows] + (step.square().mean(1) if by_row else step.square())
        moments[rows] = found
        step = step / ((found.unsqueeze(1) if by_row else found).sqrt() + kernel.optimizer_args.eps)
    weights = kernel.split_embedding_weights()[table]
    updated = weights[rows].float() - rate * step
    weights[rows] = round_by_chance(updated) if kernel.optimizer_args.stochastic_rounding else updated.bfloat16()


def round_by_chance(numbers: Tensor) -> Tensor:
    """Float32 of any shape -> bfloat16: one of the two neighbours, each as likely as the number is near to it, with torch's generator.

    Numbers that bfloat16 holds stay as they are, NaN and infinities included.
    """
    below = torch.randint(0, 1 << 16, numbers.shape, dtype=torch.int32, device=numbers.device)
    raised = ((numbers.view(torch.int32) + below) & -(1 << 16)).view(torch.float32)
    return torch.where(numbers.isfinite(), raised, numbers).bfloat16()
