"""What a config says about each feature, one frozen dataclass a family.

Field names are those of `feature.proto`; a oneof is one field under the oneof's name. `None` means not set. Nothing here is checked beyond
its type: `create_features` does that, and reports everything wrong at once.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberline.schema import Normalizer, Pooling

if TYPE_CHECKING:
    from emberline.train.config.functions import InitSpec, ThresholdFilterSpec


@dataclass(frozen=True, kw_only=True)
class LfuPolicy:
    """Keep the ids seen most often: score = count."""


@dataclass(frozen=True, kw_only=True)
class LruPolicy:
    """Keep the ids seen last: score = -(now - last + 1) ** decay_exponent."""

    decay_exponent: float = 1.0


@dataclass(frozen=True, kw_only=True)
class DistanceLfuPolicy:
    """Keep ids seen often and lately: score = count / (now - last + 1) ** decay_exponent."""

    decay_exponent: float = 1.0


EvictionPolicy = LfuPolicy | LruPolicy | DistanceLfuPolicy


@dataclass(frozen=True, kw_only=True)
class ZchConfig:
    """A zero-collision hash table: raw int64 ids get rows of their own as long as they score well.

    Args:
        zch_size: rows of the table; the last one is shared by all ids that have none.
        eviction_interval: training steps between two rounds of admission and eviction.
        eviction_policy: how ids are scored; never None in a `Feature`.
        threshold_filtering_func: which ids of the history may be admitted; None admits all.
    """

    zch_size: int
    eviction_interval: int = 5
    eviction_policy: EvictionPolicy | None = None
    threshold_filtering_func: "ThresholdFilterSpec | None" = None


@dataclass(frozen=True, kw_only=True)
class AutoDisConfig:
    """A number becomes a soft choice among `num_channels` learned vectors (AutoDis, Guo et al. 2021).

    Args:
        num_channels: learned vectors a feature.
        temperature: divides the scores before the softmax.
        keep_prob: the factor of the skip connection (a name kept from the reference; it is no dropout).
    """

    num_channels: int
    temperature: float = 0.1
    keep_prob: float = 0.8


@dataclass(frozen=True, kw_only=True)
class MlpEmbeddingConfig:
    """A number, or a vector of them, is projected to `embedding_dim` by one linear layer without bias."""


DenseEmbeddingConfig = AutoDisConfig | MlpEmbeddingConfig


@dataclass(frozen=True, kw_only=True)
class EmbeddingConstraints:
    """Which shardings and kernels the planner may choose for a table; empty allows all."""

    sharding_types: tuple[str, ...] = ()
    compute_kernels: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CommonFeatureConfig:
    """What every family has.

    Args:
        feature_name: unique in a config, without dots and `@`.
        embedding_name: the table's name; empty means `<feature_name>_emb`. Features with one name share a table.
        embedding_dim: width of the table or of the dense embedding; 0 where there is neither.
        pooling: how the vectors of one row's ids become one.
        separator: splits one text into several values; None means chr(29) for raw data, and the data config's own for encoded data.
        init_fn: how the table starts; None means uniform in +-sqrt(1 / rows).
        trainable: False freezes the table.
        data_type: FP32, FP16 or BF16.
        fg_encoded_default_value: used for a missing value where the data is encoded already; None leaves the bag empty.
        embedding_constraints: what the planner may choose.
    """

    feature_name: str
    embedding_name: str = ""
    embedding_dim: int = 0
    pooling: Pooling = Pooling.SUM
    separator: str | None = None
    init_fn: "InitSpec | None" = None
    trainable: bool = True
    data_type: str = "FP32"
    fg_encoded_default_value: str | None = None
    embedding_constraints: EmbeddingConstraints | None = None


@dataclass(frozen=True, kw_only=True)
class IdFeatureConfig(CommonFeatureConfig):
    """Ids: one or many a row, with or without weights. Exactly one source of rows must be set.

    Args:
        expression: the raw column as `side:column` or `column`; empty means the column called like the feature.
        hash_bucket_size: rows of a hashed table.
        num_buckets: rows of a table whose ids are rows already.
        vocab_list: words; row 0 is the default value's and row 1 that of unknown words, unless `default_bucketize_value` is set.
        vocab_dict: pairs of word and row, with the same rule.
        vocab_file: path of a file of words, or of words and rows, one a line; it needs `default_bucketize_value`.
        asset_dir: the folder that `vocab_file` is relative to; empty means the config's own.
        default_bucketize_value: the row of unknown values.
        zch: a zero-collision hash table.
        value_dim: most ids a row; 0 means any number.
        weighted: each id comes with a weight.
        default_value: used for a missing value; empty leaves the bag empty.
    """

    expression: str = ""
    hash_bucket_size: int | None = None
    num_buckets: int | None = None
    vocab_list: tuple[str, ...] = ()
    vocab_dict: tuple[tuple[str, int], ...] = ()
    vocab_file: str = ""
    asset_dir: str = ""
    default_bucketize_value: int | None = None
    zch: ZchConfig | None = None
    value_dim: int = 0
    weighted: bool = False
    default_value: str = ""


@dataclass(frozen=True, kw_only=True)
class RawFeatureConfig(CommonFeatureConfig):
    """Numbers: taken as they are, embedded (AutoDis, MLP), or bucketised by boundaries into ids.

    Args:
        expression: the raw column as `side:column` or `column`; empty means the column called like the feature.
        value_dim: numbers a row.
        boundaries: ascending; they turn each number into the id of its bucket.
        normalizer: applied before everything else.
        dense_emb: how numbers become vectors; None passes them through.
        default_value: used for a missing value.
    """

    expression: str = ""
    value_dim: int = 1
    boundaries: tuple[float, ...] = ()
    normalizer: Normalizer | None = None
    dense_emb: DenseEmbeddingConfig | None = None
    default_value: str = "0"


@dataclass(frozen=True, kw_only=True)
class ComboFeatureConfig(CommonFeatureConfig):
    """A cross: one id for each combination of its columns' values.

    Args:
        expression: the raw columns, each as `side:column` or `column`.
        hash_bucket_size: rows of a hashed table.
        vocab_list: as for ids; only for data that is encoded already.
        vocab_dict: as for ids; only for data that is encoded already.
        vocab_file: as for ids; only for data that is encoded already.
        asset_dir: the folder that `vocab_file` is relative to; empty means the config's own.
        default_bucketize_value: the row of unknown values.
        zch: a zero-collision hash table.
        value_dim: most ids a row; 0 means any number.
        default_value: used for a missing value; empty leaves the bag empty.
    """

    expression: tuple[str, ...] = ()
    hash_bucket_size: int | None = None
    vocab_list: tuple[str, ...] = ()
    vocab_dict: tuple[tuple[str, int], ...] = ()
    vocab_file: str = ""
    asset_dir: str = ""
    default_bucketize_value: int | None = None
    zch: ZchConfig | None = None
    value_dim: int = 0
    default_value: str = ""


FeatureConfig = IdFeatureConfig | RawFeatureConfig | ComboFeatureConfig
