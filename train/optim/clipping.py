"""Bounds on the gradients of the dense part, and on those of dense part and tables together."""

import math
from collections.abc import Iterable

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_, get_total_norm

from emberline.train.config.train_config import ClippingType, GradClippingConfig
from emberline.train.optim.held import HeldUpdates

_LEAST = 1e-6
"""What PyTorch adds to a norm before it divides by it."""


def clip_gradients(parameters: Iterable[nn.Parameter], config: GradClippingConfig | None) -> None:
    """Bound the gradients of all parameters that have one, in place.

    The norm is that of all gradients together. Every rank holds the dense part whole, with gradients that are averaged over the ranks
    before this is called, so all ranks find the same norm.

    Args:
        parameters: every dense parameter, whichever optimiser it has.
        config: the bound; None for none.
    """
    if config is None or config.clipping_type is ClippingType.NONE:
        return
    own = [parameter for parameter in parameters if parameter.grad is not None]
    if not own:
        return
    if config.clipping_type is ClippingType.NORM:
        clip_grad_norm_(own, config.max_gradient, norm_type=config.norm_type)
    else:
        clip_grad_value_(own, config.max_gradient)


def clip_with_tables(parameters: Iterable[nn.Parameter], tables: HeldUpdates, config: GradClippingConfig, share: float = 1.0) -> float:
    """Bound the norm of all gradients together, those of dense parameters in place.

    All ranks must call it together; all find the same norm.

    Args:
        parameters: every dense parameter; their gradients are averaged over the ranks already.
        tables: what the tables have kept, each gradient `share` times what it stands for.
        config: the bound.
        share: see above.

    Returns:
        what the tables' gradients are to be divided by when they are applied: `share` where the bound is not met, else more.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    dense = get_total_norm(gradients, config.norm_type)
    sparse = tables.norm(config.norm_type, dense.device) / share
    norm = float(torch.linalg.vector_norm(torch.stack([dense.double().cpu(), sparse]), config.norm_type))
    factor = 1.0 if norm + _LEAST <= config.max_gradient else config.max_gradient / (norm + _LEAST)
    if gradients and factor != 1.0:
        torch._foreach_mul_(gradients, factor)
    return share / factor if factor else math.inf
