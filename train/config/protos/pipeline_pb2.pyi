# mypy: disable-error-code="type-arg"
from emberline.train.config.protos import data_pb2 as _data_pb2
from emberline.train.config.protos import feature_pb2 as _feature_pb2
from emberline.train.config.protos import group_pb2 as _group_pb2
from emberline.train.config.protos import model_pb2 as _model_pb2
from emberline.train.config.protos import train_pb2 as _train_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Pipeline(_message.Message):
    __slots__ = ("train_input_path", "eval_input_path", "model_dir", "train_config", "eval_config", "export_config", "data_config", "feature_configs", "model_config", "item_input_path", "feature_groups")
    TRAIN_INPUT_PATH_FIELD_NUMBER: _ClassVar[int]
    EVAL_INPUT_PATH_FIELD_NUMBER: _ClassVar[int]
    MODEL_DIR_FIELD_NUMBER: _ClassVar[int]
    TRAIN_CONFIG_FIELD_NUMBER: _ClassVar[int]
    EVAL_CONFIG_FIELD_NUMBER: _ClassVar[int]
    EXPORT_CONFIG_FIELD_NUMBER: _ClassVar[int]
    DATA_CONFIG_FIELD_NUMBER: _ClassVar[int]
    FEATURE_CONFIGS_FIELD_NUMBER: _ClassVar[int]
    MODEL_CONFIG_FIELD_NUMBER: _ClassVar[int]
    ITEM_INPUT_PATH_FIELD_NUMBER: _ClassVar[int]
    FEATURE_GROUPS_FIELD_NUMBER: _ClassVar[int]
    train_input_path: str
    eval_input_path: str
    model_dir: str
    train_config: _train_pb2.Train
    eval_config: _train_pb2.Eval
    export_config: _train_pb2.Export
    data_config: _data_pb2.Data
    feature_configs: _containers.RepeatedCompositeFieldContainer[_feature_pb2.Feature]
    model_config: _model_pb2.Model
    item_input_path: str
    feature_groups: _containers.RepeatedCompositeFieldContainer[_group_pb2.FeatureGroup]
    def __init__(self, train_input_path: _Optional[str] = ..., eval_input_path: _Optional[str] = ..., model_dir: _Optional[str] = ..., train_config: _Optional[_Union[_train_pb2.Train, _Mapping]] = ..., eval_config: _Optional[_Union[_train_pb2.Eval, _Mapping]] = ..., export_config: _Optional[_Union[_train_pb2.Export, _Mapping]] = ..., data_config: _Optional[_Union[_data_pb2.Data, _Mapping]] = ..., feature_configs: _Optional[_Iterable[_Union[_feature_pb2.Feature, _Mapping]]] = ..., model_config: _Optional[_Union[_model_pb2.Model, _Mapping]] = ..., item_input_path: _Optional[str] = ..., feature_groups: _Optional[_Iterable[_Union[_group_pb2.FeatureGroup, _Mapping]]] = ...) -> None: ...
