"""Raw features: numbers as they are, embedded, or bucketised by boundaries."""

import itertools
import math
from collections.abc import Sequence

from emberline.schema import BoundaryEncoder, BucketEncoder, Encoder, FeatureKind, FeatureSpec, NumericEncoder
from emberline.train.features.common import DTYPES, Context, check_count, check_table, source
from emberline.train.features.configs import AutoDisConfig, RawFeatureConfig
from emberline.train.features.feature import NEG_DATA_GROUP, Feature
from emberline.train.features.sentences import Absence


def raw_feature(config: RawFeatureConfig, context: Context, problems: list[str]) -> Feature | None:
    """The feature, or None with what is wrong added to `problems`."""
    where = source(config, (config.expression,) if config.expression else (), NEG_DATA_GROUP, context, problems)
    is_sparse = bool(config.boundaries)
    check_count("value_dim", config.value_dim, 0 if is_sparse else 1, problems)
    if is_sparse:
        _check_sparse(config, problems)
    else:
        _check_dense(config, problems)
    default = config.fg_encoded_default_value if context.encoded else config.default_value or None
    if problems:
        return None
    spec = FeatureSpec(
        name=config.feature_name,
        kind=FeatureKind.SPARSE if is_sparse else FeatureKind.DENSE,
        columns=where.columns,
        encoder=_encoder(config, context),
        side=where.side,
        value_dim=config.value_dim,
        separator=where.separator,
        default=default,
        encoded=context.encoded,
    )
    if not is_sparse:
        width = config.embedding_dim if config.dense_emb is not None else 0
        return Feature(name=config.feature_name, spec=spec, data_group=where.data_group, embedding_dim=width, dense_embedding=config.dense_emb)
    return Feature(
        name=config.feature_name,
        spec=spec,
        data_group=where.data_group,
        embedding_dim=config.embedding_dim,
        embedding_name=config.embedding_name or f"{config.feature_name}_emb",
        rows=len(config.boundaries) + 1,
        pooling=config.pooling,
        init=config.init_fn,
        dtype=DTYPES[config.data_type],
        trainable=config.trainable,
        constraints=config.embedding_constraints,
    )


def raw_notes(config: RawFeatureConfig) -> list[str]:
    """What the feature's config says that has no effect: settings of a table that it does not have."""
    if config.boundaries or config.dense_emb is not None:
        return []
    given = {
        "embedding_dim": config.embedding_dim > 0,
        "embedding_name": bool(config.embedding_name),
        "init_fn": config.init_fn is not None,
        "embedding_constraints": config.embedding_constraints is not None,
    }
    inert = [name for name, is_given in given.items() if is_given]
    return [f"feature {config.feature_name!r}: {', '.join(inert)} has no effect without boundaries, autodis or mlp"] if inert else []


def _encoder(config: RawFeatureConfig, context: Context) -> Encoder:
    if not config.boundaries:
        return NumericEncoder(normalizer=None if context.encoded else config.normalizer)
    if context.encoded:
        return BucketEncoder(rows=len(config.boundaries) + 1)
    return BoundaryEncoder(boundaries=config.boundaries, normalizer=config.normalizer)


def _check_sparse(config: RawFeatureConfig, problems: list[str]) -> None:
    check_table(config, False, problems)
    problems += _boundary_problems(config.boundaries)
    if config.dense_emb is not None:
        kind = "autodis" if isinstance(config.dense_emb, AutoDisConfig) else "mlp"
        problems.append(f"boundaries and {kind} exclude each other: buckets of numbers have a table already")


def _boundary_problems(boundaries: Sequence[float]) -> list[str]:
    if not all(map(math.isfinite, boundaries)):
        return ["boundaries must be finite numbers"]
    for before, after in itertools.pairwise(boundaries):
        if not before < after:
            return [f"boundaries must ascend, found {after:.9g} after {before:.9g}"]
    return []


def _check_dense(config: RawFeatureConfig, problems: list[str]) -> None:
    """A dense embedding has no table: what would set one up is refused, not ignored."""
    embedding = config.dense_emb
    if not config.trainable:
        problems.append("trainable: false needs boundaries: only tables can be frozen")
    if embedding is None:
        return
    if config.embedding_dim < 1:
        problems.append(Absence("embedding_dim must be set, to 1 or more: the width of its embedding"))
    for name in ("embedding_name", "init_fn", "embedding_constraints"):
        if getattr(config, name):
            problems.append(f"{name} is for tables; autodis and mlp have none")
    if config.data_type != "FP32":
        problems.append("data_type is for tables; autodis and mlp are FP32")
    if isinstance(embedding, AutoDisConfig):
        problems += _autodis_problems(config, embedding)


def _autodis_problems(config: RawFeatureConfig, autodis: AutoDisConfig) -> list[str]:
    found = []
    if config.value_dim > 1:
        found.append(f"autodis: value_dim must be 1, found {config.value_dim}; use mlp for vectors")
    if autodis.num_channels < 1:
        found.append(f"autodis: num_channels must be at least 1, found {autodis.num_channels}")
    if not (math.isfinite(autodis.temperature) and autodis.temperature > 0.0):
        found.append(f"autodis: temperature must be above 0, found {autodis.temperature}")
    if not math.isfinite(autodis.keep_prob):
        found.append(f"autodis: keep_prob must be a finite number, found {autodis.keep_prob}")
    return found
