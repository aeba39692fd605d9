"""What a config says about each encoder, one frozen dataclass a kind; field names are those of `encoder.proto`.

Fields that all of them have:

| field | meaning |
|---|---|
| name | for the reader of the config; nothing depends on it |
| input | the sequence group that it reads; empty where there is only one |
| max_seq_length | steps of a row that count; 0: all of them |
| keep | which steps count where a row has more: the `oldest` (the first ones) or the `newest` (the last ones) |

Nothing here is checked beyond its type: `encoder_problems` does that.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from emberline.train.config.model_config import MlpConfig

Keep = Literal["oldest", "newest"]


@dataclass(frozen=True, kw_only=True)
class PoolingEncoderConfig:
    """The sum or mean of the steps.

    Args:
        pooling_type: `mean` or `sum`.
    """

    name: str = ""
    input: str = ""
    pooling_type: str = "mean"
    max_seq_length: int = 0
    keep: Keep = "oldest"


@dataclass(frozen=True, kw_only=True)
class SimpleAttentionConfig:
    """Attention by the dot product of query and step; needs a query as wide as the sequence."""

    name: str = ""
    input: str = ""
    max_seq_length: int = 0
    keep: Keep = "oldest"


@dataclass(frozen=True, kw_only=True)
class DinEncoderConfig:
    """Attention by an MLP over query and step; needs a query, at most as wide as the sequence.

    Args:
        attn_mlp: before the last linear layer, which makes the score.
    """

    name: str = ""
    input: str = ""
    attn_mlp: "MlpConfig"
    max_seq_length: int = 0
    keep: Keep = "oldest"


@dataclass(frozen=True, kw_only=True)
class MultiWindowDinEncoderConfig:
    """Attention by an MLP, without softmax, averaged over consecutive windows; needs a query, at most as wide as the sequence.

    Args:
        attn_mlp: before the last linear layer, which makes the score.
        windows_len: steps of each window, the first window first.
        keep: which steps the windows hold where a row has more than all windows together: the `oldest`, the `newest`, or `all`,
            where the last window also takes what is left over.
    """

    name: str = ""
    input: str = ""
    attn_mlp: "MlpConfig"
    windows_len: tuple[int, ...]
    keep: Literal["oldest", "newest", "all"] = "oldest"


@dataclass(frozen=True, kw_only=True)
class SelfAttentionEncoderConfig:
    """Multi-head attention of the steps to each other, then their mean.

    Args:
        multihead_attn_dim: width of the result; a multiple of `num_heads`.
        num_heads: attention heads.
        dropout: of the attention's weights.
    """

    name: str = ""
    input: str = ""
    multihead_attn_dim: int = 512
    num_heads: int = 8
    dropout: float = 0.0
    max_seq_length: int = 0
    keep: Keep = "oldest"


@dataclass(frozen=True, kw_only=True)
class TransformerEncoderConfig:
    """Transformer layers, then the mean, the sum or the last of the steps.

    Args:
        hidden_size: width of the layers and of the result; a multiple of `num_heads`.
        num_heads: attention heads.
        num_layers: layers.
        feed_forward_size: width inside of each layer's two linear maps; 0: 4 * `hidden_size`.
        dropout: of the attention's weights and of both branches of a layer.
        use_position: whether a step knows its place, counted back from the row's last step.
        pooling_type: `mean`, `sum`, or `last`, the row's last step.
    """

    name: str = ""
    input: str = ""
    hidden_size: int = 64
    num_heads: int = 4
    num_layers: int = 1
    feed_forward_size: int = 0
    dropout: float = 0.0
    use_position: bool = True
    pooling_type: str = "mean"
    max_seq_length: int = 0
    keep: Keep = "oldest"


@dataclass(frozen=True, kw_only=True)
class RecurrentEncoderConfig:
    """A recurrent network's state after the row's last step.

    Args:
        cell: `lstm` or `gru`.
        hidden_size: width of the state; the result of a bidirectional network is twice as wide.
        num_layers: layers.
        bidirectional: whether a second network reads each row from its last step to its first.
        dropout: between layers; needs at least two.
    """

    name: str = ""
    input: str = ""
    cell: Literal["lstm", "gru"]
    hidden_size: int = 64
    num_layers: int = 1
    bidirectional: bool = False
    dropout: float = 0.0
    max_seq_length: int = 0
    keep: Keep = "oldest"


EncoderConfig = (
    PoolingEncoderConfig
    | SimpleAttentionConfig
    | DinEncoderConfig
    | MultiWindowDinEncoderConfig
    | SelfAttentionEncoderConfig
    | TransformerEncoderConfig
    | RecurrentEncoderConfig
)

_KINDS: dict[type, str] = {
    PoolingEncoderConfig: "pooling_encoder",
    SimpleAttentionConfig: "simple_attention",
    DinEncoderConfig: "din_encoder",
    MultiWindowDinEncoderConfig: "multi_window_din_encoder",
    SelfAttentionEncoderConfig: "self_attention_encoder",
    TransformerEncoderConfig: "transformer",
}


def encoder_kind(config: EncoderConfig) -> str:
    """The name of an encoder's kind in a config, such as `din_encoder`."""
    return config.cell if isinstance(config, RecurrentEncoderConfig) else _KINDS[type(config)]
