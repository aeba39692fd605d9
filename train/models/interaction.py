"""Products of embedding vectors. Shapes: B rows, F vectors a row, E numbers a vector."""

import torch
from torch import Tensor, nn


class DotInteraction(nn.Module):
    """The inner products of all pairs of vectors (Naumov et al., 2019, "Deep Learning Recommendation Model").

    Args:
        num_vectors: F.
        with_itself: also each vector's product with itself.
    """

    def __init__(self, num_vectors: int, *, with_itself: bool = False) -> None:
        super().__init__()
        rows, columns = torch.tril_indices(num_vectors, num_vectors, offset=0 if with_itself else -1)
        self.register_buffer("pairs", rows * num_vectors + columns, persistent=False)
        self.out_dim = int(rows.numel())

    def forward(self, vectors: Tensor) -> Tensor:
        """[B, F, E] -> [B, out_dim]: pairs (1, 0), (2, 0), (2, 1), (3, 0), ..."""
        products = torch.bmm(vectors, vectors.transpose(1, 2))
        return products.flatten(1).index_select(1, self.get_buffer("pairs"))


class FactorizationMachine(nn.Module):
    """Second-order interactions: the sum of elementwise products of all pairs (Rendle, 2010, "Factorization Machines")."""

    def forward(self, vectors: Tensor) -> Tensor:
        """[B, F, E] -> [B, E]: half of (square of sum - sum of squares)."""
        return 0.5 * (vectors.sum(dim=1).square() - vectors.square().sum(dim=1))
