# mypy: disable-error-code="type-arg"
from emberline.train.config.protos import encoder_pb2 as _encoder_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FeatureGroupType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DEEP: _ClassVar[FeatureGroupType]
    WIDE: _ClassVar[FeatureGroupType]
    SEQUENCE: _ClassVar[FeatureGroupType]
    JAGGED_SEQUENCE: _ClassVar[FeatureGroupType]
DEEP: FeatureGroupType
WIDE: FeatureGroupType
SEQUENCE: FeatureGroupType
JAGGED_SEQUENCE: FeatureGroupType

class SequenceGroup(_message.Message):
    __slots__ = ("group_name", "feature_names", "embedding_name_suffix")
    GROUP_NAME_FIELD_NUMBER: _ClassVar[int]
    FEATURE_NAMES_FIELD_NUMBER: _ClassVar[int]
    EMBEDDING_NAME_SUFFIX_FIELD_NUMBER: _ClassVar[int]
    group_name: str
    feature_names: _containers.RepeatedScalarFieldContainer[str]
    embedding_name_suffix: str
    def __init__(self, group_name: _Optional[str] = ..., feature_names: _Optional[_Iterable[str]] = ..., embedding_name_suffix: _Optional[str] = ...) -> None: ...

class FeatureGroup(_message.Message):
    __slots__ = ("group_name", "feature_names", "group_type", "sequence_groups", "sequence_encoders", "embedding_name_suffix")
    GROUP_NAME_FIELD_NUMBER: _ClassVar[int]
    FEATURE_NAMES_FIELD_NUMBER: _ClassVar[int]
    GROUP_TYPE_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_GROUPS_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_ENCODERS_FIELD_NUMBER: _ClassVar[int]
    EMBEDDING_NAME_SUFFIX_FIELD_NUMBER: _ClassVar[int]
    group_name: str
    feature_names: _containers.RepeatedScalarFieldContainer[str]
    group_type: FeatureGroupType
    sequence_groups: _containers.RepeatedCompositeFieldContainer[SequenceGroup]
    sequence_encoders: _containers.RepeatedCompositeFieldContainer[_encoder_pb2.SequenceEncoder]
    embedding_name_suffix: str
    def __init__(self, group_name: _Optional[str] = ..., feature_names: _Optional[_Iterable[str]] = ..., group_type: _Optional[_Union[FeatureGroupType, str]] = ..., sequence_groups: _Optional[_Iterable[_Union[SequenceGroup, _Mapping]]] = ..., sequence_encoders: _Optional[_Iterable[_Union[_encoder_pb2.SequenceEncoder, _Mapping]]] = ..., embedding_name_suffix: _Optional[str] = ...) -> None: ...
