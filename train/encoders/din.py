"""Deep Interest Network: attention by an MLP over query and step."""

from torch import Tensor, nn

from emberline.train.encoders.attention_mlp import AttentionMlp, padded_query
from emberline.train.encoders.configs import DinEncoderConfig, encoder_kind
from emberline.train.encoders.steps import kept_steps, required, weighted_sum


class DinEncoder(nn.Module):
    """Σ softmax(a(q, s)) s over each row's steps s (Zhou et al., "Deep Interest Network", KDD 2018); zeros for a row without steps.

    a = linear(MLP([q, s, q - s, q * s])), with zeros on the right of a query that is narrower than a step.

    Args:
        config: the MLP, and which steps count.
        query_dim: Dq, width of the query, at most Ds.
        sequence_dim: Ds, width of a step.
    """

    def __init__(self, config: DinEncoderConfig, query_dim: int, sequence_dim: int) -> None:
        super().__init__()
        self.config = config
        self.query_dim = query_dim
        self.output_dim = sequence_dim
        self.attention = AttentionMlp(4 * sequence_dim, config.attn_mlp)

    def forward(self, query: Tensor | None, sequence: Tensor, lengths: Tensor) -> Tensor:
        """Query [B, Dq], sequence [B, L, Ds], lengths [B] -> [B, Ds]."""
        query = padded_query(required(query, encoder_kind(self.config)), self.output_dim, self.query_dim)
        steps = kept_steps(sequence, lengths, self.config.max_seq_length, self.config.keep)
        of_query, of_step, of_difference, of_product = self.attention.first_weights(4)
        scores = self.attention(query, steps, of_query + of_difference, of_step - of_difference, of_product)
        return weighted_sum(scores, steps)
