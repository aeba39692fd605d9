"""Which features the embedding system can't take, as sentences for a ConfigError: for features that were put together by hand."""

from collections import Counter
from collections.abc import Iterator, Sequence

from emberline.train.features import AutoDisConfig, Feature
from emberline.train.features.common import DTYPES
from emberline.train.features.configs import SORTED
from emberline.train.features.names import named_problem, table_name_problem
from emberline.train.features.sentences import unknown_name


def feature_problems(features: Sequence[Feature]) -> Iterator[str]:
    """Features that are wrong by themselves, or have one name."""
    counts = Counter(feature.name for feature in features)
    for name, count in counts.items():
        if count > 1:
            yield f"feature {name!r}: {count} features have this name; give each a name of its own"
    for feature in features:
        problems = _sparse_problems(feature) if feature.is_sparse else _dense_problems(feature)
        yield from (f"feature {feature.name!r}: {problem}" for problem in [*_own_problems(feature), *problems])


def _own_problems(feature: Feature) -> Iterator[str]:
    if problem := named_problem("feature_name", feature.name):
        yield problem
    yield from feature.table_problems


def _sparse_problems(feature: Feature) -> Iterator[str]:
    if problem := table_name_problem(feature.embedding_name):
        yield f"embedding_name {problem}"
    if feature.embedding_dim < 1:
        yield f"embedding_dim must be at least 1, found {feature.embedding_dim}"
    if feature.rows < 1:
        yield f"its table must have at least 1 row, found {feature.rows}"
    if feature.dtype not in DTYPES.values():
        yield unknown_name("data_type", feature.dtype, DTYPES.values())
    if feature.zch is not None and feature.zch.kind == SORTED and feature.zch.eviction_policy is None:
        yield "zch has no policy; set one of lfu, lru, distance_lfu"
    if feature.zch is not None and feature.zch.zch_size != feature.rows:
        yield f"its table has {feature.rows} rows, but zch_size {feature.zch.zch_size}"


def _dense_problems(feature: Feature) -> Iterator[str]:
    if feature.value_dim < 1:
        yield f"value_dim must be at least 1 for a number, found {feature.value_dim}"
    elif isinstance(feature.dense_embedding, AutoDisConfig) and feature.value_dim != 1:
        yield f"autodis takes one number, and value_dim is {feature.value_dim}; use mlp, or value_dim 1"
    elif feature.dense_embedding is not None and feature.embedding_dim < 1:
        yield f"embedding_dim must be at least 1 for autodis and mlp, found {feature.embedding_dim}"
