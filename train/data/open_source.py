"""Data files opened as their config says."""

from collections.abc import Iterable, Sequence

from emberline.train.config.data_config import DataConfig, FileFormat
from emberline.train.data import csv_source, parquet_source
from emberline.train.data.paths import Paths, find_files
from emberline.train.data.source import Source


def suffixes_of(config: DataConfig) -> Sequence[str]:
    """How names of the data's files end, in folders."""
    return parquet_source.SUFFIXES if config.file_format is FileFormat.PARQUET else csv_source.SUFFIXES


def open_source(config: DataConfig, paths: Paths, columns: Iterable[str]) -> Source:
    """The files' columns; one that is named twice is read once.

    Args:
        config: how files are written.
        paths: files, folders, patterns: see `find_files`.
        columns: what is read.

    Raises:
        DataError: a file is missing or damaged, or lacks a column; names file and column.
    """
    files, names = find_files(paths, suffixes_of(config)), list(dict.fromkeys(columns))
    if config.file_format is FileFormat.PARQUET:
        return parquet_source.ParquetSource(files, names)
    return csv_source.CsvSource(files, names, delimiter=config.delimiter, with_header=config.with_header, fields=config.input_fields)
