"""Activations that torch does not have."""

import torch
from torch import Tensor, nn


class Dice(nn.Module):
    """A PReLU whose kink moves with the data (Zhou et al. 2018, DIN): x * (p + alpha * (1 - p)), p = sigmoid(batch norm of x).

    Args:
        width: N, the size of the input's last dimension.
        eps: of the batch normalisation.
    """

    def __init__(self, width: int, eps: float = 1e-9) -> None:
        super().__init__()
        self.bn = nn.BatchNorm1d(width, eps=eps)
        self.alpha = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        """[..., N] -> [..., N]; in training, statistics run over all M rows of the leading dimensions."""
        flat = x if x.dim() == 2 else x.reshape(-1, self.alpha.numel())
        share = torch.sigmoid(self.bn(flat))
        out = flat * (share + self.alpha * (1.0 - share))
        return out if x.dim() == 2 else out.reshape(x.shape)
