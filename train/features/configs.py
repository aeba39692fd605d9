"""What a config says about features: parts that all families share, and the plain families of ids, numbers and crosses.

Field names are those of `feature.proto`; a oneof is one field under the oneof's name. `None` means not set. Nothing here is checked beyond
its type: `create_features` does that, and reports everything wrong at once. `family_configs` has the other families, `sequence_configs`
what makes any of them a sequence.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberline.routing import MIXED
from emberline.schema import Keep, Normalizer, Pooling

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


@dataclass(frozen=True, kw_only=True)
class TtlPolicy:
    """Keep an id for so many hours after it was read, and then until another id wants its row."""

    hours: int | None = None


EvictionPolicy = LfuPolicy | LruPolicy | DistanceLfuPolicy | TtlPolicy
SORTED, HASHED = "mch", "mpzch"
ZCH_KINDS = (SORTED, HASHED)


@dataclass(frozen=True, kw_only=True)
class ZchConfig:
    """A zero-collision hash table: raw int64 ids get rows of their own as long as they score well.

    Args:
        zch_size: rows of the table; some are shared by the ids that have none.
        eviction_interval: of mch: training steps between two rounds of admission and eviction; None: 5.
        eviction_policy: which ids lose their rows; never None in a `Feature` of kind mch. With mpzch, None keeps every id that once has a row.
        threshold_filtering_func: of mch: which ids of the history may be admitted; None admits all.
        kind: `mch`, TorchRec's managed collisions by a sorted map, or `mpzch`, those by hashes.
        history_size: of mch: most ids, repeats included, that are kept between two rounds; later ones are dropped and counted. None: all.
        routing: how ids find their part of the table: `mixed`, which spreads any ids evenly, or `range`, as they are.
        buckets: of mpzch: parts of the table, of which every rank has as many; None: by the rows.
        max_probe: of mpzch: slots that an id may lie in; None: 128.
    """

    zch_size: int
    eviction_interval: int | None = None
    eviction_policy: EvictionPolicy | None = None
    threshold_filtering_func: "ThresholdFilterSpec | None" = None
    routing: str = MIXED
    history_size: int | None = None
    kind: str = SORTED
    buckets: int | None = None
    max_probe: int | None = None

    @property
    def interval(self) -> int | None:
        """The `eviction_interval`, given or not; None where the kind has none."""
        return None if self.kind == HASHED else 5 if self.eviction_interval is None else self.eviction_interval


@dataclass(frozen=True, kw_only=True)
class DynamicEmbInitializerConfig:
    """How vectors of a dynamic table begin; what is left out is completed by `features.dynamic`.

    Args:
        mode: NORMAL, TRUNCATED_NORMAL, UNIFORM or CONSTANT; empty: UNIFORM for first vectors, else CONSTANT.
        mean: of the first two; None: 0.
        std_dev: of the same; None: 1 / sqrt(embedding_dim).
        lower: of UNIFORM (None: -1 / sqrt(max_capacity)) and TRUNCATED_NORMAL (None: two std_dev below the mean).
        upper: likewise, above.
        value: of CONSTANT; None: 0.
    """

    mode: str = ""
    mean: float | None = None
    std_dev: float | None = None
    lower: float | None = None
    upper: float | None = None
    value: float | None = None


@dataclass(frozen=True, kw_only=True)
class DynamicEmbFrequencyAdmissionConfig:
    """An id gets a row when training has read it `threshold` times.

    Args:
        threshold: at least 1.
        initializer_args: draws the one vector that ids read which were not admitted yet; None: zeros.
        counter_capacity: most ids that are counted; None: `max_capacity`.
        counter_bucket_capacity: of NVIDIA's counter; None: 1024.
    """

    threshold: int
    initializer_args: DynamicEmbInitializerConfig | None = None
    counter_capacity: int | None = None
    counter_bucket_capacity: int | None = None


@dataclass(frozen=True, kw_only=True)
class DynamicEmbConfig:
    """A dynamic table: it grows with its ids, which may be any int64, up to `max_capacity` rows.

    Args:
        max_capacity: most rows, all ranks together.
        initializer_args: draws an id's first vector; None: uniform in +-1 / sqrt(max_capacity).
        eval_initializer_args: draws the one vector that unknown ids read in evaluation and serving; None: zeros.
        score_strategy: which ids give way when the table is full, those of the lowest score: TIMESTAMP or STEP (not read for longest), LFU
            (read least), CUSTOMIZED (what the caller sets), or NO_EVICTION.
        cache_load_factor: share of the rows' bytes that the fast tier holds, above 0 to 1; None: the planner chooses.
        init_capacity_per_rank: rows that each rank has room for at first; None: the kernel's choice.
        bucket_capacity: of NVIDIA's table, and of the planner's estimate of it; None: 128.
        init_table: a parquet file of first vectors, with columns `id` and `vector`, for a run that begins; empty for none.
        admission_strategy: when an id gets a row; None: at once.
    """

    max_capacity: int
    initializer_args: DynamicEmbInitializerConfig | None = None
    eval_initializer_args: DynamicEmbInitializerConfig | None = None
    score_strategy: str = "STEP"
    cache_load_factor: float | None = None
    init_capacity_per_rank: int | None = None
    bucket_capacity: int | None = None
    init_table: str = ""
    admission_strategy: DynamicEmbFrequencyAdmissionConfig | None = None


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
    """What the planner may choose for a table.

    Args:
        sharding_types: how it may be cut; empty allows all.
        compute_kernels: what may hold it; empty allows all.
        min_partition: least columns of a shard.
        cache_load_factor: share of the rows that `fused_uvm_caching` keeps on the GPU; None leaves it to the planner.
        pooling_factor: mean ids a row of the feature, of a sequence over all its steps; None: measured, or assumed.
        ranks: the only ranks that may hold it; empty allows all.
        max_hbm_mib: most of its memory on one GPU, in MiB.
    """

    sharding_types: tuple[str, ...] = ()
    compute_kernels: tuple[str, ...] = ()
    min_partition: int | None = None
    cache_load_factor: float | None = None
    pooling_factor: float | None = None
    ranks: tuple[int, ...] = ()
    max_hbm_mib: float | None = None


@dataclass(frozen=True, kw_only=True)
class CommonFeatureConfig:
    """What every family has.

    Args:
        feature_name: unique in a config, without dots and `@`.
        embedding_name: the table's name; empty means `<feature_name>_emb`. Features with one name share a table.
        embedding_dim: width of the table or of the dense embedding; 0 where there is neither.
        pooling: how the vectors of one row's ids become one; in a sequence, those of one step's ids.
        init_fn: how the table starts; None means uniform in +-sqrt(1 / rows).
        trainable: False freezes the table.
        data_type: FP32, FP16 or BF16.
        fg_encoded_default_value: used for a missing value where the data is encoded already; None leaves the bag empty.
        embedding_constraints: what the planner may choose.
        sequence_length: of a sequence of its own: most steps that are kept; None or 0: all.
        sequence_delim: of a sequence of its own: what is between two steps of a text; None: `;`.
        sequence_fields: of a sequence: which of its raw columns have steps; empty: see `sequence_configs`.
        sequence_keep: of a sequence of its own: which steps of a longer one are kept; None: the newest.
    """

    feature_name: str
    embedding_name: str = ""
    embedding_dim: int = 0
    pooling: Pooling = Pooling.SUM
    init_fn: "InitSpec | None" = None
    trainable: bool = True
    data_type: str = "FP32"
    fg_encoded_default_value: str | None = None
    embedding_constraints: EmbeddingConstraints | None = None
    sequence_length: int | None = None
    sequence_delim: str | None = None
    sequence_fields: tuple[str, ...] = ()
    sequence_keep: Keep | None = None


@dataclass(frozen=True, kw_only=True)
class SplitFeatureConfig(CommonFeatureConfig):
    """A family that reads several values from one text.

    Args:
        separator: splits it; None means chr(29) for raw data, and the data config's own for encoded data.
    """

    separator: str | None = None


@dataclass(frozen=True, kw_only=True)
class HashOrVocabularyConfig(SplitFeatureConfig):
    """Where ids may get their rows from.

    Args:
        hash_bucket_size: rows of a hashed table.
        vocab_list: words; row 0 is the default value's and row 1 that of unknown words, unless `default_bucketize_value` is set.
        vocab_dict: pairs of word and row, with the same rule.
        vocab_file: path of a file of words, or of words and rows, one a line; it needs `default_bucketize_value`.
        asset_dir: the folder that `vocab_file` is relative to; empty means the config's own.
        default_bucketize_value: the row of unknown values.
        zch: a zero-collision hash table.
        dynamicemb: a table that grows with its ids.
        default_value: used for a missing raw value; empty leaves the bag empty, and in a sequence means "0".
        value_dim: most ids a row, or a step; 0 means any number; None means 1 in a sequence, else any number.
    """

    hash_bucket_size: int | None = None
    vocab_list: tuple[str, ...] = ()
    vocab_dict: tuple[tuple[str, int], ...] = ()
    vocab_file: str = ""
    asset_dir: str = ""
    default_bucketize_value: int | None = None
    zch: ZchConfig | None = None
    dynamicemb: DynamicEmbConfig | None = None
    default_value: str = ""
    value_dim: int | None = None


@dataclass(frozen=True, kw_only=True)
class IdFeatureConfig(HashOrVocabularyConfig):
    """Ids: one or many a row, with or without weights. Exactly one source of rows must be set.

    Args:
        expression: the raw column as `side:column` or `column`; empty means the column called like the feature.
        num_buckets: rows of a table whose ids are rows already.
        weighted: each id comes with a weight.
    """

    expression: str = ""
    num_buckets: int | None = None
    weighted: bool = False


@dataclass(frozen=True, kw_only=True)
class RawFeatureConfig(SplitFeatureConfig):
    """Numbers: taken as they are, embedded (AutoDis, MLP), or bucketised by boundaries into ids.

    Args:
        expression: the raw column as `side:column` or `column`; empty means the column called like the feature.
        value_dim: numbers a row, or a step.
        boundaries: ascending; they turn each number into the id of its bucket.
        normalizer: applied before everything else.
        dense_emb: how numbers become vectors; None passes them through.
        default_value: used for a missing raw value.
    """

    expression: str = ""
    value_dim: int = 1
    boundaries: tuple[float, ...] = ()
    normalizer: Normalizer | None = None
    dense_emb: DenseEmbeddingConfig | None = None
    default_value: str = "0"


@dataclass(frozen=True, kw_only=True)
class ComboFeatureConfig(HashOrVocabularyConfig):
    """A cross: one id for each combination of its columns' values. Vocabularies are only for data that is encoded already.

    Args:
        expression: the raw columns, each as `side:column` or `column`.
    """

    expression: tuple[str, ...] = ()
