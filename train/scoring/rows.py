"""Rows to be scored, with the columns that go along: streamed, each rank its own."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from emberline.encoding import columns_from_rows, encode
from emberline.train.config.data_config import DataConfig
from emberline.train.data import Batch, batch_from_encoded
from emberline.train.data.open_source import open_source
from emberline.train.data.paths import Paths
from emberline.train.data.raw_rows import RawRows, RowEncoder, read_rows
from emberline.train.data.source import count_rows
from emberline.train.features import Feature
from emberline.train.sharding.process_group import Ranks


@dataclass(frozen=True)
class ScoredRows:
    """Some rows.

    Args:
        batch: what the model takes.
        kept: an Arrow record batch of the columns that go along.
    """

    batch: Batch
    kept: Any


class RowStream:
    """The rows of data files, in batches.

    Ranks take whole parts of files (parquet: row groups) in turn where there are as many parts as ranks, else batches in turn. One rank has all rows,
    in file order.

    Args:
        config: format of the files.
        features: what to encode.
        paths: files, folders, patterns.
        batch_size: most rows of a batch.
        keep: columns that go along.
        ranks: all of them.

    Raises:
        DataError: a file is missing or damaged, or lacks a column; names file and column.
    """

    def __init__(self, config: DataConfig, features: Sequence[Feature], paths: Paths, batch_size: int, keep: Sequence[str], ranks: Ranks) -> None:
        self._features, self._batch_size, self._keep, self._ranks = tuple(features), batch_size, list(keep), ranks
        self._encoder = RowEncoder([feature.spec for feature in features])
        self._source = open_source(config, paths, [*self._encoder.columns, *keep])

    @property
    def num_rows(self) -> int | None:
        """Of all ranks; None for CSV, which would have to be read to know."""
        return count_rows(self._source)

    def __iter__(self) -> Iterator[ScoredRows]:
        """The batches of this rank.

        Raises:
            DataError: a value that cannot be encoded; names file, row and feature.
        """
        rank, world_size = self._ranks.rank, self._ranks.world_size
        by_fragment = len(self._source.fragments) >= world_size
        number = 0
        for place, fragment in enumerate(self._source.fragments):
            if by_fragment and place % world_size != rank:
                continue
            for rows in read_rows(self._source, fragment, self._batch_size):
                if by_fragment or number % world_size == rank:
                    yield self._scored(rows)
                number += 1

    def no_rows(self) -> Batch:
        """A batch without rows."""
        columns, count = columns_from_rows(self._encoder.specs, [])
        return batch_from_encoded(self._features, encode(self._encoder.specs, columns, count))

    def _scored(self, rows: RawRows) -> ScoredRows:
        return ScoredRows(batch_from_encoded(self._features, self._encoder.encode_all(rows).columns), rows.chunk.select(self._keep))
