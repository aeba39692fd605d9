# mypy: disable-error-code="type-arg"
from emberline.train.config.protos import group_pb2 as _group_pb2
from emberline.train.config.protos import module_pb2 as _module_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Similarity(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    INNER_PRODUCT: _ClassVar[Similarity]
    COSINE: _ClassVar[Similarity]

class Kernel(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TRITON: _ClassVar[Kernel]
    PYTORCH: _ClassVar[Kernel]
    CUTLASS: _ClassVar[Kernel]
INNER_PRODUCT: Similarity
COSINE: Similarity
TRITON: Kernel
PYTORCH: Kernel
CUTLASS: Kernel

class Dlrm(_message.Message):
    __slots__ = ("dense_mlp", "arch_with_sparse", "final")
    DENSE_MLP_FIELD_NUMBER: _ClassVar[int]
    ARCH_WITH_SPARSE_FIELD_NUMBER: _ClassVar[int]
    FINAL_FIELD_NUMBER: _ClassVar[int]
    dense_mlp: _module_pb2.Mlp
    arch_with_sparse: bool
    final: _module_pb2.Mlp
    def __init__(self, dense_mlp: _Optional[_Union[_module_pb2.Mlp, _Mapping]] = ..., arch_with_sparse: _Optional[bool] = ..., final: _Optional[_Union[_module_pb2.Mlp, _Mapping]] = ...) -> None: ...

class DeepFm(_message.Message):
    __slots__ = ("deep", "final", "wide_embedding_dim", "wide_init_fn")
    DEEP_FIELD_NUMBER: _ClassVar[int]
    FINAL_FIELD_NUMBER: _ClassVar[int]
    WIDE_EMBEDDING_DIM_FIELD_NUMBER: _ClassVar[int]
    WIDE_INIT_FN_FIELD_NUMBER: _ClassVar[int]
    deep: _module_pb2.Mlp
    final: _module_pb2.Mlp
    wide_embedding_dim: int
    wide_init_fn: str
    def __init__(self, deep: _Optional[_Union[_module_pb2.Mlp, _Mapping]] = ..., final: _Optional[_Union[_module_pb2.Mlp, _Mapping]] = ..., wide_embedding_dim: _Optional[int] = ..., wide_init_fn: _Optional[str] = ...) -> None: ...

class WideAndDeep(_message.Message):
    __slots__ = ("deep", "final", "wide_embedding_dim", "wide_init_fn")
    DEEP_FIELD_NUMBER: _ClassVar[int]
    FINAL_FIELD_NUMBER: _ClassVar[int]
    WIDE_EMBEDDING_DIM_FIELD_NUMBER: _ClassVar[int]
    WIDE_INIT_FN_FIELD_NUMBER: _ClassVar[int]
    deep: _module_pb2.Mlp
    final: _module_pb2.Mlp
    wide_embedding_dim: int
    wide_init_fn: str
    def __init__(self, deep: _Optional[_Union[_module_pb2.Mlp, _Mapping]] = ..., final: _Optional[_Union[_module_pb2.Mlp, _Mapping]] = ..., wide_embedding_dim: _Optional[int] = ..., wide_init_fn: _Optional[str] = ...) -> None: ...

class Tower(_message.Message):
    __slots__ = ("input", "mlp")
    INPUT_FIELD_NUMBER: _ClassVar[int]
    MLP_FIELD_NUMBER: _ClassVar[int]
    input: str
    mlp: _module_pb2.Mlp
    def __init__(self, input: _Optional[str] = ..., mlp: _Optional[_Union[_module_pb2.Mlp, _Mapping]] = ...) -> None: ...

class DinTower(_message.Message):
    __slots__ = ("input", "attn_mlp")
    INPUT_FIELD_NUMBER: _ClassVar[int]
    ATTN_MLP_FIELD_NUMBER: _ClassVar[int]
    input: str
    attn_mlp: _module_pb2.Mlp
    def __init__(self, input: _Optional[str] = ..., attn_mlp: _Optional[_Union[_module_pb2.Mlp, _Mapping]] = ...) -> None: ...

class MultiTowerDin(_message.Message):
    __slots__ = ("towers", "din_towers", "final")
    TOWERS_FIELD_NUMBER: _ClassVar[int]
    DIN_TOWERS_FIELD_NUMBER: _ClassVar[int]
    FINAL_FIELD_NUMBER: _ClassVar[int]
    towers: _containers.RepeatedCompositeFieldContainer[Tower]
    din_towers: _containers.RepeatedCompositeFieldContainer[DinTower]
    final: _module_pb2.Mlp
    def __init__(self, towers: _Optional[_Iterable[_Union[Tower, _Mapping]]] = ..., din_towers: _Optional[_Iterable[_Union[DinTower, _Mapping]]] = ..., final: _Optional[_Union[_module_pb2.Mlp, _Mapping]] = ...) -> None: ...

class Dssm(_message.Message):
    __slots__ = ("user_tower", "item_tower", "output_dim", "similarity", "temperature", "in_batch_negative")
    USER_TOWER_FIELD_NUMBER: _ClassVar[int]
    ITEM_TOWER_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_DIM_FIELD_NUMBER: _ClassVar[int]
    SIMILARITY_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    IN_BATCH_NEGATIVE_FIELD_NUMBER: _ClassVar[int]
    user_tower: Tower
    item_tower: Tower
    output_dim: int
    similarity: Similarity
    temperature: float
    in_batch_negative: bool
    def __init__(self, user_tower: _Optional[_Union[Tower, _Mapping]] = ..., item_tower: _Optional[_Union[Tower, _Mapping]] = ..., output_dim: _Optional[int] = ..., similarity: _Optional[_Union[Similarity, str]] = ..., temperature: _Optional[float] = ..., in_batch_negative: _Optional[bool] = ...) -> None: ...

class TaskTower(_message.Message):
    __slots__ = ("tower_name", "label_name", "metrics", "losses", "num_class", "mlp", "weight")
    TOWER_NAME_FIELD_NUMBER: _ClassVar[int]
    LABEL_NAME_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    LOSSES_FIELD_NUMBER: _ClassVar[int]
    NUM_CLASS_FIELD_NUMBER: _ClassVar[int]
    MLP_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    tower_name: str
    label_name: str
    metrics: _containers.RepeatedCompositeFieldContainer[Metric]
    losses: _containers.RepeatedCompositeFieldContainer[Loss]
    num_class: int
    mlp: _module_pb2.Mlp
    weight: float
    def __init__(self, tower_name: _Optional[str] = ..., label_name: _Optional[str] = ..., metrics: _Optional[_Iterable[_Union[Metric, _Mapping]]] = ..., losses: _Optional[_Iterable[_Union[Loss, _Mapping]]] = ..., num_class: _Optional[int] = ..., mlp: _Optional[_Union[_module_pb2.Mlp, _Mapping]] = ..., weight: _Optional[float] = ...) -> None: ...

class Mmoe(_message.Message):
    __slots__ = ("expert_mlp", "gate_mlp", "num_expert", "task_towers")
    EXPERT_MLP_FIELD_NUMBER: _ClassVar[int]
    GATE_MLP_FIELD_NUMBER: _ClassVar[int]
    NUM_EXPERT_FIELD_NUMBER: _ClassVar[int]
    TASK_TOWERS_FIELD_NUMBER: _ClassVar[int]
    expert_mlp: _module_pb2.Mlp
    gate_mlp: _module_pb2.Mlp
    num_expert: int
    task_towers: _containers.RepeatedCompositeFieldContainer[TaskTower]
    def __init__(self, expert_mlp: _Optional[_Union[_module_pb2.Mlp, _Mapping]] = ..., gate_mlp: _Optional[_Union[_module_pb2.Mlp, _Mapping]] = ..., num_expert: _Optional[int] = ..., task_towers: _Optional[_Iterable[_Union[TaskTower, _Mapping]]] = ...) -> None: ...

class Argument(_message.Message):
    __slots__ = ("name", "int_value", "float_value", "bool_value", "string_value", "int_values", "float_values", "bool_values", "string_values")
    NAME_FIELD_NUMBER: _ClassVar[int]
    INT_VALUE_FIELD_NUMBER: _ClassVar[int]
    FLOAT_VALUE_FIELD_NUMBER: _ClassVar[int]
    BOOL_VALUE_FIELD_NUMBER: _ClassVar[int]
    STRING_VALUE_FIELD_NUMBER: _ClassVar[int]
    INT_VALUES_FIELD_NUMBER: _ClassVar[int]
    FLOAT_VALUES_FIELD_NUMBER: _ClassVar[int]
    BOOL_VALUES_FIELD_NUMBER: _ClassVar[int]
    STRING_VALUES_FIELD_NUMBER: _ClassVar[int]
    name: str
    int_value: int
    float_value: float
    bool_value: bool
    string_value: str
    int_values: _containers.RepeatedScalarFieldContainer[int]
    float_values: _containers.RepeatedScalarFieldContainer[float]
    bool_values: _containers.RepeatedScalarFieldContainer[bool]
    string_values: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., int_value: _Optional[int] = ..., float_value: _Optional[float] = ..., bool_value: _Optional[bool] = ..., string_value: _Optional[str] = ..., int_values: _Optional[_Iterable[int]] = ..., float_values: _Optional[_Iterable[float]] = ..., bool_values: _Optional[_Iterable[bool]] = ..., string_values: _Optional[_Iterable[str]] = ...) -> None: ...

class CustomModel(_message.Message):
    __slots__ = ("class_path", "kwargs")
    CLASS_PATH_FIELD_NUMBER: _ClassVar[int]
    KWARGS_FIELD_NUMBER: _ClassVar[int]
    class_path: str
    kwargs: _containers.RepeatedCompositeFieldContainer[Argument]
    def __init__(self, class_path: _Optional[str] = ..., kwargs: _Optional[_Iterable[_Union[Argument, _Mapping]]] = ...) -> None: ...

class BinaryCrossEntropy(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SoftmaxCrossEntropy(_message.Message):
    __slots__ = ("label_smoothing",)
    LABEL_SMOOTHING_FIELD_NUMBER: _ClassVar[int]
    label_smoothing: float
    def __init__(self, label_smoothing: _Optional[float] = ...) -> None: ...

class L2Loss(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class JrcLoss(_message.Message):
    __slots__ = ("session_name", "alpha")
    SESSION_NAME_FIELD_NUMBER: _ClassVar[int]
    ALPHA_FIELD_NUMBER: _ClassVar[int]
    session_name: str
    alpha: float
    def __init__(self, session_name: _Optional[str] = ..., alpha: _Optional[float] = ...) -> None: ...

class BinaryFocalLoss(_message.Message):
    __slots__ = ("gamma", "alpha")
    GAMMA_FIELD_NUMBER: _ClassVar[int]
    ALPHA_FIELD_NUMBER: _ClassVar[int]
    gamma: float
    alpha: float
    def __init__(self, gamma: _Optional[float] = ..., alpha: _Optional[float] = ...) -> None: ...

class Loss(_message.Message):
    __slots__ = ("binary_cross_entropy", "softmax_cross_entropy", "l2_loss", "jrc_loss", "binary_focal_loss")
    BINARY_CROSS_ENTROPY_FIELD_NUMBER: _ClassVar[int]
    SOFTMAX_CROSS_ENTROPY_FIELD_NUMBER: _ClassVar[int]
    L2_LOSS_FIELD_NUMBER: _ClassVar[int]
    JRC_LOSS_FIELD_NUMBER: _ClassVar[int]
    BINARY_FOCAL_LOSS_FIELD_NUMBER: _ClassVar[int]
    binary_cross_entropy: BinaryCrossEntropy
    softmax_cross_entropy: SoftmaxCrossEntropy
    l2_loss: L2Loss
    jrc_loss: JrcLoss
    binary_focal_loss: BinaryFocalLoss
    def __init__(self, binary_cross_entropy: _Optional[_Union[BinaryCrossEntropy, _Mapping]] = ..., softmax_cross_entropy: _Optional[_Union[SoftmaxCrossEntropy, _Mapping]] = ..., l2_loss: _Optional[_Union[L2Loss, _Mapping]] = ..., jrc_loss: _Optional[_Union[JrcLoss, _Mapping]] = ..., binary_focal_loss: _Optional[_Union[BinaryFocalLoss, _Mapping]] = ...) -> None: ...

class Auc(_message.Message):
    __slots__ = ("thresholds",)
    THRESHOLDS_FIELD_NUMBER: _ClassVar[int]
    thresholds: int
    def __init__(self, thresholds: _Optional[int] = ...) -> None: ...

class MulticlassAuc(_message.Message):
    __slots__ = ("thresholds", "average")
    THRESHOLDS_FIELD_NUMBER: _ClassVar[int]
    AVERAGE_FIELD_NUMBER: _ClassVar[int]
    thresholds: int
    average: str
    def __init__(self, thresholds: _Optional[int] = ..., average: _Optional[str] = ...) -> None: ...

class RecallAtK(_message.Message):
    __slots__ = ("top_k",)
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    top_k: int
    def __init__(self, top_k: _Optional[int] = ...) -> None: ...

class MeanAbsoluteError(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class MeanSquaredError(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Accuracy(_message.Message):
    __slots__ = ("threshold", "top_k")
    THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    threshold: float
    top_k: int
    def __init__(self, threshold: _Optional[float] = ..., top_k: _Optional[int] = ...) -> None: ...

class GroupedAuc(_message.Message):
    __slots__ = ("grouping_key",)
    GROUPING_KEY_FIELD_NUMBER: _ClassVar[int]
    grouping_key: str
    def __init__(self, grouping_key: _Optional[str] = ...) -> None: ...

class Metric(_message.Message):
    __slots__ = ("auc", "multiclass_auc", "recall_at_k", "mean_absolute_error", "mean_squared_error", "accuracy", "grouped_auc")
    AUC_FIELD_NUMBER: _ClassVar[int]
    MULTICLASS_AUC_FIELD_NUMBER: _ClassVar[int]
    RECALL_AT_K_FIELD_NUMBER: _ClassVar[int]
    MEAN_ABSOLUTE_ERROR_FIELD_NUMBER: _ClassVar[int]
    MEAN_SQUARED_ERROR_FIELD_NUMBER: _ClassVar[int]
    ACCURACY_FIELD_NUMBER: _ClassVar[int]
    GROUPED_AUC_FIELD_NUMBER: _ClassVar[int]
    auc: Auc
    multiclass_auc: MulticlassAuc
    recall_at_k: RecallAtK
    mean_absolute_error: MeanAbsoluteError
    mean_squared_error: MeanSquaredError
    accuracy: Accuracy
    grouped_auc: GroupedAuc
    def __init__(self, auc: _Optional[_Union[Auc, _Mapping]] = ..., multiclass_auc: _Optional[_Union[MulticlassAuc, _Mapping]] = ..., recall_at_k: _Optional[_Union[RecallAtK, _Mapping]] = ..., mean_absolute_error: _Optional[_Union[MeanAbsoluteError, _Mapping]] = ..., mean_squared_error: _Optional[_Union[MeanSquaredError, _Mapping]] = ..., accuracy: _Optional[_Union[Accuracy, _Mapping]] = ..., grouped_auc: _Optional[_Union[GroupedAuc, _Mapping]] = ...) -> None: ...

class VariationalDropout(_message.Message):
    __slots__ = ("regularization_lambda", "embedding_wise_variational_dropout")
    REGULARIZATION_LAMBDA_FIELD_NUMBER: _ClassVar[int]
    EMBEDDING_WISE_VARIATIONAL_DROPOUT_FIELD_NUMBER: _ClassVar[int]
    regularization_lambda: float
    embedding_wise_variational_dropout: bool
    def __init__(self, regularization_lambda: _Optional[float] = ..., embedding_wise_variational_dropout: _Optional[bool] = ...) -> None: ...

class Model(_message.Message):
    __slots__ = ("feature_groups", "num_class", "losses", "metrics", "train_metrics", "variational_dropout", "kernel", "use_pareto_loss_weight", "embedding_output_dtype", "dlrm", "deepfm", "custom_model", "wide_and_deep", "multi_tower_din", "dssm", "mmoe")
    FEATURE_GROUPS_FIELD_NUMBER: _ClassVar[int]
    NUM_CLASS_FIELD_NUMBER: _ClassVar[int]
    LOSSES_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    TRAIN_METRICS_FIELD_NUMBER: _ClassVar[int]
    VARIATIONAL_DROPOUT_FIELD_NUMBER: _ClassVar[int]
    KERNEL_FIELD_NUMBER: _ClassVar[int]
    USE_PARETO_LOSS_WEIGHT_FIELD_NUMBER: _ClassVar[int]
    EMBEDDING_OUTPUT_DTYPE_FIELD_NUMBER: _ClassVar[int]
    DLRM_FIELD_NUMBER: _ClassVar[int]
    DEEPFM_FIELD_NUMBER: _ClassVar[int]
    CUSTOM_MODEL_FIELD_NUMBER: _ClassVar[int]
    WIDE_AND_DEEP_FIELD_NUMBER: _ClassVar[int]
    MULTI_TOWER_DIN_FIELD_NUMBER: _ClassVar[int]
    DSSM_FIELD_NUMBER: _ClassVar[int]
    MMOE_FIELD_NUMBER: _ClassVar[int]
    feature_groups: _containers.RepeatedCompositeFieldContainer[_group_pb2.FeatureGroup]
    num_class: int
    losses: _containers.RepeatedCompositeFieldContainer[Loss]
    metrics: _containers.RepeatedCompositeFieldContainer[Metric]
    train_metrics: _containers.RepeatedCompositeFieldContainer[Metric]
    variational_dropout: VariationalDropout
    kernel: Kernel
    use_pareto_loss_weight: bool
    embedding_output_dtype: str
    dlrm: Dlrm
    deepfm: DeepFm
    custom_model: CustomModel
    wide_and_deep: WideAndDeep
    multi_tower_din: MultiTowerDin
    dssm: Dssm
    mmoe: Mmoe
    def __init__(self, feature_groups: _Optional[_Iterable[_Union[_group_pb2.FeatureGroup, _Mapping]]] = ..., num_class: _Optional[int] = ..., losses: _Optional[_Iterable[_Union[Loss, _Mapping]]] = ..., metrics: _Optional[_Iterable[_Union[Metric, _Mapping]]] = ..., train_metrics: _Optional[_Iterable[_Union[Metric, _Mapping]]] = ..., variational_dropout: _Optional[_Union[VariationalDropout, _Mapping]] = ..., kernel: _Optional[_Union[Kernel, str]] = ..., use_pareto_loss_weight: _Optional[bool] = ..., embedding_output_dtype: _Optional[str] = ..., dlrm: _Optional[_Union[Dlrm, _Mapping]] = ..., deepfm: _Optional[_Union[DeepFm, _Mapping]] = ..., custom_model: _Optional[_Union[CustomModel, _Mapping]] = ..., wide_and_deep: _Optional[_Union[WideAndDeep, _Mapping]] = ..., multi_tower_din: _Optional[_Union[MultiTowerDin, _Mapping]] = ..., dssm: _Optional[_Union[Dssm, _Mapping]] = ..., mmoe: _Optional[_Union[Mmoe, _Mapping]] = ...) -> None: ...
