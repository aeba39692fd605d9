"""The reader: files -> batches, in an order that depends on seed and epoch alone."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from typing import Any

from emberline.encoding import columns_from_arrow, encode, required_columns
from emberline.errors import DataError, RequestError
from emberline.train.config.data_config import DataConfig, FileFormat
from emberline.train.data import csv_source, parquet_source
from emberline.train.data.batch import Batch, batch_from_encoded
from emberline.train.data.encoded_rows import EncodedRows, rechunk
from emberline.train.data.negatives import NegativeRows
from emberline.train.data.order import fragment_order, window_order
from emberline.train.data.paths import Paths, find_files
from emberline.train.data.position import DataPosition
from emberline.train.data.prefetch import Prefetch
from emberline.train.data.source import Fragment, Source
from emberline.train.data.targets import label_values, weight_values
from emberline.train.features import Feature

_CHUNK_ROWS = 4096


class DataReader:
    """Reads data files epoch after epoch: each `for batch in reader` goes through the rest of one epoch.

    Rows come in file order, or shuffled: row groups (CSV: files) in random order, and the rows within each window of
    `config.shuffle_buffer_rows` successive rows in random order. Batches go on over the borders of row groups and files.
    A thread reads and encodes ahead; it ends with the loop, also where the loop is left early.

    Args:
        config: format, label and weight columns, shuffle buffer, what to do with a last short batch.
        features: what to encode.
        paths: files, folders, patterns: see `find_files`.
        batch_size: rows a batch; None: `config.batch_size`.
        seed: of the shuffle.
        shuffle: None: `config.shuffle`.
        drop_remainder: leave out a last batch that is not full; None: `config.drop_remainder`.
        position: where to begin; batches before it are skipped without being encoded.
        with_labels: whether label and weight columns are read.

    Raises:
        DataError: a file is missing or damaged, or lacks a column: names file and column.
    """

    def __init__(
        self,
        config: DataConfig,
        features: Sequence[Feature],
        paths: Paths,
        *,
        batch_size: int | None = None,
        seed: int = 0,
        shuffle: bool | None = None,
        drop_remainder: bool | None = None,
        position: DataPosition | None = None,
        with_labels: bool = True,
    ) -> None:
        self._config = config
        self._features = tuple(features)
        self._specs = [feature.spec for feature in features]
        self._batch_size = config.batch_size if batch_size is None else batch_size
        self._seed = seed
        self._shuffle = config.shuffle if shuffle is None else shuffle
        self._drop_remainder = config.drop_remainder if drop_remainder is None else drop_remainder
        self._label_fields = config.label_fields if with_labels else ()
        self._weight_field = config.sample_weight_field if with_labels else None
        self._negatives = NegativeRows(config.negative_columns, features) if config.negative_columns else None
        self._position = position or DataPosition()
        self._source = self._open(paths)
        assert self._batch_size >= 1
        assert config.shuffle_buffer_rows >= 1

    def _open(self, paths: Paths) -> Source:
        targets = [*self._label_fields, *([self._weight_field] if self._weight_field else [])]
        columns = list(dict.fromkeys([*required_columns(self._specs), *targets, *(self._negatives.columns if self._negatives else [])]))
        if self._config.file_format is FileFormat.PARQUET:
            return parquet_source.ParquetSource(find_files(paths, parquet_source.SUFFIXES), columns)
        return csv_source.CsvSource(
            find_files(paths, csv_source.SUFFIXES),
            columns,
            delimiter=self._config.delimiter,
            with_header=self._config.with_header,
            fields=self._config.input_fields,
        )

    @property
    def position(self) -> DataPosition:
        """Where the reader is: after the batch that was handed out last."""
        return self._position

    def seek(self, position: DataPosition) -> None:
        """Go to another place: the next loop begins there."""
        self._position = position

    @property
    def num_rows(self) -> int | None:
        """Rows of an epoch; None for CSV, which would have to be read to know."""
        counts = [fragment.num_rows for fragment in self._source.fragments]
        known = [count for count in counts if count is not None]
        return sum(known) if len(known) == len(counts) else None

    @property
    def num_batches(self) -> int | None:
        """Batches of an epoch; None for CSV."""
        rows = self.num_rows
        if rows is None:
            return None
        return rows // self._batch_size if self._drop_remainder else -(-rows // self._batch_size)

    def __iter__(self) -> Iterator[Batch]:
        start = self._position
        with Prefetch(self._batches(start.epoch, start.batches)) as batches:
            for number, batch in enumerate(batches, start.batches + 1):
                self._position = DataPosition(start.epoch, number)
                yield batch
        self._position = DataPosition(start.epoch + 1, 0)

    def _batches(self, epoch: int, skipped: int) -> Iterator[Batch]:
        skip_rows = skipped * self._batch_size
        total = self.num_rows
        if total is not None and skip_rows >= total + self._batch_size:
            raise DataError(f"position {skipped} batches lies beyond the {total} rows of the data: have the files changed?")
        rows = self._shuffled(epoch, skip_rows) if self._shuffle else self._read(self._source.fragments, skip_rows)
        with closing(rows):
            for piece in rechunk(rows, self._batch_size):
                if piece.num_rows == self._batch_size or not self._drop_remainder:
                    yield batch_from_encoded(self._features, piece.columns, piece.labels, piece.sample_weights, piece.negatives)

    def _shuffled(self, epoch: int, skip_rows: int) -> Generator[EncodedRows, None, None]:
        size = self._config.shuffle_buffer_rows
        fragments = fragment_order(self._source.fragments, self._seed, epoch)
        first = skip_rows // size
        skip_rows -= first * size
        rows = self._read(fragments, first * size)
        with closing(rows):
            for window, piece in enumerate(rechunk(rows, size), first):
                order = window_order(piece.num_rows, self._seed, epoch, window)
                yield piece.take(order[skip_rows:])
                skip_rows = 0

    def _read(self, fragments: Sequence[Fragment], skip_rows: int) -> Generator[EncodedRows, None, None]:
        """Encoded rows of the fragments in order, without the first `skip_rows`."""
        chunk_rows = _CHUNK_ROWS if self._shuffle else self._batch_size * max(_CHUNK_ROWS // self._batch_size, 1)
        for fragment in fragments:
            if fragment.num_rows is not None and skip_rows >= fragment.num_rows:
                skip_rows -= fragment.num_rows
                continue
            row = fragment.first_row
            for chunk in self._source.read(fragment, chunk_rows):
                skipped = min(skip_rows, chunk.num_rows)
                if skipped < chunk.num_rows:
                    yield self._encode(chunk.slice(skipped), fragment, row + skipped)
                skip_rows -= skipped
                row += chunk.num_rows

    def _encode(self, chunk: Any, fragment: Fragment, first_row: int) -> EncodedRows:
        try:
            columns = encode(self._specs, columns_from_arrow(self._specs, chunk), chunk.num_rows)
            labels = {name: label_values(chunk.column(name), name) for name in self._label_fields}
            weights = None if self._weight_field is None else weight_values(chunk.column(self._weight_field), self._weight_field)
            negatives = None if self._negatives is None else self._negatives.encode(chunk)
        except RequestError as error:
            targets = {*self._label_fields, self._weight_field, *(self._negatives.columns if self._negatives else [])}
            raise _data_error(error, fragment, first_row, targets) from error
        return EncodedRows(columns, labels, weights, negatives)


def _data_error(error: RequestError, fragment: Fragment, first_row: int, targets: set[str | None]) -> DataError:
    """The same problem, placed in its file: rows count from 0, without a header."""
    where = f"{fragment.path}, row {first_row + error.row}" if error.row is not None else str(fragment.path)
    what = "" if not error.feature else f"column {error.feature!r}: " if error.feature in targets else f"feature {error.feature!r}: "
    return DataError(f"{where}: {what}{error.problem}")
