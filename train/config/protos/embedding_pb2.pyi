# mypy: disable-error-code="type-arg"
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EmbeddingConstraints(_message.Message):
    __slots__ = ("sharding_types", "compute_kernels", "min_partition", "cache_load_factor", "pooling_factor", "ranks", "max_hbm_mib")
    SHARDING_TYPES_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_KERNELS_FIELD_NUMBER: _ClassVar[int]
    MIN_PARTITION_FIELD_NUMBER: _ClassVar[int]
    CACHE_LOAD_FACTOR_FIELD_NUMBER: _ClassVar[int]
    POOLING_FACTOR_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    MAX_HBM_MIB_FIELD_NUMBER: _ClassVar[int]
    sharding_types: _containers.RepeatedScalarFieldContainer[str]
    compute_kernels: _containers.RepeatedScalarFieldContainer[str]
    min_partition: int
    cache_load_factor: float
    pooling_factor: float
    ranks: _containers.RepeatedScalarFieldContainer[int]
    max_hbm_mib: float
    def __init__(self, sharding_types: _Optional[_Iterable[str]] = ..., compute_kernels: _Optional[_Iterable[str]] = ..., min_partition: _Optional[int] = ..., cache_load_factor: _Optional[float] = ..., pooling_factor: _Optional[float] = ..., ranks: _Optional[_Iterable[int]] = ..., max_hbm_mib: _Optional[float] = ...) -> None: ...

class LfuEviction(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LruEviction(_message.Message):
    __slots__ = ("decay_exponent",)
    DECAY_EXPONENT_FIELD_NUMBER: _ClassVar[int]
    decay_exponent: float
    def __init__(self, decay_exponent: _Optional[float] = ...) -> None: ...

class DistanceLfuEviction(_message.Message):
    __slots__ = ("decay_exponent",)
    DECAY_EXPONENT_FIELD_NUMBER: _ClassVar[int]
    decay_exponent: float
    def __init__(self, decay_exponent: _Optional[float] = ...) -> None: ...

class TtlEviction(_message.Message):
    __slots__ = ("hours",)
    HOURS_FIELD_NUMBER: _ClassVar[int]
    hours: int
    def __init__(self, hours: _Optional[int] = ...) -> None: ...

class ZeroCollisionHash(_message.Message):
    __slots__ = ("zch_size", "eviction_interval", "lfu", "lru", "distance_lfu", "ttl", "threshold_filtering_func", "routing", "history_size", "kind", "buckets", "max_probe")
    ZCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    EVICTION_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    LFU_FIELD_NUMBER: _ClassVar[int]
    LRU_FIELD_NUMBER: _ClassVar[int]
    DISTANCE_LFU_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    THRESHOLD_FILTERING_FUNC_FIELD_NUMBER: _ClassVar[int]
    ROUTING_FIELD_NUMBER: _ClassVar[int]
    HISTORY_SIZE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    BUCKETS_FIELD_NUMBER: _ClassVar[int]
    MAX_PROBE_FIELD_NUMBER: _ClassVar[int]
    zch_size: int
    eviction_interval: int
    lfu: LfuEviction
    lru: LruEviction
    distance_lfu: DistanceLfuEviction
    ttl: TtlEviction
    threshold_filtering_func: str
    routing: str
    history_size: int
    kind: str
    buckets: int
    max_probe: int
    def __init__(self, zch_size: _Optional[int] = ..., eviction_interval: _Optional[int] = ..., lfu: _Optional[_Union[LfuEviction, _Mapping]] = ..., lru: _Optional[_Union[LruEviction, _Mapping]] = ..., distance_lfu: _Optional[_Union[DistanceLfuEviction, _Mapping]] = ..., ttl: _Optional[_Union[TtlEviction, _Mapping]] = ..., threshold_filtering_func: _Optional[str] = ..., routing: _Optional[str] = ..., history_size: _Optional[int] = ..., kind: _Optional[str] = ..., buckets: _Optional[int] = ..., max_probe: _Optional[int] = ...) -> None: ...

class AutoDisEmbedding(_message.Message):
    __slots__ = ("num_channels", "temperature", "keep_prob")
    NUM_CHANNELS_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    KEEP_PROB_FIELD_NUMBER: _ClassVar[int]
    num_channels: int
    temperature: float
    keep_prob: float
    def __init__(self, num_channels: _Optional[int] = ..., temperature: _Optional[float] = ..., keep_prob: _Optional[float] = ...) -> None: ...

class MlpEmbedding(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DynamicEmbInitializer(_message.Message):
    __slots__ = ("mode", "mean", "std_dev", "lower", "upper", "value")
    MODE_FIELD_NUMBER: _ClassVar[int]
    MEAN_FIELD_NUMBER: _ClassVar[int]
    STD_DEV_FIELD_NUMBER: _ClassVar[int]
    LOWER_FIELD_NUMBER: _ClassVar[int]
    UPPER_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    mode: str
    mean: float
    std_dev: float
    lower: float
    upper: float
    value: float
    def __init__(self, mode: _Optional[str] = ..., mean: _Optional[float] = ..., std_dev: _Optional[float] = ..., lower: _Optional[float] = ..., upper: _Optional[float] = ..., value: _Optional[float] = ...) -> None: ...

class DynamicEmbFrequencyAdmission(_message.Message):
    __slots__ = ("threshold", "initializer_args", "counter_capacity", "counter_bucket_capacity")
    THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    INITIALIZER_ARGS_FIELD_NUMBER: _ClassVar[int]
    COUNTER_CAPACITY_FIELD_NUMBER: _ClassVar[int]
    COUNTER_BUCKET_CAPACITY_FIELD_NUMBER: _ClassVar[int]
    threshold: int
    initializer_args: DynamicEmbInitializer
    counter_capacity: int
    counter_bucket_capacity: int
    def __init__(self, threshold: _Optional[int] = ..., initializer_args: _Optional[_Union[DynamicEmbInitializer, _Mapping]] = ..., counter_capacity: _Optional[int] = ..., counter_bucket_capacity: _Optional[int] = ...) -> None: ...

class DynamicEmbedding(_message.Message):
    __slots__ = ("initializer_args", "eval_initializer_args", "score_strategy", "max_capacity", "cache_load_factor", "init_capacity_per_rank", "init_table", "bucket_capacity", "frequency_admission_strategy")
    INITIALIZER_ARGS_FIELD_NUMBER: _ClassVar[int]
    EVAL_INITIALIZER_ARGS_FIELD_NUMBER: _ClassVar[int]
    SCORE_STRATEGY_FIELD_NUMBER: _ClassVar[int]
    MAX_CAPACITY_FIELD_NUMBER: _ClassVar[int]
    CACHE_LOAD_FACTOR_FIELD_NUMBER: _ClassVar[int]
    INIT_CAPACITY_PER_RANK_FIELD_NUMBER: _ClassVar[int]
    INIT_TABLE_FIELD_NUMBER: _ClassVar[int]
    BUCKET_CAPACITY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_ADMISSION_STRATEGY_FIELD_NUMBER: _ClassVar[int]
    initializer_args: DynamicEmbInitializer
    eval_initializer_args: DynamicEmbInitializer
    score_strategy: str
    max_capacity: int
    cache_load_factor: float
    init_capacity_per_rank: int
    init_table: str
    bucket_capacity: int
    frequency_admission_strategy: DynamicEmbFrequencyAdmission
    def __init__(self, initializer_args: _Optional[_Union[DynamicEmbInitializer, _Mapping]] = ..., eval_initializer_args: _Optional[_Union[DynamicEmbInitializer, _Mapping]] = ..., score_strategy: _Optional[str] = ..., max_capacity: _Optional[int] = ..., cache_load_factor: _Optional[float] = ..., init_capacity_per_rank: _Optional[int] = ..., init_table: _Optional[str] = ..., bucket_capacity: _Optional[int] = ..., frequency_admission_strategy: _Optional[_Union[DynamicEmbFrequencyAdmission, _Mapping]] = ...) -> None: ...
