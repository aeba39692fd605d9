"""Real rows for the parity gate: each batch encoded as training does, and as the raw rows that a client would send."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from emberline.encoding import columns_from_arrow, encode, required_columns
from emberline.errors import DataError, RequestError
from emberline.export.cases import Case
from emberline.train.config.data_config import DataConfig
from emberline.train.config.pipeline import PipelineConfig
from emberline.train.data.open_source import open_source, suffixes_of
from emberline.train.data.paths import find_files
from emberline.train.features import Feature

BATCH_ROWS = 256


@dataclass(frozen=True)
class RealBatch:
    """Some rows of a data file.

    Args:
        case: encoded from the file's columns, as the training reader encodes them.
        rows: the same rows as plain values, `{column: value}` each.
    """

    case: Case
    rows: list[dict[str, object]]


def find_parity_rows(config: PipelineConfig, given: str | None) -> str:
    """Where real rows come from: what was given, else the config's evaluation data, else its training data; empty where none of those is there.

    Raises:
        DataError: what was given is not there.
    """
    suffixes = suffixes_of(config.data)
    if given is not None:
        find_files(given, suffixes)
        return given
    for paths in (config.eval_input_path, config.train_input_path):
        if not paths:
            continue
        try:
            find_files(paths, suffixes)
        except DataError:
            continue
        return paths
    return ""


def iterate_real_cases(config: DataConfig, features: Sequence[Feature], paths: str, batch_rows: int = BATCH_ROWS) -> Iterator[RealBatch]:
    """The files' rows in order, in batches of at most `batch_rows`.

    Raises:
        DataError: a file or a row cannot be read; names it.
    """
    specs = [feature.spec for feature in features]
    source = open_source(config, paths, required_columns(specs))
    for fragment in source.fragments:
        row = fragment.first_row
        for chunk in source.read(fragment, batch_rows):
            for start in range(0, chunk.num_rows, batch_rows):
                part = chunk.slice(start, batch_rows)
                name = f"{fragment.path.name}, rows {row + start} to {row + start + part.num_rows - 1}"
                try:
                    encoded = encode(specs, columns_from_arrow(specs, part), part.num_rows)
                except RequestError as error:
                    raise DataError(f"{name}: {error}") from error
                yield RealBatch(Case(name, encoded), _plain_rows(part))
            row += chunk.num_rows


def _plain_rows(batch: Any) -> list[dict[str, object]]:
    """A record batch as a client's rows: a map of id to weight becomes an object."""
    maps = [field.name for field in batch.schema if str(field.type).startswith("map<")]
    rows: list[dict[str, object]] = batch.to_pylist()
    for row in rows:
        for name in maps:
            pairs = row[name]
            row[name] = dict(pairs) if isinstance(pairs, list) else pairs
    return rows
