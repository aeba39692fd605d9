"""Bounds on the gradients of the dense part."""

from collections.abc import Iterable

from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from emberline.train.config.train_config import ClippingType, GradClippingConfig


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
