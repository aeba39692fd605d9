"""The border between the dense part and the tables' kernels, where gradients can be looked at before a table learns from them."""

from collections.abc import Collection, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torchrec.distributed.embedding_kernel import BaseEmbedding


class TableBorder:
    """Stands behind every kernel of a sharded model.

        rows ─► kernel ─► vectors │ copies ─► collectives ─► dense part ─► loss
                   ▲              │    │
                   └── release ───┼────┘ gradients

    Kernels of frozen tables give vectors that need no gradient: they have no backward. With `hold`, backward ends at the border; `release`
    sends the gradients on, and then the tables learn, or `discard` drops them. Behind the border ranks need not agree about what each has, but for
    tables of which each has a copy: their kernels exchange gradients there, and every rank has them, in the same order.

    Args:
        model: after sharding.
        frozen: tables that do not learn.
        bound: of each number of a vector's gradient; None for none.
        hold: whether gradients wait for `release`.
    """

    def __init__(self, model: nn.Module, *, frozen: Collection[str] = (), bound: float | None = None, hold: bool = False) -> None:
        self._bound, self._hold = bound, hold
        self._held: list[tuple[Tensor, Tensor]] = []
        for kernel, tables in kernels_of(model):
            if tables <= set(frozen):
                kernel.register_forward_hook(_detach)
            elif hold or bound is not None:
                kernel.register_forward_hook(self._note)

    def gradients(self) -> list[Tensor]:
        """What waits for `release`; the live tensors."""
        return [copy.grad for _, copy in self._held if copy.grad is not None]

    def release(self) -> None:
        """Let the tables learn."""
        held = [(vectors, copy.grad) for vectors, copy in self._held if copy.grad is not None]
        self._held.clear()
        if held:
            torch.autograd.backward([vectors for vectors, _ in held], [gradient for _, gradient in held])

    def discard(self) -> None:
        """Let the tables learn nothing."""
        self._held.clear()

    def _note(self, _kernel: nn.Module, _arguments: Any, vectors: Tensor) -> Tensor:
        if not vectors.requires_grad:
            return vectors
        if self._bound is not None:
            vectors.register_hook(self._clamp)  # type: ignore[no-untyped-call]
        if not self._hold:
            return vectors
        copy = vectors.detach().requires_grad_()
        self._held.append((vectors, copy))
        return copy

    def _clamp(self, gradient: Tensor) -> Tensor:
        return gradient.clamp(-self._bound, self._bound) if self._bound is not None else gradient


def kernels_of(model: nn.Module) -> Iterator[tuple[nn.Module, set[str]]]:
    """The kernels of a sharded model on this rank, and the names of their tables."""
    lookups = [lookup for module in model.modules() for lookup in getattr(module, "_lookups", ())]  # lists, which hide them from `modules`
    for kernel in dict.fromkeys(part for lookup in lookups for part in lookup.modules() if isinstance(part, BaseEmbedding)):
        yield kernel, {table.name for table in kernel.config.embedding_tables}


def _detach(_kernel: nn.Module, _arguments: Any, vectors: Tensor) -> Tensor:
    """The vectors of frozen tables. With several ranks they take a gradient that goes nowhere: collectives run backward on all ranks, or none."""
    return vectors.detach().requires_grad_(torch.is_grad_enabled() and dist.is_initialized() and dist.get_world_size() > 1)
