"""The reader: files -> batches, in an order that depends on seed and epoch alone."""

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing

import numpy as np

from emberline.errors import DataError
from emberline.train.config.data_config import DataConfig
from emberline.train.data.batch import Batch, batch_from_encoded
from emberline.train.data.encoded_rows import EncodedRows, rechunk
from emberline.train.data.files import DataFile, list_files
from emberline.train.data.negatives import NegativeRows
from emberline.train.data.open_source import open_source, suffixes_of
from emberline.train.data.order import fragment_order, window_order
from emberline.train.data.paths import Paths
from emberline.train.data.pieces import cut_pieces
from emberline.train.data.position import DataPosition
from emberline.train.data.prefetch import Prefetch
from emberline.train.data.raw_rows import RawRows, RowEncoder, Unit, read_rows
from emberline.train.data.sampler import ItemSampler
from emberline.train.data.share import Share, released
from emberline.train.data.source import Fragment, count_rows
from emberline.train.features import Feature

_CHUNK_ROWS = 4096
_UNIT_ROWS = 1024
"""Windows that are smaller than this are encoded several at a time."""


class DataReader:
    """Reads data files epoch after epoch: each `for batch in reader` goes through the rest of one epoch.

    Rows come in file order, or shuffled: row groups (CSV: files) in random order, and the rows within each window of
    `config.shuffle_buffer_rows` successive rows in random order. Batches go on over the borders of row groups and files.
    A thread reads and encodes ahead; it ends with the loop, also where the loop is left early.

    Args:
        config: format, label and weight columns, shuffle buffer, what to do with a last short batch.
        features: what to encode.
        paths: files, folders, patterns: see `find_files`.
        batch_size: rows a batch, on each rank; None: `config.batch_size`.
        seed: of the shuffle, and of what the sampler draws.
        shuffle: None: `config.shuffle`.
        drop_remainder: leave out a last batch that is not full; None: `config.drop_remainder`.
        position: where to begin; batches before it are skipped without being encoded.
        with_labels: whether label and weight columns are read.
        rank: whose rows are handed out: see `share`. Ranks read the same files, and encode their own rows only.
        world_size: ranks in all.
        sampler: draws each batch's negatives; None: none are drawn.

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
        rank: int = 0,
        world_size: int = 1,
        sampler: ItemSampler | None = None,
    ) -> None:
        self._config, self._paths = config, paths
        self._features = tuple(features)
        self._batch_size = config.batch_size if batch_size is None else batch_size
        self._seed = seed
        self._shuffle = config.shuffle if shuffle is None else shuffle
        self._drop_remainder = config.drop_remainder if drop_remainder is None else drop_remainder
        self._rank, self._world_size = rank, world_size
        self._sampler = sampler
        self._encoder = RowEncoder(
            [feature.spec for feature in features],
            config.label_fields if with_labels else (),
            config.sample_weight_field if with_labels else None,
            NegativeRows(config.negative_columns, features) if config.negative_columns else None,
            sampler.item_ids if sampler is not None else None,
        )
        self._position = position or DataPosition()
        self._source = open_source(config, paths, self._encoder.columns)
        assert self._batch_size >= 1
        assert config.shuffle_buffer_rows >= 1

    @property
    def position(self) -> DataPosition:
        """Where the reader is: after the batch that was handed out last."""
        return self._position

    def files(self) -> tuple[DataFile, ...]:
        """What is read, as it is on disk now.

        Raises:
            DataError: a file is gone.
        """
        return list_files(self._paths, suffixes_of(self._config), self._source)

    def seek(self, position: DataPosition) -> None:
        """Go to another place: the next loop begins there."""
        self._position = position

    @property
    def num_rows(self) -> int | None:
        """Rows of an epoch; None for CSV, which would have to be read to know."""
        return count_rows(self._source)

    @property
    def num_batches(self) -> int | None:
        """Batches of an epoch, on each rank; None for CSV."""
        rows, step = self.num_rows, self._batch_size * self._world_size
        if rows is None:
            return None
        return rows // step if self._drop_remainder else -(-rows // step)

    def __iter__(self) -> Iterator[Batch]:
        start = self._position
        with Prefetch(self._batches(start)) as batches:
            for batch, num_rows in batches:
                self._position = DataPosition(start.epoch, self._position.rows + num_rows)
                yield batch
        self._position = DataPosition(start.epoch + 1, 0)

    def _batches(self, start: DataPosition) -> Iterator[tuple[Batch, int]]:
        """Batches of this rank, and how many rows all ranks have in each."""
        total = self.num_rows
        if total is not None and start.rows > total:
            raise DataError(f"position {start.rows} lies beyond the {total} rows of the data: have the files changed?")
        share = Share(self._batch_size, self._rank, self._world_size, start.rows, total)
        last_unit: Unit | None = None

        def own_rows(units: Iterable[Unit]) -> Iterator[EncodedRows]:
            nonlocal last_unit
            for last_unit in released(units, share):
                places = share.places(last_unit.start, last_unit.stop)
                if places is None or len(places):
                    yield self._encoder.encode(last_unit, places)

        def batch(rows: EncodedRows) -> Batch:
            return self._batch(rows, DataPosition(start.epoch, start.rows + done * share.step_rows))

        done, short = 0, None
        with closing(self._units(start)) as units:
            for piece in rechunk(own_rows(units), self._batch_size):
                if done == share.num_whole_steps:  # of a short step all rows are known, and so how many whole ones there are
                    short = piece
                    break
                yield batch(piece), share.step_rows
                done += 1
            if share.num_last_rows and not self._drop_remainder:
                assert last_unit is not None
                yield batch(short or self._encoder.encode(last_unit, np.empty(0, np.int64))), share.num_last_rows

    def _batch(self, rows: EncodedRows, position: DataPosition) -> Batch:
        """Rows as a batch, whose step begins at that position."""
        negatives = rows.negatives
        if self._sampler is not None:
            negatives = self._sampler.draw(rows.columns, self._seed, position, self._rank)
        return batch_from_encoded(self._features, rows.columns, rows.labels, rows.sample_weights, negatives)

    def _units(self, start: DataPosition) -> Generator[Unit, None, None]:
        """The rows of an epoch from a place on, in order."""
        if self._shuffle:
            yield from self._shuffled(start)
            return
        place = start.rows
        for part in self._read(self._source.fragments, start.rows):
            yield Unit([part], place, np.arange(part.num_rows))
            place += part.num_rows

    def _shuffled(self, start: DataPosition) -> Generator[Unit, None, None]:
        """Units of one window, or of several small ones."""
        size = self._config.shuffle_buffer_rows
        windows = max(_UNIT_ROWS // size, 1)
        fragments = fragment_order(self._source.fragments, self._seed, start.epoch)
        first = start.rows // (windows * size)
        place = first * windows * size
        for number, parts in enumerate(cut_pieces(self._read(fragments, place), windows * size), first):
            rows = sum(part.num_rows for part in parts)
            begins = range(0, rows, size)
            orders = [begin + window_order(min(size, rows - begin), self._seed, start.epoch, number * windows + begin // size) for begin in begins]
            order = np.concatenate(orders)[max(start.rows - place, 0) :]
            place += rows
            if len(order):
                yield Unit(parts, place - len(order), order)

    def _read(self, fragments: Sequence[Fragment], skip_rows: int) -> Generator[RawRows, None, None]:
        """Rows of the fragments in order, without the first `skip_rows`."""
        chunk_rows = _CHUNK_ROWS * self._world_size
        if not self._shuffle:
            step = self._batch_size * self._world_size
            chunk_rows = step * max(chunk_rows // step, 1)
        for fragment in fragments:
            if fragment.num_rows is not None and skip_rows >= fragment.num_rows:
                skip_rows -= fragment.num_rows
                continue
            for rows in read_rows(self._source, fragment, chunk_rows):
                skipped = min(skip_rows, rows.num_rows)
                if skipped < rows.num_rows:
                    yield rows.cut(skipped, rows.num_rows)
                skip_rows -= skipped
