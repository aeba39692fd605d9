"""Families of numbers: raw, and those computed from several columns; as they are, embedded, or bucketised by boundaries."""

from emberline.schema import BoundaryEncoder, BucketEncoder, Encoder, NumericEncoder
from emberline.train.features.common import Context, assemble, check_value_dim, source
from emberline.train.features.computed import expression_encoder
from emberline.train.features.configs import RawFeatureConfig
from emberline.train.features.family_configs import ExprFeatureConfig
from emberline.train.features.feature import Feature
from emberline.train.features.inputs import inputs_of
from emberline.train.features.numbers import boundary_problems, check_bucketised, check_dense
from emberline.train.features.sequence_configs import NumberConfig


def number_feature(config: NumberConfig, context: Context, problems: list[str]) -> Feature | None:
    """The feature, or None with what is wrong added to `problems`."""
    where = source(config, inputs_of(config), context, problems)
    is_sparse = bool(config.boundaries)
    value_dim = config.value_dim if isinstance(config, RawFeatureConfig | ExprFeatureConfig) else 1
    check_value_dim(value_dim, 0 if is_sparse else 1, problems)
    if is_sparse:
        check_bucketised(config, "boundaries", problems)
        problems += boundary_problems(config.boundaries)
    else:
        check_dense(config, value_dim, "boundaries", problems)
    encoder = _encoder(config, context, problems)
    if problems:
        return None
    return assemble(
        config,
        where,
        context,
        encoder=encoder,
        value_dim=value_dim,
        default=config.default_value if isinstance(config, RawFeatureConfig | ExprFeatureConfig) else None,
        rows=len(config.boundaries) + 1 if is_sparse else 0,
        dense_embedding=config.dense_emb,
    )


def _encoder(config: NumberConfig, context: Context, problems: list[str]) -> Encoder:
    if context.encoded:
        return BucketEncoder(rows=len(config.boundaries) + 1) if config.boundaries else NumericEncoder()
    normalizer = config.normalizer if isinstance(config, RawFeatureConfig) else None
    inner = BoundaryEncoder(boundaries=config.boundaries, normalizer=normalizer) if config.boundaries else NumericEncoder(normalizer=normalizer)
    return expression_encoder(config, inner, problems) if isinstance(config, ExprFeatureConfig) else inner
