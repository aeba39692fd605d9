"""Negatives that are drawn from a table of items, by weight: some for each batch, which all its rows share.

    items   item  category  weight        a batch with the items a and d, 3 negatives
            a     7         1
            b     7         1             item   a d | c b c         drawn: any but the batch's own
            c     9         2             rows   0 1 | of all
            d     8         1

Letters: B rows, I items, S negatives of a batch.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from emberline.encoding import EncodedColumns
from emberline.encoding.selection import RowTaker, only_features, take_columns
from emberline.errors import DataError
from emberline.schema import FeatureKind, FeatureSpec, RawIdEncoder
from emberline.train.config.data_config import DataConfig, NegativeSamplerConfig
from emberline.train.data.encoded_rows import EncodedRows, join
from emberline.train.data.open_source import open_source
from emberline.train.data.order import negatives_generator
from emberline.train.data.position import DataPosition
from emberline.train.data.raw_rows import RawRows, RowEncoder, read_rows
from emberline.train.features import Feature
from emberline.train.features.feature import BASE_DATA_GROUP

Ids = npt.NDArray[np.int64]
_CHUNK_ROWS = 65536
_ID = "negative_sampler.item_id_field"
"""Under this name ids are encoded beside the features, none of which may have a dot in its name."""


class Items:
    """All items that can be drawn, encoded, in memory.

    Ids are told apart as ids of ZCH tables are: 7 and the text "7" are one, "07" is another.

    Args:
        config: where the items are.
        data: how their files are written.
        features: all; those of data groups of their own are the items'.

    Raises:
        DataError: the items cannot be read or encoded, one comes twice or has no id, or none can be drawn; names file and row.
    """

    def __init__(self, config: NegativeSamplerConfig, data: DataConfig, features: Sequence[Feature]) -> None:
        specs = [feature.spec for feature in features if feature.data_group != BASE_DATA_GROUP]
        rows = _read(config, data, RowEncoder(specs, weight_field=config.weight_field or None, item_ids=id_spec(config)))
        ids = rows.columns.sparse[_ID].values
        weights = np.ones(rows.num_rows, np.float32) if rows.sample_weights is None else rows.sample_weights
        order = np.argsort(ids)
        order = order[weights[order] > 0]
        if not len(order):
            raise DataError(f"{config.input_path}: no item can be drawn: the weights in {config.weight_field!r} are all 0")
        self._ids, self._weights = ids[order], weights[order]
        self._ends = self._weights.cumsum(dtype=np.float64)
        self._rows = RowTaker(take_columns(only_features(rows.columns, {spec.name for spec in specs}), order))

    def __len__(self) -> int:
        """I: those of weight 0 are left out."""
        return len(self._ids)

    def draw(self, own: Ids, count: int, generator: np.random.Generator) -> EncodedColumns:
        """S items, drawn independently and with replacement, each as often as its weight says among those that are not in the batch.

        Args:
            own: ids of the batch's items, in any number and order; some may be unknown.
            count: S.
            generator: of random numbers.

        Raises:
            DataError: all items are in the batch.
        """
        return self._rows.take(self._places(self._known(own), count, generator))

    def _known(self, ids: Ids) -> Ids:
        """Where items with these ids are, each once, ascending."""
        wanted = np.unique(ids)
        places: Ids = np.minimum(np.searchsorted(self._ids, wanted), len(self._ids) - 1)
        known: Ids = places[self._ids[places] == wanted]
        return known

    def _places(self, taken: Ids, count: int, generator: np.random.Generator) -> Ids:
        if not count:
            return np.empty(0, np.int64)
        if len(taken) == len(self._ids):
            raise DataError(
                f"negative_sampler: a batch has all {len(self._ids)} items that can be drawn, so that none is left to be a negative: "
                "use a smaller batch_size or eval_batch_size, or in_batch_negative without a sampler"
            )
        share = 1 - self._weights[taken].sum(dtype=np.float64) / self._ends[-1]
        if share * len(self._ids) < count:  # dropping what is taken would need more draws than there are items
            rest = np.delete(np.arange(len(self._ids)), taken)
            last: Ids = rest[_weighted(self._weights[rest].cumsum(dtype=np.float64), count, generator)]
            return last
        drawn = np.empty(0, np.int64)
        while len(drawn) < count:
            more = _weighted(self._ends, math.ceil((count - len(drawn)) / share), generator)
            drawn = np.concatenate((drawn, more[~np.isin(more, taken)]))
        return drawn[:count]


@dataclass(frozen=True)
class ItemSampler:
    """Draws the negatives of a reader's batches.

    Args:
        items: what is drawn from; several samplers may share them.
        num_sample: S.
        config: says which column of the rows has their items' ids.
    """

    items: Items
    num_sample: int
    config: NegativeSamplerConfig

    @property
    def item_ids(self) -> FeatureSpec:
        """What must be encoded of a batch's rows beside the features."""
        return id_spec(self.config)

    def draw(self, rows: EncodedColumns, seed: int, position: DataPosition, rank: int) -> EncodedColumns:
        """The negatives of one batch, the same ones whenever a run comes to that place: S rows, or none for a batch without rows.

        Args:
            rows: the batch; none of its items is drawn.
            seed: of the draws.
            position: where the batch's step begins.
            rank: whose batch it is.

        Raises:
            DataError: all items are in the batch.
        """
        count = self.num_sample if rows.num_rows else 0
        return self.items.draw(rows.sparse[_ID].values, count, negatives_generator(seed, position, rank))


def open_items(data: DataConfig, features: Sequence[Feature]) -> Items | None:
    """The items that a config draws negatives from; None where it draws none.

    Raises:
        DataError: as `Items`.
    """
    return None if data.negative_sampler is None else Items(data.negative_sampler, data, features)


def create_sampler(data: DataConfig, items: Items | None, *, evaluating: bool = False) -> ItemSampler | None:
    """What draws the negatives of training or evaluation batches; None where none are drawn.

    Args:
        data: says how many.
        items: from `open_items`.
        evaluating: whether batches are for evaluation.
    """
    config = data.negative_sampler
    if config is None or items is None:
        return None
    return ItemSampler(items, (config.num_eval_sample if evaluating else 0) or config.num_sample, config)


def id_spec(config: NegativeSamplerConfig) -> FeatureSpec:
    """How ids of items become numbers."""
    return FeatureSpec(name=_ID, kind=FeatureKind.SPARSE, columns=(config.item_id_field,), encoder=RawIdEncoder(), separator="")


def _weighted(ends: npt.NDArray[np.float64], count: int, generator: np.random.Generator) -> Ids:
    """Places, drawn as often as their pieces of the line from 0 to the last of `ends` are long."""
    found: Ids = np.searchsorted(ends, generator.random(count) * ends[-1], side="right")
    return found.clip(max=len(ends) - 1)  # rounding may lead to the very end


@dataclass(frozen=True)
class _Origin:
    """Where successive items are from."""

    path: Path
    first_row: int
    num_rows: int


def _read(config: NegativeSamplerConfig, data: DataConfig, encoder: RowEncoder) -> EncodedRows:
    """All items, each with one id, and each once."""
    parts: list[EncodedRows] = []
    origins: list[_Origin] = []
    for rows in _chunks(config, data, encoder.columns):
        parts.append(encoder.encode_all(rows))
        origins.append(_Origin(rows.fragment.path, rows.first_row, rows.num_rows))
    if not sum(part.num_rows for part in parts):
        raise DataError(f"{config.input_path} has no items to draw from")
    read = join(parts)
    ids = read.columns.sparse[_ID]
    wrong = ids.lengths != 1
    if wrong.any():
        row = int(wrong.argmax())
        found = f"{ids.lengths[row]} values" if ids.lengths[row] else "none"
        raise DataError(f"{_shown(origins, row)}: an item has one {config.item_id_field!r}, but found {found}")
    order = np.argsort(ids.values, kind="stable")
    again = ids.values[order[1:]] == ids.values[order[:-1]]
    if again.any():
        first = int(again.argmax())
        one, other = (_shown(origins, int(row)) for row in order[first : first + 2])
        raise DataError(f"{other}: {config.item_id_field!r} is that of {one} already; list each item once")
    return read


def _chunks(config: NegativeSamplerConfig, data: DataConfig, columns: Sequence[str]) -> Iterator[RawRows]:
    source = open_source(data, config.input_path, columns)
    for fragment in source.fragments:
        yield from read_rows(source, fragment, _CHUNK_ROWS)


def _shown(origins: Sequence[_Origin], row: int) -> str:
    """The file and row of an item, counted over all."""
    for origin in origins:
        if row < origin.num_rows:
            return f"{origin.path}, row {origin.first_row + row}"
        row -= origin.num_rows
    raise AssertionError(row)
