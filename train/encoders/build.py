"""Encoders from their configs."""

from typing import Protocol

from torch import Tensor, nn

from emberline.errors import ConfigError
from emberline.train.encoders.checks import encoder_problems
from emberline.train.encoders.configs import (
    DinEncoderConfig,
    EncoderConfig,
    MultiWindowDinEncoderConfig,
    PoolingEncoderConfig,
    SelfAttentionEncoderConfig,
    SimpleAttentionConfig,
    TransformerEncoderConfig,
)
from emberline.train.encoders.din import DinEncoder
from emberline.train.encoders.multi_window_din import MultiWindowDinEncoder
from emberline.train.encoders.pooling import PoolingEncoder
from emberline.train.encoders.recurrent import RecurrentEncoder
from emberline.train.encoders.self_attention import SelfAttentionEncoder
from emberline.train.encoders.simple_attention import SimpleAttention
from emberline.train.encoders.transformer import TransformerEncoder


class Encoder(Protocol):
    """From a query and a padded sequence to one vector a row. Every encoder here is one, and an `nn.Module`."""

    output_dim: int

    def __call__(self, query: Tensor | None, sequence: Tensor, lengths: Tensor) -> Tensor:
        """B rows, L padded steps (0 is fine), widths Dq and Ds.

        What stands in the padding, NaN too, reaches neither the result nor any gradient, and a row without steps gives zeros (MultiWindowDIN:
        zeros in its windows).

        Args:
            query: [B, Dq]; encoders that need none take None, or ignore what they get.
            sequence: [B, L, Ds].
            lengths: [B], int32 or int64; taken as 0 below 0, and as L above L.

        Returns:
            [B, output_dim].

        Raises:
            ConfigError: no query for an encoder that needs one.
        """
        ...


def build_encoder(config: EncoderConfig, query_dim: int, sequence_dim: int) -> nn.Module:
    """A new `Encoder`.

    Args:
        config: of the encoder.
        query_dim: Dq, width of the query; 0 where there is none.
        sequence_dim: Ds, width of a step.

    Raises:
        ConfigError: with everything that is wrong with the encoder.
    """
    if problems := encoder_problems(config, query_dim, sequence_dim):
        raise ConfigError(problems)
    match config:
        case PoolingEncoderConfig():
            return PoolingEncoder(config, sequence_dim)
        case SimpleAttentionConfig():
            return SimpleAttention(config, sequence_dim)
        case DinEncoderConfig():
            return DinEncoder(config, query_dim, sequence_dim)
        case MultiWindowDinEncoderConfig():
            return MultiWindowDinEncoder(config, query_dim, sequence_dim)
        case SelfAttentionEncoderConfig():
            return SelfAttentionEncoder(config, sequence_dim)
        case TransformerEncoderConfig():
            return TransformerEncoder(config, sequence_dim)
        case _:
            return RecurrentEncoder(config, sequence_dim)
