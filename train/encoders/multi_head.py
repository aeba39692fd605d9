"""Scaled dot product attention of a sequence's steps to each other. Letters: B rows, K steps, A width, h heads."""

import torch
from torch import Tensor
from torch.nn import functional


def attend(query: Tensor, key: Tensor, value: Tensor, attended: Tensor, *, heads: tuple[int, int], dropout: float) -> Tensor:
    """Σ softmax(q · k / sqrt(A / h)) v in each head (Vaswani et al., "Attention Is All You Need", 2017), heads side by side.

    Args:
        query: [B, K, A].
        key: [B, K, A].
        value: [B, K, A].
        attended: [B, K] bool: the steps that others attend to, at least one a row.
        heads: h and A / h.
        dropout: of the weights; 0 outside of training.

    Returns:
        [B, K, A].
    """
    q, k, v = (torch.unflatten(part, 2, heads).transpose(1, 2) for part in (query, key, value))
    mask = attended.unsqueeze(1).unsqueeze(2)
    out = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)
    return out.transpose(1, 2).flatten(2)
