"""Id and combo features: where their rows come from, and the encoder that leads there."""

import math

from emberline.schema import BucketEncoder, CrossEncoder, Encoder, FeatureKind, FeatureSpec, HashEncoder, RawIdEncoder
from emberline.train.features.common import DTYPES, Context, Source, attempt, check_count, check_table, source
from emberline.train.features.configs import ComboFeatureConfig, IdFeatureConfig, LfuPolicy, ZchConfig
from emberline.train.features.feature import CROSS_NEG_DATA_GROUP, NEG_DATA_GROUP, Feature
from emberline.train.features.sentences import Absence, prefixed
from emberline.train.features.vocabulary import vocabulary

SOURCES = ("zch", "hash_bucket_size", "num_buckets", "vocab_list", "vocab_dict", "vocab_file")
_VOCABULARIES = ("vocab_list", "vocab_dict", "vocab_file")
_LEAST_ZCH_SIZE = 2

SparseConfig = IdFeatureConfig | ComboFeatureConfig


def id_feature(config: SparseConfig, context: Context, problems: list[str]) -> Feature | None:
    """The feature, or None with what is wrong added to `problems`."""
    where = _source(config, context, problems)
    check_table(config, config.zch is not None, problems)
    check_count("value_dim", config.value_dim, 0, problems)
    rows_and_encoder = _rows_and_encoder(config, context, problems)
    if problems or rows_and_encoder is None:
        return None
    rows, encoder = rows_and_encoder
    spec = FeatureSpec(
        name=config.feature_name,
        kind=FeatureKind.SPARSE,
        columns=where.columns,
        encoder=encoder,
        side=where.side,
        value_dim=config.value_dim,
        weighted=isinstance(config, IdFeatureConfig) and config.weighted,
        separator=where.separator,
        default=config.fg_encoded_default_value if context.encoded else config.default_value or None,
        encoded=context.encoded,
    )
    return Feature(
        name=config.feature_name,
        spec=spec,
        data_group=where.data_group,
        embedding_dim=config.embedding_dim,
        embedding_name=config.embedding_name or f"{config.feature_name}_emb",
        rows=rows,
        pooling=config.pooling,
        init=config.init_fn,
        dtype=DTYPES[config.data_type],
        trainable=config.trainable,
        zch=config.zch,
        constraints=config.embedding_constraints,
    )


def _source(config: SparseConfig, context: Context, problems: list[str]) -> Source:
    if isinstance(config, IdFeatureConfig):
        return source(config, (config.expression,) if config.expression else (), NEG_DATA_GROUP, context, problems)
    if not config.expression and not context.encoded:
        problems.append(Absence("expression is missing: list the columns to cross, each as side:column"))
    return source(config, config.expression, CROSS_NEG_DATA_GROUP, context, problems)


def _rows_and_encoder(config: SparseConfig, context: Context, problems: list[str]) -> tuple[int, Encoder] | None:
    given = [name for name in SOURCES if getattr(config, name, None) not in (None, (), "")]
    choices = [name for name in SOURCES if hasattr(config, name)]
    if len(given) != 1:
        several = f"has {len(given)} sources of rows, {' and '.join(given)}; keep one"
        problems.append(several if given else Absence(f"has no source of rows; set one of {', '.join(choices)}"))
        return None
    kind = given[0]
    if config.default_bucketize_value is not None and kind not in (*_VOCABULARIES, "num_buckets"):
        problems.append(f"default_bucketize_value has no meaning beside {kind}: no value is unknown to it")
    rows = _rows(config, kind, problems)
    if rows is None:
        return None
    if kind == "zch":
        return rows, RawIdEncoder() if context.encoded or isinstance(config, IdFeatureConfig) else CrossEncoder()
    return rows, BucketEncoder(rows=rows) if context.encoded else _raw_encoder(config, kind, rows, problems)


def _rows(config: SparseConfig, kind: str, problems: list[str]) -> int | None:
    """Rows of the table; None with what is wrong added to `problems`."""
    found = len(problems)
    rows: int | None
    if config.zch is not None:
        _check_zch(config.zch, problems)
        rows = config.zch.zch_size
    elif kind in _VOCABULARIES:
        encoder = attempt(problems, vocabulary, config)
        rows = encoder.rows if encoder else None
        if rows is not None:
            check_count(f"rows of {kind}", rows, 1, problems)
    else:
        rows = config.num_buckets if isinstance(config, IdFeatureConfig) and kind == "num_buckets" else config.hash_bucket_size
        assert rows is not None
        check_count(kind, rows, 1, problems)
        oov_row = config.default_bucketize_value
        if kind == "num_buckets" and oov_row is not None and not 0 <= oov_row < rows:
            problems.append(f"default_bucketize_value {oov_row} is outside of the {rows} rows of num_buckets")
    return rows if len(problems) == found else None


def _raw_encoder(config: SparseConfig, kind: str, rows: int, problems: list[str]) -> Encoder:
    """The encoder of raw values, for anything but zch."""
    if isinstance(config, ComboFeatureConfig):
        if kind in _VOCABULARIES:
            problems.append(f"{kind} of a combo_feature is not supported yet for raw values (fg_mode FG_NORMAL); use hash_bucket_size or zch")
        return CrossEncoder(rows=rows)
    if kind == "hash_bucket_size":
        return HashEncoder(rows=rows)
    if kind == "num_buckets":
        return BucketEncoder(rows=rows, oov_row=config.default_bucketize_value)
    return vocabulary(config)


def _check_zch(zch: ZchConfig, problems: list[str]) -> None:
    found: list[str] = []
    check_count("zch_size", zch.zch_size, _LEAST_ZCH_SIZE, found)
    check_count("eviction_interval", zch.eviction_interval, 1, found)
    policy = zch.eviction_policy
    if policy is None:
        found.append(Absence("no eviction policy is set; add lfu {}, lru {} or distance_lfu {}"))
    elif not isinstance(policy, LfuPolicy) and not (math.isfinite(policy.decay_exponent) and policy.decay_exponent > 0.0):
        found.append(f"decay_exponent must be above 0, found {policy.decay_exponent}")
    problems += [prefixed("zch", text) for text in found]
