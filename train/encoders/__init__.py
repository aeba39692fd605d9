"""Encoders: from a query and a padded sequence to one vector a row.

`configs` is what a config says about them, `checks` what can't be, `build_encoder` makes them. One module has one encoder; `steps` is what
they share: cutting, masking, a softmax that is right for rows without steps.
"""

from emberline.train.encoders.build import Encoder, build_encoder
from emberline.train.encoders.checks import encoder_problems, reads_query
from emberline.train.encoders.configs import (
    DinEncoderConfig,
    EncoderConfig,
    Keep,
    MultiWindowDinEncoderConfig,
    PoolingEncoderConfig,
    RecurrentEncoderConfig,
    SelfAttentionEncoderConfig,
    SimpleAttentionConfig,
    TransformerEncoderConfig,
    encoder_kind,
)
from emberline.train.encoders.torcheasyrec import torcheasyrec_names

__all__ = [
    "DinEncoderConfig",
    "Encoder",
    "EncoderConfig",
    "Keep",
    "MultiWindowDinEncoderConfig",
    "PoolingEncoderConfig",
    "RecurrentEncoderConfig",
    "SelfAttentionEncoderConfig",
    "SimpleAttentionConfig",
    "TransformerEncoderConfig",
    "build_encoder",
    "encoder_kind",
    "encoder_problems",
    "reads_query",
    "torcheasyrec_names",
]
