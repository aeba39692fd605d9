# mypy: disable-error-code="type-arg"
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DatasetType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OdpsDataset: _ClassVar[DatasetType]
    ParquetDataset: _ClassVar[DatasetType]
    CsvDataset: _ClassVar[DatasetType]
    OdpsDatasetV1: _ClassVar[DatasetType]
    KafkaDataset: _ClassVar[DatasetType]

class FieldType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    INT32: _ClassVar[FieldType]
    INT64: _ClassVar[FieldType]
    STRING: _ClassVar[FieldType]
    FLOAT: _ClassVar[FieldType]
    DOUBLE: _ClassVar[FieldType]
    ARRAY_INT32: _ClassVar[FieldType]
    ARRAY_INT64: _ClassVar[FieldType]
    ARRAY_STRING: _ClassVar[FieldType]
    ARRAY_FLOAT: _ClassVar[FieldType]
    ARRAY_DOUBLE: _ClassVar[FieldType]
    ARRAY_ARRAY_INT32: _ClassVar[FieldType]
    ARRAY_ARRAY_INT64: _ClassVar[FieldType]
    ARRAY_ARRAY_STRING: _ClassVar[FieldType]
    ARRAY_ARRAY_FLOAT: _ClassVar[FieldType]
    ARRAY_ARRAY_DOUBLE: _ClassVar[FieldType]
    MAP_STRING_INT32: _ClassVar[FieldType]
    MAP_STRING_INT64: _ClassVar[FieldType]
    MAP_STRING_STRING: _ClassVar[FieldType]
    MAP_STRING_FLOAT: _ClassVar[FieldType]
    MAP_STRING_DOUBLE: _ClassVar[FieldType]
    MAP_INT64_INT32: _ClassVar[FieldType]
    MAP_INT64_INT64: _ClassVar[FieldType]
    MAP_INT64_STRING: _ClassVar[FieldType]
    MAP_INT64_FLOAT: _ClassVar[FieldType]
    MAP_INT64_DOUBLE: _ClassVar[FieldType]
    MAP_INT32_INT32: _ClassVar[FieldType]
    MAP_INT32_INT64: _ClassVar[FieldType]
    MAP_INT32_STRING: _ClassVar[FieldType]
    MAP_INT32_FLOAT: _ClassVar[FieldType]
    MAP_INT32_DOUBLE: _ClassVar[FieldType]

class FgMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FG_NONE: _ClassVar[FgMode]
    FG_NORMAL: _ClassVar[FgMode]
    FG_DAG: _ClassVar[FgMode]
    FG_BUCKETIZE: _ClassVar[FgMode]
OdpsDataset: DatasetType
ParquetDataset: DatasetType
CsvDataset: DatasetType
OdpsDatasetV1: DatasetType
KafkaDataset: DatasetType
INT32: FieldType
INT64: FieldType
STRING: FieldType
FLOAT: FieldType
DOUBLE: FieldType
ARRAY_INT32: FieldType
ARRAY_INT64: FieldType
ARRAY_STRING: FieldType
ARRAY_FLOAT: FieldType
ARRAY_DOUBLE: FieldType
ARRAY_ARRAY_INT32: FieldType
ARRAY_ARRAY_INT64: FieldType
ARRAY_ARRAY_STRING: FieldType
ARRAY_ARRAY_FLOAT: FieldType
ARRAY_ARRAY_DOUBLE: FieldType
MAP_STRING_INT32: FieldType
MAP_STRING_INT64: FieldType
MAP_STRING_STRING: FieldType
MAP_STRING_FLOAT: FieldType
MAP_STRING_DOUBLE: FieldType
MAP_INT64_INT32: FieldType
MAP_INT64_INT64: FieldType
MAP_INT64_STRING: FieldType
MAP_INT64_FLOAT: FieldType
MAP_INT64_DOUBLE: FieldType
MAP_INT32_INT32: FieldType
MAP_INT32_INT64: FieldType
MAP_INT32_STRING: FieldType
MAP_INT32_FLOAT: FieldType
MAP_INT32_DOUBLE: FieldType
FG_NONE: FgMode
FG_NORMAL: FgMode
FG_DAG: FgMode
FG_BUCKETIZE: FgMode

class Field(_message.Message):
    __slots__ = ("input_name", "input_type")
    INPUT_NAME_FIELD_NUMBER: _ClassVar[int]
    INPUT_TYPE_FIELD_NUMBER: _ClassVar[int]
    input_name: str
    input_type: FieldType
    def __init__(self, input_name: _Optional[str] = ..., input_type: _Optional[_Union[FieldType, str]] = ...) -> None: ...

class NegativeSampler(_message.Message):
    __slots__ = ("input_path", "num_sample", "attr_fields", "item_id_field", "attr_delimiter", "num_eval_sample", "field_delimiter", "item_id_delim", "weight_field")
    INPUT_PATH_FIELD_NUMBER: _ClassVar[int]
    NUM_SAMPLE_FIELD_NUMBER: _ClassVar[int]
    ATTR_FIELDS_FIELD_NUMBER: _ClassVar[int]
    ITEM_ID_FIELD_FIELD_NUMBER: _ClassVar[int]
    ATTR_DELIMITER_FIELD_NUMBER: _ClassVar[int]
    NUM_EVAL_SAMPLE_FIELD_NUMBER: _ClassVar[int]
    FIELD_DELIMITER_FIELD_NUMBER: _ClassVar[int]
    ITEM_ID_DELIM_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_FIELD_NUMBER: _ClassVar[int]
    input_path: str
    num_sample: int
    attr_fields: _containers.RepeatedScalarFieldContainer[str]
    item_id_field: str
    attr_delimiter: str
    num_eval_sample: int
    field_delimiter: str
    item_id_delim: str
    weight_field: str
    def __init__(self, input_path: _Optional[str] = ..., num_sample: _Optional[int] = ..., attr_fields: _Optional[_Iterable[str]] = ..., item_id_field: _Optional[str] = ..., attr_delimiter: _Optional[str] = ..., num_eval_sample: _Optional[int] = ..., field_delimiter: _Optional[str] = ..., item_id_delim: _Optional[str] = ..., weight_field: _Optional[str] = ...) -> None: ...

class NegativeSamplerV2(_message.Message):
    __slots__ = ("user_input_path", "item_input_path", "pos_edge_input_path", "num_sample", "attr_fields", "item_id_field", "user_id_field", "attr_delimiter", "num_eval_sample", "field_delimiter")
    USER_INPUT_PATH_FIELD_NUMBER: _ClassVar[int]
    ITEM_INPUT_PATH_FIELD_NUMBER: _ClassVar[int]
    POS_EDGE_INPUT_PATH_FIELD_NUMBER: _ClassVar[int]
    NUM_SAMPLE_FIELD_NUMBER: _ClassVar[int]
    ATTR_FIELDS_FIELD_NUMBER: _ClassVar[int]
    ITEM_ID_FIELD_FIELD_NUMBER: _ClassVar[int]
    USER_ID_FIELD_FIELD_NUMBER: _ClassVar[int]
    ATTR_DELIMITER_FIELD_NUMBER: _ClassVar[int]
    NUM_EVAL_SAMPLE_FIELD_NUMBER: _ClassVar[int]
    FIELD_DELIMITER_FIELD_NUMBER: _ClassVar[int]
    user_input_path: str
    item_input_path: str
    pos_edge_input_path: str
    num_sample: int
    attr_fields: _containers.RepeatedScalarFieldContainer[str]
    item_id_field: str
    user_id_field: str
    attr_delimiter: str
    num_eval_sample: int
    field_delimiter: str
    def __init__(self, user_input_path: _Optional[str] = ..., item_input_path: _Optional[str] = ..., pos_edge_input_path: _Optional[str] = ..., num_sample: _Optional[int] = ..., attr_fields: _Optional[_Iterable[str]] = ..., item_id_field: _Optional[str] = ..., user_id_field: _Optional[str] = ..., attr_delimiter: _Optional[str] = ..., num_eval_sample: _Optional[int] = ..., field_delimiter: _Optional[str] = ...) -> None: ...

class HardNegativeSampler(_message.Message):
    __slots__ = ("user_input_path", "item_input_path", "hard_neg_edge_input_path", "num_sample", "num_hard_sample", "attr_fields", "item_id_field", "user_id_field", "attr_delimiter", "num_eval_sample", "field_delimiter")
    USER_INPUT_PATH_FIELD_NUMBER: _ClassVar[int]
    ITEM_INPUT_PATH_FIELD_NUMBER: _ClassVar[int]
    HARD_NEG_EDGE_INPUT_PATH_FIELD_NUMBER: _ClassVar[int]
    NUM_SAMPLE_FIELD_NUMBER: _ClassVar[int]
    NUM_HARD_SAMPLE_FIELD_NUMBER: _ClassVar[int]
    ATTR_FIELDS_FIELD_NUMBER: _ClassVar[int]
    ITEM_ID_FIELD_FIELD_NUMBER: _ClassVar[int]
    USER_ID_FIELD_FIELD_NUMBER: _ClassVar[int]
    ATTR_DELIMITER_FIELD_NUMBER: _ClassVar[int]
    NUM_EVAL_SAMPLE_FIELD_NUMBER: _ClassVar[int]
    FIELD_DELIMITER_FIELD_NUMBER: _ClassVar[int]
    user_input_path: str
    item_input_path: str
    hard_neg_edge_input_path: str
    num_sample: int
    num_hard_sample: int
    attr_fields: _containers.RepeatedScalarFieldContainer[str]
    item_id_field: str
    user_id_field: str
    attr_delimiter: str
    num_eval_sample: int
    field_delimiter: str
    def __init__(self, user_input_path: _Optional[str] = ..., item_input_path: _Optional[str] = ..., hard_neg_edge_input_path: _Optional[str] = ..., num_sample: _Optional[int] = ..., num_hard_sample: _Optional[int] = ..., attr_fields: _Optional[_Iterable[str]] = ..., item_id_field: _Optional[str] = ..., user_id_field: _Optional[str] = ..., attr_delimiter: _Optional[str] = ..., num_eval_sample: _Optional[int] = ..., field_delimiter: _Optional[str] = ...) -> None: ...

class HardNegativeSamplerV2(_message.Message):
    __slots__ = ("user_input_path", "item_input_path", "pos_edge_input_path", "hard_neg_edge_input_path", "num_sample", "num_hard_sample", "attr_fields", "item_id_field", "user_id_field", "attr_delimiter", "num_eval_sample", "field_delimiter")
    USER_INPUT_PATH_FIELD_NUMBER: _ClassVar[int]
    ITEM_INPUT_PATH_FIELD_NUMBER: _ClassVar[int]
    POS_EDGE_INPUT_PATH_FIELD_NUMBER: _ClassVar[int]
    HARD_NEG_EDGE_INPUT_PATH_FIELD_NUMBER: _ClassVar[int]
    NUM_SAMPLE_FIELD_NUMBER: _ClassVar[int]
    NUM_HARD_SAMPLE_FIELD_NUMBER: _ClassVar[int]
    ATTR_FIELDS_FIELD_NUMBER: _ClassVar[int]
    ITEM_ID_FIELD_FIELD_NUMBER: _ClassVar[int]
    USER_ID_FIELD_FIELD_NUMBER: _ClassVar[int]
    ATTR_DELIMITER_FIELD_NUMBER: _ClassVar[int]
    NUM_EVAL_SAMPLE_FIELD_NUMBER: _ClassVar[int]
    FIELD_DELIMITER_FIELD_NUMBER: _ClassVar[int]
    user_input_path: str
    item_input_path: str
    pos_edge_input_path: str
    hard_neg_edge_input_path: str
    num_sample: int
    num_hard_sample: int
    attr_fields: _containers.RepeatedScalarFieldContainer[str]
    item_id_field: str
    user_id_field: str
    attr_delimiter: str
    num_eval_sample: int
    field_delimiter: str
    def __init__(self, user_input_path: _Optional[str] = ..., item_input_path: _Optional[str] = ..., pos_edge_input_path: _Optional[str] = ..., hard_neg_edge_input_path: _Optional[str] = ..., num_sample: _Optional[int] = ..., num_hard_sample: _Optional[int] = ..., attr_fields: _Optional[_Iterable[str]] = ..., item_id_field: _Optional[str] = ..., user_id_field: _Optional[str] = ..., attr_delimiter: _Optional[str] = ..., num_eval_sample: _Optional[int] = ..., field_delimiter: _Optional[str] = ...) -> None: ...

class TdmSampler(_message.Message):
    __slots__ = ("item_input_path", "edge_input_path", "predict_edge_input_path", "attr_fields", "item_id_field", "layer_num_sample", "attr_delimiter", "num_eval_sample", "field_delimiter", "remain_ratio", "probability_type")
    ITEM_INPUT_PATH_FIELD_NUMBER: _ClassVar[int]
    EDGE_INPUT_PATH_FIELD_NUMBER: _ClassVar[int]
    PREDICT_EDGE_INPUT_PATH_FIELD_NUMBER: _ClassVar[int]
    ATTR_FIELDS_FIELD_NUMBER: _ClassVar[int]
    ITEM_ID_FIELD_FIELD_NUMBER: _ClassVar[int]
    LAYER_NUM_SAMPLE_FIELD_NUMBER: _ClassVar[int]
    ATTR_DELIMITER_FIELD_NUMBER: _ClassVar[int]
    NUM_EVAL_SAMPLE_FIELD_NUMBER: _ClassVar[int]
    FIELD_DELIMITER_FIELD_NUMBER: _ClassVar[int]
    REMAIN_RATIO_FIELD_NUMBER: _ClassVar[int]
    PROBABILITY_TYPE_FIELD_NUMBER: _ClassVar[int]
    item_input_path: str
    edge_input_path: str
    predict_edge_input_path: str
    attr_fields: _containers.RepeatedScalarFieldContainer[str]
    item_id_field: str
    layer_num_sample: _containers.RepeatedScalarFieldContainer[int]
    attr_delimiter: str
    num_eval_sample: int
    field_delimiter: str
    remain_ratio: float
    probability_type: str
    def __init__(self, item_input_path: _Optional[str] = ..., edge_input_path: _Optional[str] = ..., predict_edge_input_path: _Optional[str] = ..., attr_fields: _Optional[_Iterable[str]] = ..., item_id_field: _Optional[str] = ..., layer_num_sample: _Optional[_Iterable[int]] = ..., attr_delimiter: _Optional[str] = ..., num_eval_sample: _Optional[int] = ..., field_delimiter: _Optional[str] = ..., remain_ratio: _Optional[float] = ..., probability_type: _Optional[str] = ...) -> None: ...

class NegativeColumns(_message.Message):
    __slots__ = ("columns", "num_negatives")
    class ColumnsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    NUM_NEGATIVES_FIELD_NUMBER: _ClassVar[int]
    columns: _containers.ScalarMap[str, str]
    num_negatives: int
    def __init__(self, columns: _Optional[_Mapping[str, str]] = ..., num_negatives: _Optional[int] = ...) -> None: ...

class Data(_message.Message):
    __slots__ = ("batch_size", "dataset_type", "fg_encoded", "fg_encoded_multival_sep", "label_fields", "num_workers", "pin_memory", "input_fields", "delimiter", "with_header", "eval_batch_size", "drop_remainder", "fg_threads", "is_orderby_partition", "odps_data_quota_name", "sample_mask_prob", "negative_sample_mask_prob", "force_base_data_group", "sample_weight_fields", "fg_mode", "shuffle", "shuffle_buffer_size", "odps_data_compression", "sample_cost_field", "batch_cost_size", "input_fields_str", "in_order", "min_batch_size", "negative_sampler", "negative_sampler_v2", "hard_negative_sampler", "hard_negative_sampler_v2", "tdm_sampler", "shuffle_buffer_rows", "negative_columns")
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    DATASET_TYPE_FIELD_NUMBER: _ClassVar[int]
    FG_ENCODED_FIELD_NUMBER: _ClassVar[int]
    FG_ENCODED_MULTIVAL_SEP_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELDS_FIELD_NUMBER: _ClassVar[int]
    NUM_WORKERS_FIELD_NUMBER: _ClassVar[int]
    PIN_MEMORY_FIELD_NUMBER: _ClassVar[int]
    INPUT_FIELDS_FIELD_NUMBER: _ClassVar[int]
    DELIMITER_FIELD_NUMBER: _ClassVar[int]
    WITH_HEADER_FIELD_NUMBER: _ClassVar[int]
    EVAL_BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    DROP_REMAINDER_FIELD_NUMBER: _ClassVar[int]
    FG_THREADS_FIELD_NUMBER: _ClassVar[int]
    IS_ORDERBY_PARTITION_FIELD_NUMBER: _ClassVar[int]
    ODPS_DATA_QUOTA_NAME_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_MASK_PROB_FIELD_NUMBER: _ClassVar[int]
    NEGATIVE_SAMPLE_MASK_PROB_FIELD_NUMBER: _ClassVar[int]
    FORCE_BASE_DATA_GROUP_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_WEIGHT_FIELDS_FIELD_NUMBER: _ClassVar[int]
    FG_MODE_FIELD_NUMBER: _ClassVar[int]
    SHUFFLE_FIELD_NUMBER: _ClassVar[int]
    SHUFFLE_BUFFER_SIZE_FIELD_NUMBER: _ClassVar[int]
    ODPS_DATA_COMPRESSION_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_COST_FIELD_FIELD_NUMBER: _ClassVar[int]
    BATCH_COST_SIZE_FIELD_NUMBER: _ClassVar[int]
    INPUT_FIELDS_STR_FIELD_NUMBER: _ClassVar[int]
    IN_ORDER_FIELD_NUMBER: _ClassVar[int]
    MIN_BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    NEGATIVE_SAMPLER_FIELD_NUMBER: _ClassVar[int]
    NEGATIVE_SAMPLER_V2_FIELD_NUMBER: _ClassVar[int]
    HARD_NEGATIVE_SAMPLER_FIELD_NUMBER: _ClassVar[int]
    HARD_NEGATIVE_SAMPLER_V2_FIELD_NUMBER: _ClassVar[int]
    TDM_SAMPLER_FIELD_NUMBER: _ClassVar[int]
    SHUFFLE_BUFFER_ROWS_FIELD_NUMBER: _ClassVar[int]
    NEGATIVE_COLUMNS_FIELD_NUMBER: _ClassVar[int]
    batch_size: int
    dataset_type: DatasetType
    fg_encoded: bool
    fg_encoded_multival_sep: str
    label_fields: _containers.RepeatedScalarFieldContainer[str]
    num_workers: int
    pin_memory: bool
    input_fields: _containers.RepeatedCompositeFieldContainer[Field]
    delimiter: str
    with_header: bool
    eval_batch_size: int
    drop_remainder: bool
    fg_threads: int
    is_orderby_partition: bool
    odps_data_quota_name: str
    sample_mask_prob: float
    negative_sample_mask_prob: float
    force_base_data_group: bool
    sample_weight_fields: _containers.RepeatedScalarFieldContainer[str]
    fg_mode: FgMode
    shuffle: bool
    shuffle_buffer_size: int
    odps_data_compression: str
    sample_cost_field: str
    batch_cost_size: int
    input_fields_str: str
    in_order: bool
    min_batch_size: int
    negative_sampler: NegativeSampler
    negative_sampler_v2: NegativeSamplerV2
    hard_negative_sampler: HardNegativeSampler
    hard_negative_sampler_v2: HardNegativeSamplerV2
    tdm_sampler: TdmSampler
    shuffle_buffer_rows: int
    negative_columns: NegativeColumns
    def __init__(self, batch_size: _Optional[int] = ..., dataset_type: _Optional[_Union[DatasetType, str]] = ..., fg_encoded: _Optional[bool] = ..., fg_encoded_multival_sep: _Optional[str] = ..., label_fields: _Optional[_Iterable[str]] = ..., num_workers: _Optional[int] = ..., pin_memory: _Optional[bool] = ..., input_fields: _Optional[_Iterable[_Union[Field, _Mapping]]] = ..., delimiter: _Optional[str] = ..., with_header: _Optional[bool] = ..., eval_batch_size: _Optional[int] = ..., drop_remainder: _Optional[bool] = ..., fg_threads: _Optional[int] = ..., is_orderby_partition: _Optional[bool] = ..., odps_data_quota_name: _Optional[str] = ..., sample_mask_prob: _Optional[float] = ..., negative_sample_mask_prob: _Optional[float] = ..., force_base_data_group: _Optional[bool] = ..., sample_weight_fields: _Optional[_Iterable[str]] = ..., fg_mode: _Optional[_Union[FgMode, str]] = ..., shuffle: _Optional[bool] = ..., shuffle_buffer_size: _Optional[int] = ..., odps_data_compression: _Optional[str] = ..., sample_cost_field: _Optional[str] = ..., batch_cost_size: _Optional[int] = ..., input_fields_str: _Optional[str] = ..., in_order: _Optional[bool] = ..., min_batch_size: _Optional[int] = ..., negative_sampler: _Optional[_Union[NegativeSampler, _Mapping]] = ..., negative_sampler_v2: _Optional[_Union[NegativeSamplerV2, _Mapping]] = ..., hard_negative_sampler: _Optional[_Union[HardNegativeSampler, _Mapping]] = ..., hard_negative_sampler_v2: _Optional[_Union[HardNegativeSamplerV2, _Mapping]] = ..., tdm_sampler: _Optional[_Union[TdmSampler, _Mapping]] = ..., shuffle_buffer_rows: _Optional[int] = ..., negative_columns: _Optional[_Union[NegativeColumns, _Mapping]] = ...) -> None: ...
