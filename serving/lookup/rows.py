"""The rows that a batch's ids read: each feature's raw ids are looked up once for each table that it reads."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from emberline.schema import ModelSchema
from emberline.serving.lookup.bags import Bags
from emberline.serving.remap import RemapIndex


@dataclass(frozen=True, eq=False)
class BagRows:
    """The rows of one batch's ids.

    Args:
        bags: the batch.
        found: rows int64 [its ids] and known bool [its ids], by feature (its place in the schema) and table, for tables with raw ids.
    """

    bags: Bags
    found: Mapping[tuple[int, str], tuple[Tensor, Tensor]]

    def of(self, feature: int, table: str) -> Tensor:
        """The row of each of a feature's ids in a table: int64 [its ids]."""
        found = self.found.get((feature, table))
        return self.bags.ids[feature] if found is None else found[0]

    def known(self) -> Tensor:
        """Whether each id of the batch has a row of its own in every table that it reads: bool [N], in the request's order."""
        masks = [torch.ones(ids.numel(), dtype=torch.bool, device=self.bags.device) for ids in self.bags.ids]
        for (feature, _), (_, known) in self.found.items():
            masks[feature] &= known
        return torch.cat(masks) if masks else torch.empty(0, dtype=torch.bool, device=self.bags.device)

    def unknown_in(self, features: Collection[int]) -> Tensor | None:
        """Which of the batch's ids are these features' and have no row of their own in some table: bool [N]; None where there are none.

        Args:
            features: places of features in the schema.
        """
        masks = [known.logical_not() if feature in features else None for (feature, _), (_, known) in self.found.items()]
        if not any(mask is not None and bool(mask.any()) for mask in masks):
            return None
        parts = [torch.zeros(ids.numel(), dtype=torch.bool, device=self.bags.device) for ids in self.bags.ids]
        for (feature, _), mask in zip(self.found, masks, strict=True):
            if mask is not None:
                parts[feature] |= mask
        return torch.cat(parts)


class RowFinder:
    """Raw ids to rows, for whole batches; ids that a table does not have get the row that the lookup names, or their fallback row.

    Args:
        schema: the model's description.
        remaps: raw id -> row, for each ZCH or dynamic table.

    Attributes:
        reads: each feature (its place in the schema) and table that raw ids are looked up for, and the map that does it.
    """

    def __init__(self, schema: ModelSchema, remaps: Mapping[str, RemapIndex]) -> None:
        places = {feature.name: place for place, feature in enumerate(schema.sparse_features)}
        reads = {(places[lookup.feature], lookup.table): lookup.unknown_row for lookup in schema.reads if lookup.table in remaps}
        self.reads = [(feature, table, remaps[table] if row is None else remaps[table].reading(row)) for (feature, table), row in reads.items()]

    def __call__(self, bags: Bags) -> BagRows:
        """The rows of a batch's ids."""
        return BagRows(bags, {(feature, table): remap(bags.ids[feature]) for feature, table, remap in self.reads})
