# mypy: disable-error-code="type-arg"
from emberline.train.config.protos import embedding_pb2 as _embedding_pb2
from emberline.train.config.protos import optimizer_pb2 as _optimizer_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GradScaler(_message.Message):
    __slots__ = ("init_scale", "growth_factor", "backoff_factor", "growth_interval")
    INIT_SCALE_FIELD_NUMBER: _ClassVar[int]
    GROWTH_FACTOR_FIELD_NUMBER: _ClassVar[int]
    BACKOFF_FACTOR_FIELD_NUMBER: _ClassVar[int]
    GROWTH_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    init_scale: float
    growth_factor: float
    backoff_factor: float
    growth_interval: int
    def __init__(self, init_scale: _Optional[float] = ..., growth_factor: _Optional[float] = ..., backoff_factor: _Optional[float] = ..., growth_interval: _Optional[int] = ...) -> None: ...

class GradClipping(_message.Message):
    __slots__ = ("clipping_type", "max_gradient", "norm_type", "enable_global_grad_clip")
    CLIPPING_TYPE_FIELD_NUMBER: _ClassVar[int]
    MAX_GRADIENT_FIELD_NUMBER: _ClassVar[int]
    NORM_TYPE_FIELD_NUMBER: _ClassVar[int]
    ENABLE_GLOBAL_GRAD_CLIP_FIELD_NUMBER: _ClassVar[int]
    clipping_type: str
    max_gradient: float
    norm_type: float
    enable_global_grad_clip: bool
    def __init__(self, clipping_type: _Optional[str] = ..., max_gradient: _Optional[float] = ..., norm_type: _Optional[float] = ..., enable_global_grad_clip: _Optional[bool] = ...) -> None: ...

class DenseEma(_message.Message):
    __slots__ = ("decay",)
    DECAY_FIELD_NUMBER: _ClassVar[int]
    decay: float
    def __init__(self, decay: _Optional[float] = ...) -> None: ...

class DeltaEmbeddingDump(_message.Message):
    __slots__ = ("dump_interval_steps", "output_dir", "file_prefix", "dump_interval_minutes")
    DUMP_INTERVAL_STEPS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_DIR_FIELD_NUMBER: _ClassVar[int]
    FILE_PREFIX_FIELD_NUMBER: _ClassVar[int]
    DUMP_INTERVAL_MINUTES_FIELD_NUMBER: _ClassVar[int]
    dump_interval_steps: int
    output_dir: str
    file_prefix: str
    dump_interval_minutes: int
    def __init__(self, dump_interval_steps: _Optional[int] = ..., output_dir: _Optional[str] = ..., file_prefix: _Optional[str] = ..., dump_interval_minutes: _Optional[int] = ...) -> None: ...

class Planner(_message.Message):
    __slots__ = ("storage_reserve", "sample_batches", "hbm_bandwidth", "ddr_bandwidth", "hbm_to_ddr_bandwidth", "intra_node_bandwidth", "inter_node_bandwidth", "measure_bandwidths", "ssd_gib", "dynamicemb_slowdown", "dynamicemb_caching_ratio", "dynamicemb_hybrid_ratio", "disk_bandwidth")
    STORAGE_RESERVE_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_BATCHES_FIELD_NUMBER: _ClassVar[int]
    HBM_BANDWIDTH_FIELD_NUMBER: _ClassVar[int]
    DDR_BANDWIDTH_FIELD_NUMBER: _ClassVar[int]
    HBM_TO_DDR_BANDWIDTH_FIELD_NUMBER: _ClassVar[int]
    INTRA_NODE_BANDWIDTH_FIELD_NUMBER: _ClassVar[int]
    INTER_NODE_BANDWIDTH_FIELD_NUMBER: _ClassVar[int]
    MEASURE_BANDWIDTHS_FIELD_NUMBER: _ClassVar[int]
    SSD_GIB_FIELD_NUMBER: _ClassVar[int]
    DYNAMICEMB_SLOWDOWN_FIELD_NUMBER: _ClassVar[int]
    DYNAMICEMB_CACHING_RATIO_FIELD_NUMBER: _ClassVar[int]
    DYNAMICEMB_HYBRID_RATIO_FIELD_NUMBER: _ClassVar[int]
    DISK_BANDWIDTH_FIELD_NUMBER: _ClassVar[int]
    storage_reserve: float
    sample_batches: int
    hbm_bandwidth: float
    ddr_bandwidth: float
    hbm_to_ddr_bandwidth: float
    intra_node_bandwidth: float
    inter_node_bandwidth: float
    measure_bandwidths: bool
    ssd_gib: float
    dynamicemb_slowdown: float
    dynamicemb_caching_ratio: float
    dynamicemb_hybrid_ratio: float
    disk_bandwidth: float
    def __init__(self, storage_reserve: _Optional[float] = ..., sample_batches: _Optional[int] = ..., hbm_bandwidth: _Optional[float] = ..., ddr_bandwidth: _Optional[float] = ..., hbm_to_ddr_bandwidth: _Optional[float] = ..., intra_node_bandwidth: _Optional[float] = ..., inter_node_bandwidth: _Optional[float] = ..., measure_bandwidths: _Optional[bool] = ..., ssd_gib: _Optional[float] = ..., dynamicemb_slowdown: _Optional[float] = ..., dynamicemb_caching_ratio: _Optional[float] = ..., dynamicemb_hybrid_ratio: _Optional[float] = ..., disk_bandwidth: _Optional[float] = ...) -> None: ...

class TableConstraints(_message.Message):
    __slots__ = ("table", "sharding_types", "compute_kernels", "min_partition", "cache_load_factor", "pooling_factor", "ranks", "max_hbm_mib")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    SHARDING_TYPES_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_KERNELS_FIELD_NUMBER: _ClassVar[int]
    MIN_PARTITION_FIELD_NUMBER: _ClassVar[int]
    CACHE_LOAD_FACTOR_FIELD_NUMBER: _ClassVar[int]
    POOLING_FACTOR_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    MAX_HBM_MIB_FIELD_NUMBER: _ClassVar[int]
    table: str
    sharding_types: _containers.RepeatedScalarFieldContainer[str]
    compute_kernels: _containers.RepeatedScalarFieldContainer[str]
    min_partition: int
    cache_load_factor: float
    pooling_factor: float
    ranks: _containers.RepeatedScalarFieldContainer[int]
    max_hbm_mib: float
    def __init__(self, table: _Optional[str] = ..., sharding_types: _Optional[_Iterable[str]] = ..., compute_kernels: _Optional[_Iterable[str]] = ..., min_partition: _Optional[int] = ..., cache_load_factor: _Optional[float] = ..., pooling_factor: _Optional[float] = ..., ranks: _Optional[_Iterable[int]] = ..., max_hbm_mib: _Optional[float] = ...) -> None: ...

class Train(_message.Message):
    __slots__ = ("sparse_optimizer", "dense_optimizer", "num_steps", "num_epochs", "save_checkpoints_steps", "save_checkpoints_epochs", "fine_tune_checkpoint", "fine_tune_ckpt_param_map", "log_step_count_steps", "is_profiling", "use_tensorboard", "tensorboard_summaries", "cudnn_allow_tf32", "cuda_matmul_allow_tf32", "global_embedding_constraints", "mixed_precision", "grad_scaler", "gradient_accumulation_steps", "grad_clipping", "keep_checkpoint_max", "save_checkpoints_timestamp_interval", "save_checkpoints_timestamps", "save_checkpoints_timestamp_quorum", "delta_embedding_dump_config", "ema", "seed", "planner", "save_checkpoints_async", "table_constraints", "save_increments_steps")
    SPARSE_OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    DENSE_OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    NUM_STEPS_FIELD_NUMBER: _ClassVar[int]
    NUM_EPOCHS_FIELD_NUMBER: _ClassVar[int]
    SAVE_CHECKPOINTS_STEPS_FIELD_NUMBER: _ClassVar[int]
    SAVE_CHECKPOINTS_EPOCHS_FIELD_NUMBER: _ClassVar[int]
    FINE_TUNE_CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    FINE_TUNE_CKPT_PARAM_MAP_FIELD_NUMBER: _ClassVar[int]
    LOG_STEP_COUNT_STEPS_FIELD_NUMBER: _ClassVar[int]
    IS_PROFILING_FIELD_NUMBER: _ClassVar[int]
    USE_TENSORBOARD_FIELD_NUMBER: _ClassVar[int]
    TENSORBOARD_SUMMARIES_FIELD_NUMBER: _ClassVar[int]
    CUDNN_ALLOW_TF32_FIELD_NUMBER: _ClassVar[int]
    CUDA_MATMUL_ALLOW_TF32_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_EMBEDDING_CONSTRAINTS_FIELD_NUMBER: _ClassVar[int]
    MIXED_PRECISION_FIELD_NUMBER: _ClassVar[int]
    GRAD_SCALER_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_ACCUMULATION_STEPS_FIELD_NUMBER: _ClassVar[int]
    GRAD_CLIPPING_FIELD_NUMBER: _ClassVar[int]
    KEEP_CHECKPOINT_MAX_FIELD_NUMBER: _ClassVar[int]
    SAVE_CHECKPOINTS_TIMESTAMP_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    SAVE_CHECKPOINTS_TIMESTAMPS_FIELD_NUMBER: _ClassVar[int]
    SAVE_CHECKPOINTS_TIMESTAMP_QUORUM_FIELD_NUMBER: _ClassVar[int]
    DELTA_EMBEDDING_DUMP_CONFIG_FIELD_NUMBER: _ClassVar[int]
    EMA_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    PLANNER_FIELD_NUMBER: _ClassVar[int]
    SAVE_CHECKPOINTS_ASYNC_FIELD_NUMBER: _ClassVar[int]
    TABLE_CONSTRAINTS_FIELD_NUMBER: _ClassVar[int]
    SAVE_INCREMENTS_STEPS_FIELD_NUMBER: _ClassVar[int]
    sparse_optimizer: _optimizer_pb2.SparseOptimizer
    dense_optimizer: _optimizer_pb2.DenseOptimizer
    num_steps: int
    num_epochs: int
    save_checkpoints_steps: int
    save_checkpoints_epochs: int
    fine_tune_checkpoint: str
    fine_tune_ckpt_param_map: str
    log_step_count_steps: int
    is_profiling: bool
    use_tensorboard: bool
    tensorboard_summaries: _containers.RepeatedScalarFieldContainer[str]
    cudnn_allow_tf32: bool
    cuda_matmul_allow_tf32: bool
    global_embedding_constraints: _embedding_pb2.EmbeddingConstraints
    mixed_precision: str
    grad_scaler: GradScaler
    gradient_accumulation_steps: int
    grad_clipping: GradClipping
    keep_checkpoint_max: int
    save_checkpoints_timestamp_interval: int
    save_checkpoints_timestamps: _containers.RepeatedScalarFieldContainer[int]
    save_checkpoints_timestamp_quorum: float
    delta_embedding_dump_config: DeltaEmbeddingDump
    ema: DenseEma
    seed: int
    planner: Planner
    save_checkpoints_async: bool
    table_constraints: _containers.RepeatedCompositeFieldContainer[TableConstraints]
    save_increments_steps: int
    def __init__(self, sparse_optimizer: _Optional[_Union[_optimizer_pb2.SparseOptimizer, _Mapping]] = ..., dense_optimizer: _Optional[_Union[_optimizer_pb2.DenseOptimizer, _Mapping]] = ..., num_steps: _Optional[int] = ..., num_epochs: _Optional[int] = ..., save_checkpoints_steps: _Optional[int] = ..., save_checkpoints_epochs: _Optional[int] = ..., fine_tune_checkpoint: _Optional[str] = ..., fine_tune_ckpt_param_map: _Optional[str] = ..., log_step_count_steps: _Optional[int] = ..., is_profiling: _Optional[bool] = ..., use_tensorboard: _Optional[bool] = ..., tensorboard_summaries: _Optional[_Iterable[str]] = ..., cudnn_allow_tf32: _Optional[bool] = ..., cuda_matmul_allow_tf32: _Optional[bool] = ..., global_embedding_constraints: _Optional[_Union[_embedding_pb2.EmbeddingConstraints, _Mapping]] = ..., mixed_precision: _Optional[str] = ..., grad_scaler: _Optional[_Union[GradScaler, _Mapping]] = ..., gradient_accumulation_steps: _Optional[int] = ..., grad_clipping: _Optional[_Union[GradClipping, _Mapping]] = ..., keep_checkpoint_max: _Optional[int] = ..., save_checkpoints_timestamp_interval: _Optional[int] = ..., save_checkpoints_timestamps: _Optional[_Iterable[int]] = ..., save_checkpoints_timestamp_quorum: _Optional[float] = ..., delta_embedding_dump_config: _Optional[_Union[DeltaEmbeddingDump, _Mapping]] = ..., ema: _Optional[_Union[DenseEma, _Mapping]] = ..., seed: _Optional[int] = ..., planner: _Optional[_Union[Planner, _Mapping]] = ..., save_checkpoints_async: _Optional[bool] = ..., table_constraints: _Optional[_Iterable[_Union[TableConstraints, _Mapping]]] = ..., save_increments_steps: _Optional[int] = ...) -> None: ...

class Eval(_message.Message):
    __slots__ = ("num_steps", "log_step_count_steps", "evaluator_type")
    NUM_STEPS_FIELD_NUMBER: _ClassVar[int]
    LOG_STEP_COUNT_STEPS_FIELD_NUMBER: _ClassVar[int]
    EVALUATOR_TYPE_FIELD_NUMBER: _ClassVar[int]
    num_steps: int
    log_step_count_steps: int
    evaluator_type: str
    def __init__(self, num_steps: _Optional[int] = ..., log_step_count_steps: _Optional[int] = ..., evaluator_type: _Optional[str] = ...) -> None: ...

class Export(_message.Message):
    __slots__ = ("exporter_type", "best_exporter_metric", "metric_larger_is_better", "mixed_precision", "cudnn_allow_tf32", "cuda_matmul_allow_tf32", "use_dense_ema")
    EXPORTER_TYPE_FIELD_NUMBER: _ClassVar[int]
    BEST_EXPORTER_METRIC_FIELD_NUMBER: _ClassVar[int]
    METRIC_LARGER_IS_BETTER_FIELD_NUMBER: _ClassVar[int]
    MIXED_PRECISION_FIELD_NUMBER: _ClassVar[int]
    CUDNN_ALLOW_TF32_FIELD_NUMBER: _ClassVar[int]
    CUDA_MATMUL_ALLOW_TF32_FIELD_NUMBER: _ClassVar[int]
    USE_DENSE_EMA_FIELD_NUMBER: _ClassVar[int]
    exporter_type: str
    best_exporter_metric: str
    metric_larger_is_better: bool
    mixed_precision: str
    cudnn_allow_tf32: bool
    cuda_matmul_allow_tf32: bool
    use_dense_ema: bool
    def __init__(self, exporter_type: _Optional[str] = ..., best_exporter_metric: _Optional[str] = ..., metric_larger_is_better: _Optional[bool] = ..., mixed_precision: _Optional[str] = ..., cudnn_allow_tf32: _Optional[bool] = ..., cuda_matmul_allow_tf32: _Optional[bool] = ..., use_dense_ema: _Optional[bool] = ...) -> None: ...
