"""Ids without a row of their own: how many a model was asked for, and the requests that it refuses for them."""

import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from emberline.errors import RequestError
from emberline.schema import ModelSchema, UnknownIds
from emberline.serving.artifact import KNOWN
from emberline.serving.batching import MergedBatch
from emberline.serving.lookup import BagRows
from emberline.serving.request import CheckedRequest


@dataclass(frozen=True)
class IdCounts:
    """Ids that a ZCH or dynamic table was asked for, once for each feature that reads it, and how many of them had no row of their own."""

    asked: int = 0
    unknown: int = 0


class UnknownCounter:
    """Counts by table; any number of threads may count at the same time.

    Args:
        tables: names of the tables that are counted from 0, asked or not.
    """

    def __init__(self, tables: Collection[str]) -> None:
        self._counts = {table: IdCounts() for table in tables}
        self._lock = threading.Lock()

    def count(self, rows: BagRows) -> None:
        """Add one batch."""
        reads = list(rows.found.items())
        numbers = _count_unknown([known for _, (_, known) in reads])
        self.add((table, known.numel(), unknown) for ((_, table), (_, known)), unknown in zip(reads, numbers, strict=True))

    def add(self, counts: Iterable[tuple[str, int, int]]) -> None:
        """Add some tables' ids and unknown ids."""
        with self._lock:
            for table, asked, unknown in counts:
                before = self._counts[table]
                self._counts[table] = IdCounts(before.asked + asked, before.unknown + unknown)

    def read(self) -> dict[str, IdCounts]:
        """The counts so far, by table."""
        with self._lock:
            return dict(self._counts)

    def clear(self) -> None:
        """Begin at 0 again."""
        with self._lock:
            self._counts = {table: IdCounts() for table in self._counts}


def _count_unknown(masks: Sequence[Tensor]) -> list[int]:
    """How many are false in each; on a GPU all counts are fetched at once."""
    if not masks or masks[0].device.type == "cpu":
        return [known.numel() - int(np.count_nonzero(known.numpy())) for known in masks]
    counts: list[int] = torch.stack([known.logical_not().sum() for known in masks]).tolist()
    return counts


class UnknownRefuser:
    """Finds the requests of a batch that hold an unknown id where the model was exported to refuse them.

    Args:
        schema: the model's description.
    """

    def __init__(self, schema: ModelSchema) -> None:
        self._features = schema.sparse_features
        self._refused = frozenset(place for place, feature in enumerate(self._features) if feature.unknown_ids is UnknownIds.ERROR)

    def __call__(
        self, rows: BagRows, batch: MergedBatch, requests: Sequence[CheckedRequest], wanted: Sequence[Collection[str]]
    ) -> Mapping[int, RequestError]:
        """An error for each request that is refused, by its place in the batch.

        Args:
            rows: what the batch reads.
            batch: the requests as one.
            requests: as they came.
            wanted: the answers that each wants; one that asks for nothing but `known` is never refused: it asks which ids would be.
        """
        unknown = rows.unknown_in(self._refused) if self._refused else None
        if unknown is None:
            return {}
        parts = batch.split_ids(unknown)
        asks_more = [any(name != KNOWN for name in names) for names in wanted]
        return {place: self._error(requests[place], part) for place, part in enumerate(parts) if asks_more[place] and bool(part.any())}

    def _error(self, request: CheckedRequest, unknown: Tensor) -> RequestError:
        """Names the first of the unknown ids."""
        place = int(unknown.int().argmax())
        bag = int(np.searchsorted(request.lengths.cumsum(dtype=np.int64), place, side="right"))
        feature, row = divmod(bag, request.num_rows)
        message = f"id {request.ids[place]} has no row of its own, and this model was exported to refuse such ids"
        return RequestError(message, feature=self._features[feature].name, row=row)
