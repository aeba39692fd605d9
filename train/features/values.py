"""Families of values that are ids or numbers, as their config says: lookup, match, custom and combine."""

from emberline.schema import BucketEncoder, Encoder, NumericEncoder
from emberline.train.features.common import Context, assemble, check_count, check_table, check_value_dim, source
from emberline.train.features.computed import computed
from emberline.train.features.family_configs import CombineFeatureConfig, CustomFeatureConfig, MatchFeatureConfig
from emberline.train.features.feature import Feature
from emberline.train.features.inputs import inputs_of
from emberline.train.features.numbers import boundary_problems, check_bucketised, check_dense, check_no_embedding
from emberline.train.features.rows import growth_of, kind_of, rows_and_encoder, sources_of
from emberline.train.features.sequence_configs import ValueConfig

ANY_SOURCE = "a source of rows"


def value_feature(config: ValueConfig, context: Context, problems: list[str]) -> Feature | None:
    """The feature, or None with what is wrong added to `problems`."""
    where = source(config, inputs_of(config), context, problems)
    value_dim = 1 if config.value_dim is None else config.value_dim
    given = sources_of(config)
    rows = 0
    inner: Encoder | None
    if given:
        check_table(config, kind_of(config), problems)
        check_value_dim(value_dim, 0, problems)
        check_no_embedding(config.dense_emb, given[0], problems)
        rows, inner = rows_and_encoder(config, context, problems) or (0, None)
    else:
        value_dim = max(value_dim, 1)
        check_value_dim(value_dim, 1, problems)
        if isinstance(config, MatchFeatureConfig) and value_dim > 1:
            problems.append(f"value_dim must be 1 for a number, found {value_dim}: a match finds one")
        check_dense(config, value_dim, ANY_SOURCE, problems)
        inner = NumericEncoder(normalizer=None if context.encoded or isinstance(config, CustomFeatureConfig) else config.normalizer)
    if not context.encoded and not isinstance(config, CustomFeatureConfig):
        inner = computed(config, inner, value_dim, where, problems)
    if problems or inner is None:
        return None
    return assemble(
        config,
        where,
        context,
        encoder=inner,
        value_dim=value_dim,
        default=config.default_value,
        rows=rows,
        zch=config.zch,
        dynamicemb=growth_of(config),
        dense_embedding=config.dense_emb,
    )


def combine_feature(config: CombineFeatureConfig, context: Context, problems: list[str]) -> Feature | None:
    """The feature, or None with what is wrong added to `problems`."""
    where = source(config, inputs_of(config), context, problems)
    rows = 0
    if config.num_buckets is not None and config.boundaries:
        problems.append("has 2 sources of rows, num_buckets and boundaries; keep one")
    elif config.num_buckets is not None:
        check_bucketised(config, "num_buckets", problems)
        check_count("num_buckets", config.num_buckets, 1, problems)
        rows = config.num_buckets
    elif config.boundaries:
        check_bucketised(config, "boundaries", problems)
        problems += boundary_problems(config.boundaries)
        rows = len(config.boundaries) + 1
    else:
        check_dense(config, 1, "num_buckets or boundaries", problems)
    if problems:
        return None
    encoder: Encoder = BucketEncoder(rows=rows) if rows else NumericEncoder()
    return assemble(config, where, context, encoder=encoder, value_dim=1, default=None, rows=rows, dense_embedding=config.dense_emb)
