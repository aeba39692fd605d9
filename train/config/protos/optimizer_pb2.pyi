# mypy: disable-error-code="type-arg"
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WeightDecayMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NONE: _ClassVar[WeightDecayMode]
    L2: _ClassVar[WeightDecayMode]
    DECOUPLE: _ClassVar[WeightDecayMode]
NONE: WeightDecayMode
L2: WeightDecayMode
DECOUPLE: WeightDecayMode

class FusedSgd(_message.Message):
    __slots__ = ("lr", "gradient_clipping", "max_gradient")
    LR_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_CLIPPING_FIELD_NUMBER: _ClassVar[int]
    MAX_GRADIENT_FIELD_NUMBER: _ClassVar[int]
    lr: float
    gradient_clipping: bool
    max_gradient: float
    def __init__(self, lr: _Optional[float] = ..., gradient_clipping: _Optional[bool] = ..., max_gradient: _Optional[float] = ...) -> None: ...

class FusedAdagrad(_message.Message):
    __slots__ = ("lr", "gradient_clipping", "max_gradient", "initial_accumulator_value")
    LR_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_CLIPPING_FIELD_NUMBER: _ClassVar[int]
    MAX_GRADIENT_FIELD_NUMBER: _ClassVar[int]
    INITIAL_ACCUMULATOR_VALUE_FIELD_NUMBER: _ClassVar[int]
    lr: float
    gradient_clipping: bool
    max_gradient: float
    initial_accumulator_value: float
    def __init__(self, lr: _Optional[float] = ..., gradient_clipping: _Optional[bool] = ..., max_gradient: _Optional[float] = ..., initial_accumulator_value: _Optional[float] = ...) -> None: ...

class FusedAdam(_message.Message):
    __slots__ = ("lr", "beta1", "beta2", "weight_decay", "gradient_clipping", "max_gradient")
    LR_FIELD_NUMBER: _ClassVar[int]
    BETA1_FIELD_NUMBER: _ClassVar[int]
    BETA2_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_DECAY_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_CLIPPING_FIELD_NUMBER: _ClassVar[int]
    MAX_GRADIENT_FIELD_NUMBER: _ClassVar[int]
    lr: float
    beta1: float
    beta2: float
    weight_decay: float
    gradient_clipping: bool
    max_gradient: float
    def __init__(self, lr: _Optional[float] = ..., beta1: _Optional[float] = ..., beta2: _Optional[float] = ..., weight_decay: _Optional[float] = ..., gradient_clipping: _Optional[bool] = ..., max_gradient: _Optional[float] = ...) -> None: ...

class FusedLarsSgd(_message.Message):
    __slots__ = ("lr", "momentum", "weight_decay", "gradient_clipping", "max_gradient")
    LR_FIELD_NUMBER: _ClassVar[int]
    MOMENTUM_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_DECAY_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_CLIPPING_FIELD_NUMBER: _ClassVar[int]
    MAX_GRADIENT_FIELD_NUMBER: _ClassVar[int]
    lr: float
    momentum: float
    weight_decay: float
    gradient_clipping: bool
    max_gradient: float
    def __init__(self, lr: _Optional[float] = ..., momentum: _Optional[float] = ..., weight_decay: _Optional[float] = ..., gradient_clipping: _Optional[bool] = ..., max_gradient: _Optional[float] = ...) -> None: ...

class FusedLamb(_message.Message):
    __slots__ = ("lr", "beta1", "beta2", "weight_decay", "gradient_clipping", "max_gradient")
    LR_FIELD_NUMBER: _ClassVar[int]
    BETA1_FIELD_NUMBER: _ClassVar[int]
    BETA2_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_DECAY_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_CLIPPING_FIELD_NUMBER: _ClassVar[int]
    MAX_GRADIENT_FIELD_NUMBER: _ClassVar[int]
    lr: float
    beta1: float
    beta2: float
    weight_decay: float
    gradient_clipping: bool
    max_gradient: float
    def __init__(self, lr: _Optional[float] = ..., beta1: _Optional[float] = ..., beta2: _Optional[float] = ..., weight_decay: _Optional[float] = ..., gradient_clipping: _Optional[bool] = ..., max_gradient: _Optional[float] = ...) -> None: ...

class FusedRowWiseAdagrad(_message.Message):
    __slots__ = ("lr", "weight_decay", "weight_decay_mode", "gradient_clipping", "max_gradient", "initial_accumulator_value")
    LR_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_DECAY_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_DECAY_MODE_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_CLIPPING_FIELD_NUMBER: _ClassVar[int]
    MAX_GRADIENT_FIELD_NUMBER: _ClassVar[int]
    INITIAL_ACCUMULATOR_VALUE_FIELD_NUMBER: _ClassVar[int]
    lr: float
    weight_decay: float
    weight_decay_mode: WeightDecayMode
    gradient_clipping: bool
    max_gradient: float
    initial_accumulator_value: float
    def __init__(self, lr: _Optional[float] = ..., weight_decay: _Optional[float] = ..., weight_decay_mode: _Optional[_Union[WeightDecayMode, str]] = ..., gradient_clipping: _Optional[bool] = ..., max_gradient: _Optional[float] = ..., initial_accumulator_value: _Optional[float] = ...) -> None: ...

class FusedAdadelta(_message.Message):
    __slots__ = ("lr", "rho", "eps", "weight_decay", "gradient_clipping", "max_gradient")
    LR_FIELD_NUMBER: _ClassVar[int]
    RHO_FIELD_NUMBER: _ClassVar[int]
    EPS_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_DECAY_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_CLIPPING_FIELD_NUMBER: _ClassVar[int]
    MAX_GRADIENT_FIELD_NUMBER: _ClassVar[int]
    lr: float
    rho: float
    eps: float
    weight_decay: float
    gradient_clipping: bool
    max_gradient: float
    def __init__(self, lr: _Optional[float] = ..., rho: _Optional[float] = ..., eps: _Optional[float] = ..., weight_decay: _Optional[float] = ..., gradient_clipping: _Optional[bool] = ..., max_gradient: _Optional[float] = ...) -> None: ...

class FusedRmsProp(_message.Message):
    __slots__ = ("lr", "alpha", "eps", "weight_decay", "gradient_clipping", "max_gradient")
    LR_FIELD_NUMBER: _ClassVar[int]
    ALPHA_FIELD_NUMBER: _ClassVar[int]
    EPS_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_DECAY_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_CLIPPING_FIELD_NUMBER: _ClassVar[int]
    MAX_GRADIENT_FIELD_NUMBER: _ClassVar[int]
    lr: float
    alpha: float
    eps: float
    weight_decay: float
    gradient_clipping: bool
    max_gradient: float
    def __init__(self, lr: _Optional[float] = ..., alpha: _Optional[float] = ..., eps: _Optional[float] = ..., weight_decay: _Optional[float] = ..., gradient_clipping: _Optional[bool] = ..., max_gradient: _Optional[float] = ...) -> None: ...

class Sgd(_message.Message):
    __slots__ = ("lr", "momentum", "weight_decay", "dampening", "nesterov", "fused")
    LR_FIELD_NUMBER: _ClassVar[int]
    MOMENTUM_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_DECAY_FIELD_NUMBER: _ClassVar[int]
    DAMPENING_FIELD_NUMBER: _ClassVar[int]
    NESTEROV_FIELD_NUMBER: _ClassVar[int]
    FUSED_FIELD_NUMBER: _ClassVar[int]
    lr: float
    momentum: float
    weight_decay: float
    dampening: float
    nesterov: bool
    fused: bool
    def __init__(self, lr: _Optional[float] = ..., momentum: _Optional[float] = ..., weight_decay: _Optional[float] = ..., dampening: _Optional[float] = ..., nesterov: _Optional[bool] = ..., fused: _Optional[bool] = ...) -> None: ...

class Adagrad(_message.Message):
    __slots__ = ("lr", "weight_decay", "initial_accumulator_value", "eps", "fused")
    LR_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_DECAY_FIELD_NUMBER: _ClassVar[int]
    INITIAL_ACCUMULATOR_VALUE_FIELD_NUMBER: _ClassVar[int]
    EPS_FIELD_NUMBER: _ClassVar[int]
    FUSED_FIELD_NUMBER: _ClassVar[int]
    lr: float
    weight_decay: float
    initial_accumulator_value: float
    eps: float
    fused: bool
    def __init__(self, lr: _Optional[float] = ..., weight_decay: _Optional[float] = ..., initial_accumulator_value: _Optional[float] = ..., eps: _Optional[float] = ..., fused: _Optional[bool] = ...) -> None: ...

class Adam(_message.Message):
    __slots__ = ("lr", "beta1", "beta2", "weight_decay", "eps", "amsgrad", "fused")
    LR_FIELD_NUMBER: _ClassVar[int]
    BETA1_FIELD_NUMBER: _ClassVar[int]
    BETA2_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_DECAY_FIELD_NUMBER: _ClassVar[int]
    EPS_FIELD_NUMBER: _ClassVar[int]
    AMSGRAD_FIELD_NUMBER: _ClassVar[int]
    FUSED_FIELD_NUMBER: _ClassVar[int]
    lr: float
    beta1: float
    beta2: float
    weight_decay: float
    eps: float
    amsgrad: bool
    fused: bool
    def __init__(self, lr: _Optional[float] = ..., beta1: _Optional[float] = ..., beta2: _Optional[float] = ..., weight_decay: _Optional[float] = ..., eps: _Optional[float] = ..., amsgrad: _Optional[bool] = ..., fused: _Optional[bool] = ...) -> None: ...

class Adadelta(_message.Message):
    __slots__ = ("lr", "rho", "eps", "weight_decay")
    LR_FIELD_NUMBER: _ClassVar[int]
    RHO_FIELD_NUMBER: _ClassVar[int]
    EPS_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_DECAY_FIELD_NUMBER: _ClassVar[int]
    lr: float
    rho: float
    eps: float
    weight_decay: float
    def __init__(self, lr: _Optional[float] = ..., rho: _Optional[float] = ..., eps: _Optional[float] = ..., weight_decay: _Optional[float] = ...) -> None: ...

class RmsProp(_message.Message):
    __slots__ = ("lr", "alpha", "eps", "weight_decay", "momentum", "centered")
    LR_FIELD_NUMBER: _ClassVar[int]
    ALPHA_FIELD_NUMBER: _ClassVar[int]
    EPS_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_DECAY_FIELD_NUMBER: _ClassVar[int]
    MOMENTUM_FIELD_NUMBER: _ClassVar[int]
    CENTERED_FIELD_NUMBER: _ClassVar[int]
    lr: float
    alpha: float
    eps: float
    weight_decay: float
    momentum: float
    centered: bool
    def __init__(self, lr: _Optional[float] = ..., alpha: _Optional[float] = ..., eps: _Optional[float] = ..., weight_decay: _Optional[float] = ..., momentum: _Optional[float] = ..., centered: _Optional[bool] = ...) -> None: ...

class ConstantLr(_message.Message):
    __slots__ = ("warmup_learning_rate", "warmup_size", "by_epoch")
    WARMUP_LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    WARMUP_SIZE_FIELD_NUMBER: _ClassVar[int]
    BY_EPOCH_FIELD_NUMBER: _ClassVar[int]
    warmup_learning_rate: float
    warmup_size: int
    by_epoch: bool
    def __init__(self, warmup_learning_rate: _Optional[float] = ..., warmup_size: _Optional[int] = ..., by_epoch: _Optional[bool] = ...) -> None: ...

class ExponentialDecayLr(_message.Message):
    __slots__ = ("decay_size", "decay_factor", "staircase", "warmup_learning_rate", "warmup_size", "min_learning_rate", "by_epoch")
    DECAY_SIZE_FIELD_NUMBER: _ClassVar[int]
    DECAY_FACTOR_FIELD_NUMBER: _ClassVar[int]
    STAIRCASE_FIELD_NUMBER: _ClassVar[int]
    WARMUP_LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    WARMUP_SIZE_FIELD_NUMBER: _ClassVar[int]
    MIN_LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    BY_EPOCH_FIELD_NUMBER: _ClassVar[int]
    decay_size: int
    decay_factor: float
    staircase: bool
    warmup_learning_rate: float
    warmup_size: int
    min_learning_rate: float
    by_epoch: bool
    def __init__(self, decay_size: _Optional[int] = ..., decay_factor: _Optional[float] = ..., staircase: _Optional[bool] = ..., warmup_learning_rate: _Optional[float] = ..., warmup_size: _Optional[int] = ..., min_learning_rate: _Optional[float] = ..., by_epoch: _Optional[bool] = ...) -> None: ...

class ManualStepLr(_message.Message):
    __slots__ = ("schedule_sizes", "learning_rates", "warmup", "by_epoch", "warmup_learning_rate", "warmup_size")
    SCHEDULE_SIZES_FIELD_NUMBER: _ClassVar[int]
    LEARNING_RATES_FIELD_NUMBER: _ClassVar[int]
    WARMUP_FIELD_NUMBER: _ClassVar[int]
    BY_EPOCH_FIELD_NUMBER: _ClassVar[int]
    WARMUP_LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    WARMUP_SIZE_FIELD_NUMBER: _ClassVar[int]
    schedule_sizes: _containers.RepeatedScalarFieldContainer[int]
    learning_rates: _containers.RepeatedScalarFieldContainer[float]
    warmup: bool
    by_epoch: bool
    warmup_learning_rate: float
    warmup_size: int
    def __init__(self, schedule_sizes: _Optional[_Iterable[int]] = ..., learning_rates: _Optional[_Iterable[float]] = ..., warmup: _Optional[bool] = ..., by_epoch: _Optional[bool] = ..., warmup_learning_rate: _Optional[float] = ..., warmup_size: _Optional[int] = ...) -> None: ...

class CosineAnnealingLr(_message.Message):
    __slots__ = ("T_max", "min_learning_rate", "warmup_learning_rate", "warmup_size", "by_epoch")
    T_MAX_FIELD_NUMBER: _ClassVar[int]
    MIN_LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    WARMUP_LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    WARMUP_SIZE_FIELD_NUMBER: _ClassVar[int]
    BY_EPOCH_FIELD_NUMBER: _ClassVar[int]
    T_max: int
    min_learning_rate: float
    warmup_learning_rate: float
    warmup_size: int
    by_epoch: bool
    def __init__(self, T_max: _Optional[int] = ..., min_learning_rate: _Optional[float] = ..., warmup_learning_rate: _Optional[float] = ..., warmup_size: _Optional[int] = ..., by_epoch: _Optional[bool] = ...) -> None: ...

class CosineAnnealingWarmRestartsLr(_message.Message):
    __slots__ = ("T_0", "T_mult", "min_learning_rate", "warmup_learning_rate", "warmup_size", "by_epoch")
    T_0_FIELD_NUMBER: _ClassVar[int]
    T_MULT_FIELD_NUMBER: _ClassVar[int]
    MIN_LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    WARMUP_LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    WARMUP_SIZE_FIELD_NUMBER: _ClassVar[int]
    BY_EPOCH_FIELD_NUMBER: _ClassVar[int]
    T_0: int
    T_mult: int
    min_learning_rate: float
    warmup_learning_rate: float
    warmup_size: int
    by_epoch: bool
    def __init__(self, T_0: _Optional[int] = ..., T_mult: _Optional[int] = ..., min_learning_rate: _Optional[float] = ..., warmup_learning_rate: _Optional[float] = ..., warmup_size: _Optional[int] = ..., by_epoch: _Optional[bool] = ...) -> None: ...

class SparseOptimizer(_message.Message):
    __slots__ = ("sgd_optimizer", "adagrad_optimizer", "adam_optimizer", "lars_sgd_optimizer", "lamb_optimizer", "partial_rowwise_lamb_optimizer", "partial_rowwise_adam_optimizer", "rowwise_adagrad_optimizer", "adadelta_optimizer", "rmsprop_optimizer", "constant_learning_rate", "exponential_decay_learning_rate", "manual_step_learning_rate", "cosine_annealing_learning_rate", "cosine_annealing_warm_restarts_learning_rate")
    SGD_OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    ADAGRAD_OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    ADAM_OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    LARS_SGD_OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    LAMB_OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_ROWWISE_LAMB_OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_ROWWISE_ADAM_OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    ROWWISE_ADAGRAD_OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    ADADELTA_OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    RMSPROP_OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    CONSTANT_LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    EXPONENTIAL_DECAY_LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    MANUAL_STEP_LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    COSINE_ANNEALING_LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    COSINE_ANNEALING_WARM_RESTARTS_LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    sgd_optimizer: FusedSgd
    adagrad_optimizer: FusedAdagrad
    adam_optimizer: FusedAdam
    lars_sgd_optimizer: FusedLarsSgd
    lamb_optimizer: FusedLamb
    partial_rowwise_lamb_optimizer: FusedLamb
    partial_rowwise_adam_optimizer: FusedAdam
    rowwise_adagrad_optimizer: FusedRowWiseAdagrad
    adadelta_optimizer: FusedAdadelta
    rmsprop_optimizer: FusedRmsProp
    constant_learning_rate: ConstantLr
    exponential_decay_learning_rate: ExponentialDecayLr
    manual_step_learning_rate: ManualStepLr
    cosine_annealing_learning_rate: CosineAnnealingLr
    cosine_annealing_warm_restarts_learning_rate: CosineAnnealingWarmRestartsLr
    def __init__(self, sgd_optimizer: _Optional[_Union[FusedSgd, _Mapping]] = ..., adagrad_optimizer: _Optional[_Union[FusedAdagrad, _Mapping]] = ..., adam_optimizer: _Optional[_Union[FusedAdam, _Mapping]] = ..., lars_sgd_optimizer: _Optional[_Union[FusedLarsSgd, _Mapping]] = ..., lamb_optimizer: _Optional[_Union[FusedLamb, _Mapping]] = ..., partial_rowwise_lamb_optimizer: _Optional[_Union[FusedLamb, _Mapping]] = ..., partial_rowwise_adam_optimizer: _Optional[_Union[FusedAdam, _Mapping]] = ..., rowwise_adagrad_optimizer: _Optional[_Union[FusedRowWiseAdagrad, _Mapping]] = ..., adadelta_optimizer: _Optional[_Union[FusedAdadelta, _Mapping]] = ..., rmsprop_optimizer: _Optional[_Union[FusedRmsProp, _Mapping]] = ..., constant_learning_rate: _Optional[_Union[ConstantLr, _Mapping]] = ..., exponential_decay_learning_rate: _Optional[_Union[ExponentialDecayLr, _Mapping]] = ..., manual_step_learning_rate: _Optional[_Union[ManualStepLr, _Mapping]] = ..., cosine_annealing_learning_rate: _Optional[_Union[CosineAnnealingLr, _Mapping]] = ..., cosine_annealing_warm_restarts_learning_rate: _Optional[_Union[CosineAnnealingWarmRestartsLr, _Mapping]] = ...) -> None: ...

class DenseOptimizer(_message.Message):
    __slots__ = ("sgd_optimizer", "adagrad_optimizer", "adam_optimizer", "adamw_optimizer", "adadelta_optimizer", "rmsprop_optimizer", "constant_learning_rate", "exponential_decay_learning_rate", "manual_step_learning_rate", "cosine_annealing_learning_rate", "cosine_annealing_warm_restarts_learning_rate", "part_optimizers")
    SGD_OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    ADAGRAD_OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    ADAM_OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    ADAMW_OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    ADADELTA_OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    RMSPROP_OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    CONSTANT_LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    EXPONENTIAL_DECAY_LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    MANUAL_STEP_LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    COSINE_ANNEALING_LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    COSINE_ANNEALING_WARM_RESTARTS_LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    PART_OPTIMIZERS_FIELD_NUMBER: _ClassVar[int]
    sgd_optimizer: Sgd
    adagrad_optimizer: Adagrad
    adam_optimizer: Adam
    adamw_optimizer: Adam
    adadelta_optimizer: Adadelta
    rmsprop_optimizer: RmsProp
    constant_learning_rate: ConstantLr
    exponential_decay_learning_rate: ExponentialDecayLr
    manual_step_learning_rate: ManualStepLr
    cosine_annealing_learning_rate: CosineAnnealingLr
    cosine_annealing_warm_restarts_learning_rate: CosineAnnealingWarmRestartsLr
    part_optimizers: _containers.RepeatedCompositeFieldContainer[PartOptimizer]
    def __init__(self, sgd_optimizer: _Optional[_Union[Sgd, _Mapping]] = ..., adagrad_optimizer: _Optional[_Union[Adagrad, _Mapping]] = ..., adam_optimizer: _Optional[_Union[Adam, _Mapping]] = ..., adamw_optimizer: _Optional[_Union[Adam, _Mapping]] = ..., adadelta_optimizer: _Optional[_Union[Adadelta, _Mapping]] = ..., rmsprop_optimizer: _Optional[_Union[RmsProp, _Mapping]] = ..., constant_learning_rate: _Optional[_Union[ConstantLr, _Mapping]] = ..., exponential_decay_learning_rate: _Optional[_Union[ExponentialDecayLr, _Mapping]] = ..., manual_step_learning_rate: _Optional[_Union[ManualStepLr, _Mapping]] = ..., cosine_annealing_learning_rate: _Optional[_Union[CosineAnnealingLr, _Mapping]] = ..., cosine_annealing_warm_restarts_learning_rate: _Optional[_Union[CosineAnnealingWarmRestartsLr, _Mapping]] = ..., part_optimizers: _Optional[_Iterable[_Union[PartOptimizer, _Mapping]]] = ...) -> None: ...

class PartOptimizer(_message.Message):
    __slots__ = ("regex_pattern", "sgd_optimizer", "adagrad_optimizer", "adam_optimizer", "adamw_optimizer", "adadelta_optimizer", "rmsprop_optimizer", "constant_learning_rate", "exponential_decay_learning_rate", "manual_step_learning_rate", "cosine_annealing_learning_rate", "cosine_annealing_warm_restarts_learning_rate")
    REGEX_PATTERN_FIELD_NUMBER: _ClassVar[int]
    SGD_OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    ADAGRAD_OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    ADAM_OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    ADAMW_OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    ADADELTA_OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    RMSPROP_OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    CONSTANT_LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    EXPONENTIAL_DECAY_LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    MANUAL_STEP_LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    COSINE_ANNEALING_LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    COSINE_ANNEALING_WARM_RESTARTS_LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    regex_pattern: str
    sgd_optimizer: Sgd
    adagrad_optimizer: Adagrad
    adam_optimizer: Adam
    adamw_optimizer: Adam
    adadelta_optimizer: Adadelta
    rmsprop_optimizer: RmsProp
    constant_learning_rate: ConstantLr
    exponential_decay_learning_rate: ExponentialDecayLr
    manual_step_learning_rate: ManualStepLr
    cosine_annealing_learning_rate: CosineAnnealingLr
    cosine_annealing_warm_restarts_learning_rate: CosineAnnealingWarmRestartsLr
    def __init__(self, regex_pattern: _Optional[str] = ..., sgd_optimizer: _Optional[_Union[Sgd, _Mapping]] = ..., adagrad_optimizer: _Optional[_Union[Adagrad, _Mapping]] = ..., adam_optimizer: _Optional[_Union[Adam, _Mapping]] = ..., adamw_optimizer: _Optional[_Union[Adam, _Mapping]] = ..., adadelta_optimizer: _Optional[_Union[Adadelta, _Mapping]] = ..., rmsprop_optimizer: _Optional[_Union[RmsProp, _Mapping]] = ..., constant_learning_rate: _Optional[_Union[ConstantLr, _Mapping]] = ..., exponential_decay_learning_rate: _Optional[_Union[ExponentialDecayLr, _Mapping]] = ..., manual_step_learning_rate: _Optional[_Union[ManualStepLr, _Mapping]] = ..., cosine_annealing_learning_rate: _Optional[_Union[CosineAnnealingLr, _Mapping]] = ..., cosine_annealing_warm_restarts_learning_rate: _Optional[_Union[CosineAnnealingWarmRestartsLr, _Mapping]] = ...) -> None: ...
