"""Sum or mean of a sequence's steps."""

from torch import Tensor, nn

from emberline.train.encoders.configs import PoolingEncoderConfig
from emberline.train.encoders.steps import kept_steps, pooled


class PoolingEncoder(nn.Module):
    """The sum or mean of each row's steps; zeros for a row without steps.

    Args:
        config: which of them.
        sequence_dim: Ds, width of a step.
    """

    def __init__(self, config: PoolingEncoderConfig, sequence_dim: int) -> None:
        super().__init__()
        self.config = config
        self.output_dim = sequence_dim

    def forward(self, query: Tensor | None, sequence: Tensor, lengths: Tensor) -> Tensor:
        """Any query, sequence [B, L, Ds], lengths [B] -> [B, Ds]."""
        steps = kept_steps(sequence, lengths, self.config.max_seq_length, self.config.keep)
        return pooled(steps.values, steps, self.config.pooling_type)
