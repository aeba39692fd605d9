# mypy: disable-error-code="type-arg"
from emberline.train.config.protos import module_pb2 as _module_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DinEncoder(_message.Message):
    __slots__ = ("name", "input", "attn_mlp", "max_seq_length", "keep")
    NAME_FIELD_NUMBER: _ClassVar[int]
    INPUT_FIELD_NUMBER: _ClassVar[int]
    ATTN_MLP_FIELD_NUMBER: _ClassVar[int]
    MAX_SEQ_LENGTH_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    name: str
    input: str
    attn_mlp: _module_pb2.Mlp
    max_seq_length: int
    keep: str
    def __init__(self, name: _Optional[str] = ..., input: _Optional[str] = ..., attn_mlp: _Optional[_Union[_module_pb2.Mlp, _Mapping]] = ..., max_seq_length: _Optional[int] = ..., keep: _Optional[str] = ...) -> None: ...

class SimpleAttentionEncoder(_message.Message):
    __slots__ = ("name", "input", "max_seq_length", "keep")
    NAME_FIELD_NUMBER: _ClassVar[int]
    INPUT_FIELD_NUMBER: _ClassVar[int]
    MAX_SEQ_LENGTH_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    name: str
    input: str
    max_seq_length: int
    keep: str
    def __init__(self, name: _Optional[str] = ..., input: _Optional[str] = ..., max_seq_length: _Optional[int] = ..., keep: _Optional[str] = ...) -> None: ...

class PoolingEncoder(_message.Message):
    __slots__ = ("name", "input", "pooling_type", "max_seq_length", "keep")
    NAME_FIELD_NUMBER: _ClassVar[int]
    INPUT_FIELD_NUMBER: _ClassVar[int]
    POOLING_TYPE_FIELD_NUMBER: _ClassVar[int]
    MAX_SEQ_LENGTH_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    name: str
    input: str
    pooling_type: str
    max_seq_length: int
    keep: str
    def __init__(self, name: _Optional[str] = ..., input: _Optional[str] = ..., pooling_type: _Optional[str] = ..., max_seq_length: _Optional[int] = ..., keep: _Optional[str] = ...) -> None: ...

class SelfAttentionEncoder(_message.Message):
    __slots__ = ("name", "input", "multihead_attn_dim", "num_heads", "dropout", "max_seq_length", "keep")
    NAME_FIELD_NUMBER: _ClassVar[int]
    INPUT_FIELD_NUMBER: _ClassVar[int]
    MULTIHEAD_ATTN_DIM_FIELD_NUMBER: _ClassVar[int]
    NUM_HEADS_FIELD_NUMBER: _ClassVar[int]
    DROPOUT_FIELD_NUMBER: _ClassVar[int]
    MAX_SEQ_LENGTH_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    name: str
    input: str
    multihead_attn_dim: int
    num_heads: int
    dropout: float
    max_seq_length: int
    keep: str
    def __init__(self, name: _Optional[str] = ..., input: _Optional[str] = ..., multihead_attn_dim: _Optional[int] = ..., num_heads: _Optional[int] = ..., dropout: _Optional[float] = ..., max_seq_length: _Optional[int] = ..., keep: _Optional[str] = ...) -> None: ...

class MultiWindowDinEncoder(_message.Message):
    __slots__ = ("name", "input", "attn_mlp", "windows_len", "keep")
    NAME_FIELD_NUMBER: _ClassVar[int]
    INPUT_FIELD_NUMBER: _ClassVar[int]
    ATTN_MLP_FIELD_NUMBER: _ClassVar[int]
    WINDOWS_LEN_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    name: str
    input: str
    attn_mlp: _module_pb2.Mlp
    windows_len: _containers.RepeatedScalarFieldContainer[int]
    keep: str
    def __init__(self, name: _Optional[str] = ..., input: _Optional[str] = ..., attn_mlp: _Optional[_Union[_module_pb2.Mlp, _Mapping]] = ..., windows_len: _Optional[_Iterable[int]] = ..., keep: _Optional[str] = ...) -> None: ...

class RecurrentEncoder(_message.Message):
    __slots__ = ("name", "input", "hidden_size", "num_layers", "dropout", "max_seq_length", "bidirectional", "keep")
    NAME_FIELD_NUMBER: _ClassVar[int]
    INPUT_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_SIZE_FIELD_NUMBER: _ClassVar[int]
    NUM_LAYERS_FIELD_NUMBER: _ClassVar[int]
    DROPOUT_FIELD_NUMBER: _ClassVar[int]
    MAX_SEQ_LENGTH_FIELD_NUMBER: _ClassVar[int]
    BIDIRECTIONAL_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    name: str
    input: str
    hidden_size: int
    num_layers: int
    dropout: float
    max_seq_length: int
    bidirectional: bool
    keep: str
    def __init__(self, name: _Optional[str] = ..., input: _Optional[str] = ..., hidden_size: _Optional[int] = ..., num_layers: _Optional[int] = ..., dropout: _Optional[float] = ..., max_seq_length: _Optional[int] = ..., bidirectional: _Optional[bool] = ..., keep: _Optional[str] = ...) -> None: ...

class TransformerEncoder(_message.Message):
    __slots__ = ("name", "input", "hidden_size", "num_heads", "num_layers", "dropout", "max_seq_length", "feed_forward_size", "use_position", "pooling_type", "keep")
    NAME_FIELD_NUMBER: _ClassVar[int]
    INPUT_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_SIZE_FIELD_NUMBER: _ClassVar[int]
    NUM_HEADS_FIELD_NUMBER: _ClassVar[int]
    NUM_LAYERS_FIELD_NUMBER: _ClassVar[int]
    DROPOUT_FIELD_NUMBER: _ClassVar[int]
    MAX_SEQ_LENGTH_FIELD_NUMBER: _ClassVar[int]
    FEED_FORWARD_SIZE_FIELD_NUMBER: _ClassVar[int]
    USE_POSITION_FIELD_NUMBER: _ClassVar[int]
    POOLING_TYPE_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    name: str
    input: str
    hidden_size: int
    num_heads: int
    num_layers: int
    dropout: float
    max_seq_length: int
    feed_forward_size: int
    use_position: bool
    pooling_type: str
    keep: str
    def __init__(self, name: _Optional[str] = ..., input: _Optional[str] = ..., hidden_size: _Optional[int] = ..., num_heads: _Optional[int] = ..., num_layers: _Optional[int] = ..., dropout: _Optional[float] = ..., max_seq_length: _Optional[int] = ..., feed_forward_size: _Optional[int] = ..., use_position: _Optional[bool] = ..., pooling_type: _Optional[str] = ..., keep: _Optional[str] = ...) -> None: ...

class SequenceEncoder(_message.Message):
    __slots__ = ("din_encoder", "simple_attention", "pooling_encoder", "self_attention_encoder", "multi_window_din_encoder", "lstm", "gru", "transformer", "pooling", "attention")
    DIN_ENCODER_FIELD_NUMBER: _ClassVar[int]
    SIMPLE_ATTENTION_FIELD_NUMBER: _ClassVar[int]
    POOLING_ENCODER_FIELD_NUMBER: _ClassVar[int]
    SELF_ATTENTION_ENCODER_FIELD_NUMBER: _ClassVar[int]
    MULTI_WINDOW_DIN_ENCODER_FIELD_NUMBER: _ClassVar[int]
    LSTM_FIELD_NUMBER: _ClassVar[int]
    GRU_FIELD_NUMBER: _ClassVar[int]
    TRANSFORMER_FIELD_NUMBER: _ClassVar[int]
    POOLING_FIELD_NUMBER: _ClassVar[int]
    ATTENTION_FIELD_NUMBER: _ClassVar[int]
    din_encoder: DinEncoder
    simple_attention: SimpleAttentionEncoder
    pooling_encoder: PoolingEncoder
    self_attention_encoder: SelfAttentionEncoder
    multi_window_din_encoder: MultiWindowDinEncoder
    lstm: RecurrentEncoder
    gru: RecurrentEncoder
    transformer: TransformerEncoder
    pooling: PoolingEncoder
    attention: SimpleAttentionEncoder
    def __init__(self, din_encoder: _Optional[_Union[DinEncoder, _Mapping]] = ..., simple_attention: _Optional[_Union[SimpleAttentionEncoder, _Mapping]] = ..., pooling_encoder: _Optional[_Union[PoolingEncoder, _Mapping]] = ..., self_attention_encoder: _Optional[_Union[SelfAttentionEncoder, _Mapping]] = ..., multi_window_din_encoder: _Optional[_Union[MultiWindowDinEncoder, _Mapping]] = ..., lstm: _Optional[_Union[RecurrentEncoder, _Mapping]] = ..., gru: _Optional[_Union[RecurrentEncoder, _Mapping]] = ..., transformer: _Optional[_Union[TransformerEncoder, _Mapping]] = ..., pooling: _Optional[_Union[PoolingEncoder, _Mapping]] = ..., attention: _Optional[_Union[SimpleAttentionEncoder, _Mapping]] = ...) -> None: ...
