"""Which encoders can't be: checked over dataclasses, before any module exists."""

from collections.abc import Iterator

from emberline.train.encoders.configs import (
    DinEncoderConfig,
    EncoderConfig,
    MultiWindowDinEncoderConfig,
    PoolingEncoderConfig,
    RecurrentEncoderConfig,
    SelfAttentionEncoderConfig,
    SimpleAttentionConfig,
    TransformerEncoderConfig,
    encoder_kind,
)

_POOLINGS = {PoolingEncoderConfig: ("mean", "sum"), TransformerEncoderConfig: ("mean", "sum", "last")}


def encoder_problems(config: EncoderConfig, query_dim: int | None = None, sequence_dim: int | None = None) -> list[str]:
    """What is wrong with an encoder, one sentence each, naming its kind and input.

    Args:
        config: of the encoder.
        query_dim: width of the query; 0 where there is none; None: not known yet.
        sequence_dim: width of a step; None: not known yet.
    """
    where = encoder_kind(config) + (f" on {config.input!r}" if config.input else "")
    found = [*_settings(config), *_attention(config)]
    if query_dim is not None and sequence_dim is not None:
        found += _widths(config, query_dim, sequence_dim)
    return [f"{where}: {text}" for text in found]


def _settings(config: EncoderConfig) -> Iterator[str]:
    keeps = ("oldest", "newest", "all") if isinstance(config, MultiWindowDinEncoderConfig) else ("oldest", "newest")
    if config.keep not in keeps:
        yield f"keep must be one of {', '.join(keeps)}, found {config.keep!r}"
    for name in ("hidden_size", "multihead_attn_dim", "num_heads", "num_layers"):
        if (value := getattr(config, name, 1)) < 1:
            yield f"{name} must be at least 1, found {value}"
    for name in ("max_seq_length", "feed_forward_size"):
        if (value := getattr(config, name, 0)) < 0:
            yield f"{name} must not be negative, found {value}"
    dropout = getattr(config, "dropout", 0.0)
    if not 0.0 <= dropout < 1.0:
        yield f"dropout must be in [0, 1), found {dropout}"
    if isinstance(config, PoolingEncoderConfig | TransformerEncoderConfig) and config.pooling_type not in _POOLINGS[type(config)]:
        yield f"pooling_type must be one of {', '.join(_POOLINGS[type(config)])}, found {config.pooling_type!r}"
    if isinstance(config, RecurrentEncoderConfig):
        if config.cell not in ("lstm", "gru"):
            yield f"cell must be lstm or gru, found {config.cell!r}"
        if dropout and config.num_layers == 1:
            yield "dropout is between layers, and there is one; set num_layers to 2 or more, or take dropout out"


def _attention(config: EncoderConfig) -> Iterator[str]:
    if isinstance(config, DinEncoderConfig | MultiWindowDinEncoderConfig) and not config.attn_mlp.hidden_units:
        yield "attn_mlp needs hidden_units"
    if isinstance(config, MultiWindowDinEncoderConfig):
        if not config.windows_len:
            yield "windows_len needs at least one window"
        if not all(length >= 1 for length in config.windows_len):
            yield f"each of windows_len must be at least 1, found {list(config.windows_len)}"
    if isinstance(config, SelfAttentionEncoderConfig | TransformerEncoderConfig):
        field = "hidden_size" if isinstance(config, TransformerEncoderConfig) else "multihead_attn_dim"
        width = getattr(config, field)
        if config.num_heads >= 1 and width % config.num_heads:
            yield f"{field} {width} is no multiple of num_heads {config.num_heads}"


def reads_query(config: EncoderConfig) -> bool:
    """Whether the encoder compares steps with a query; others take any and ignore it."""
    return isinstance(config, DinEncoderConfig | MultiWindowDinEncoderConfig | SimpleAttentionConfig)


def _widths(config: EncoderConfig, query_dim: int, sequence_dim: int) -> Iterator[str]:
    if sequence_dim < 1:
        yield "its input has no sequence features"
        return
    if not reads_query(config):
        return
    if query_dim < 1:
        yield "needs a query, and its input has sequence features only; add the features to compare the sequence with"
    elif query_dim > sequence_dim:
        yield f"the query is wider ({query_dim}) than a step of the sequence ({sequence_dim}); give them the same features"
    elif query_dim < sequence_dim and isinstance(config, SimpleAttentionConfig):
        yield f"the query ({query_dim} wide) must be as wide as a step of the sequence ({sequence_dim}); give them the same features"
