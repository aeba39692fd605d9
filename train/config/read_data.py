"""Reading `data_config`: older spellings become one, and every combination that can't work is named."""

from typing import Any

from emberline.train.config.data_config import DataConfig, FgMode, FieldConfig, FileFormat
from emberline.train.config.protos import data_pb2
from emberline.train.config.ranges import at_least_one
from emberline.train.config.read import Reader
from emberline.train.config.text import Path
from emberline.train.features.sentences import Absence, prefixed, unknown_name

_FORMATS = {"ParquetDataset": FileFormat.PARQUET, "CsvDataset": FileFormat.CSV}
_FG_MODES = {"FG_NONE": FgMode.NONE, "FG_NORMAL": FgMode.NORMAL, "FG_DAG": FgMode.NORMAL}
_TYPES = tuple(data_pb2.FieldType.keys())
_TYPE_ALIASES = {"BIGINT": "INT64", "INT": "INT32", "TINYINT": "INT32", "SMALLINT": "INT32"}


def read_data(reader: Reader, message: data_pb2.Data, path: Path) -> DataConfig:
    """The data config; problems are noted with the reader, and the rest is read all the same."""
    where = "data_config"
    values: dict[str, Any] = {}
    found: list[str] = []
    for field, value in reader.accepted(message, where, path):
        if field.name not in _SPECIAL:
            values[field.name] = reader.value(message, field, value, where, path)
    values["file_format"] = (
        _FORMATS.get(data_pb2.DatasetType.Name(message.dataset_type), FileFormat.PARQUET) if message.HasField("dataset_type") else FileFormat.PARQUET
    )
    values["fg_mode"] = _fg_mode(message, found)
    values["input_fields"] = _input_fields(message, values.get("input_fields"), found)
    rows = _shuffle_buffer_rows(message, found)
    if rows is not None:
        values["shuffle_buffer_rows"] = rows
    config = DataConfig(**{name: value for name, value in values.items() if value is not None})
    reader.problems.add_all(path, [prefixed(where, text) for text in [*found, *data_problems(config)]])
    return config


_SPECIAL = frozenset({"dataset_type", "fg_encoded", "fg_mode", "input_fields_str", "shuffle_buffer_size", "shuffle_buffer_rows"})
"""Fields that become others of the dataclass."""


def _fg_mode(message: data_pb2.Data, found: list[str]) -> FgMode:
    modern = _FG_MODES.get(data_pb2.FgMode.Name(message.fg_mode)) if message.HasField("fg_mode") else None
    older = (FgMode.NONE if message.fg_encoded else FgMode.NORMAL) if message.HasField("fg_encoded") else None
    if modern and older and modern is not older:
        found.append(f"fg_encoded: {str(message.fg_encoded).lower()} says {older}, fg_mode says otherwise; keep fg_mode")
    return modern or older or FgMode.NONE


def _input_fields(message: data_pb2.Data, given: tuple[FieldConfig, ...] | None, found: list[str]) -> tuple[FieldConfig, ...]:
    if not message.HasField("input_fields_str"):
        return given or ()
    if given:
        found.append("input_fields and input_fields_str exclude each other; keep one")
    fields = []
    for part in filter(None, (piece.strip() for piece in message.input_fields_str.split(";"))):
        name, _, kind = (piece.strip() for piece in part.partition(":"))
        kind = _TYPE_ALIASES.get(kind.upper(), kind.upper())
        if kind and kind not in _TYPES:
            found.append(f"input_fields_str: {unknown_name('type', kind, _TYPES)}")
        fields.append(FieldConfig(input_name=name, input_type=kind))
    return tuple(fields)


def _shuffle_buffer_rows(message: data_pb2.Data, found: list[str]) -> int | None:
    """Rows held for shuffling; `shuffle_buffer_size` counts batches."""
    if message.HasField("shuffle_buffer_rows") and message.HasField("shuffle_buffer_size"):
        found.append("shuffle_buffer_rows and shuffle_buffer_size (in batches) exclude each other; keep one")
    if message.HasField("shuffle_buffer_rows"):
        return message.shuffle_buffer_rows
    if message.HasField("shuffle_buffer_size"):
        return message.shuffle_buffer_size * (message.batch_size if message.HasField("batch_size") else DataConfig.batch_size)
    return None


def data_problems(config: DataConfig) -> list[str]:
    """What is wrong with a data config's values, one sentence each."""
    found = at_least_one("batch_size", "eval_batch_size", "shuffle_buffer_rows")(config)
    if len(config.sample_weight_fields) > 1:
        found.append("sample_weight_fields: more than one is not supported yet")
    found += _twice("label_fields", config.label_fields) + _twice("input_fields", [field.input_name for field in config.input_fields])
    if config.negative_columns and config.file_format is FileFormat.CSV:
        found.append("negative_columns: a CSV file has no lists; use ParquetDataset")
    if config.negative_columns and config.negative_sampler:
        found.append("negative_columns and negative_sampler exclude each other; keep one")
    if not all(field.input_name for field in config.input_fields):
        found.append("input_fields: a column has no name")
    if not config.fg_encoded_multival_sep:
        found.append("fg_encoded_multival_sep must not be empty")
    if config.file_format is FileFormat.CSV:
        found += _csv_problems(config)
    return found


def _csv_problems(config: DataConfig) -> list[str]:
    found = []
    if len(config.delimiter) != 1 or not config.delimiter.isascii() or config.delimiter in '"\r\n':
        found.append(f"delimiter must be one character, found {config.delimiter!r}")
    if not config.with_header and not config.input_fields:
        found.append(Absence("a CSV file needs names for its columns: set with_header: true, or list input_fields"))
    elif config.negative_sampler and not config.with_header:
        found.append("negative_sampler: items have other columns than the data's input_fields: give all CSV files headers, and set with_header: true")
    return found


def _twice(what: str, names: Any) -> list[str]:
    repeated = sorted({name for name in names if list(names).count(name) > 1})
    return [f"{what} has {name!r} more than once" for name in repeated]
