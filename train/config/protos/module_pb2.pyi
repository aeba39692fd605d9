# mypy: disable-error-code="type-arg"
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class Mlp(_message.Message):
    __slots__ = ("hidden_units", "dropout_ratio", "activation", "use_bn", "use_ln", "bias")
    HIDDEN_UNITS_FIELD_NUMBER: _ClassVar[int]
    DROPOUT_RATIO_FIELD_NUMBER: _ClassVar[int]
    ACTIVATION_FIELD_NUMBER: _ClassVar[int]
    USE_BN_FIELD_NUMBER: _ClassVar[int]
    USE_LN_FIELD_NUMBER: _ClassVar[int]
    BIAS_FIELD_NUMBER: _ClassVar[int]
    hidden_units: _containers.RepeatedScalarFieldContainer[int]
    dropout_ratio: _containers.RepeatedScalarFieldContainer[float]
    activation: str
    use_bn: bool
    use_ln: bool
    bias: bool
    def __init__(self, hidden_units: _Optional[_Iterable[int]] = ..., dropout_ratio: _Optional[_Iterable[float]] = ..., activation: _Optional[str] = ..., use_bn: _Optional[bool] = ..., use_ln: _Optional[bool] = ..., bias: _Optional[bool] = ...) -> None: ...
