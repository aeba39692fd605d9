"""The rows that a batch's ids read: each feature's raw ids are looked up once for each table that it reads."""

from collections.abc import Mapping
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


class RowFinder:
    """Raw ids to rows, for whole batches.

    Args:
        schema: the model's description.
        remaps: raw id -> row, for each ZCH or dynamic table.
    """

    def __init__(self, schema: ModelSchema, remaps: Mapping[str, RemapIndex]) -> None:
        places = {feature.name: place for place, feature in enumerate(schema.sparse_features)}
        reads = {(places[lookup.feature], lookup.table): None for lookup in schema.lookups if lookup.table in remaps}
        self._reads = [(feature, table, remaps[table]) for feature, table in reads]

    def __call__(self, bags: Bags) -> BagRows:
        """The rows of a batch's ids."""
        return BagRows(bags, {(feature, table): remap(bags.ids[feature]) for feature, table, remap in self._reads})
