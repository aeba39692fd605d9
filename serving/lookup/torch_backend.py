"""The lookup backend in plain torch: one embedding bag for each lookup."""

from collections.abc import Mapping

import torch
from torch import Tensor

from emberline.schema import LookupSpec, ModelSchema, Pooling
from emberline.serving.lookup.rows import BagRows
from emberline.serving.lookup.steps import Steps
from emberline.serving.quantized import decode_rows
from emberline.serving.rows_on_disk import TableRows, rows_needed

_SUM, _MEAN = 0, 1


class TorchLookup:
    """`torch.embedding_bag` for each lookup, in float32, whatever the table's type: what is not float32 is decoded before it is pooled.

    Args:
        schema: the model's description.
        tables: stored rows of each table, all on one device, or on disk.
        types: the number type of each table; float32 where one is not there.
    """

    name = "torch"

    def __init__(self, schema: ModelSchema, tables: Mapping[str, TableRows], types: Mapping[str, str] | None = None) -> None:
        order = {feature.name: place for place, feature in enumerate(schema.sparse_features)}
        self._tables, self._types = tables, types or {}
        self._reads = [(order[lookup.feature], lookup) for lookup in schema.lookups]
        self._step_reads = [(order[lookup.feature], lookup) for lookup in schema.sequence_lookups]

    def pooled(self, rows: BagRows) -> Tensor:
        """The lookups of a batch; see `LookupBackend`."""
        bags = rows.bags
        parts = [self._bags(rows, feature, lookup, bags.offsets[feature]) for feature, lookup in self._reads]
        return torch.cat(parts, dim=1) if parts else torch.empty(bags.num_rows, 0, device=bags.device)

    def stepped(self, rows: BagRows, steps: Steps) -> dict[str, Tensor]:
        """The lookups that keep steps; see `LookupBackend`."""
        found = {}
        for feature, lookup in self._step_reads:
            offsets = steps.offsets[lookup.feature]
            if offsets is None and not lookup.weighted:
                found[lookup.key] = self._each(rows.of(feature, lookup.table), lookup)
                continue
            if offsets is None:
                offsets = torch.arange(rows.bags.ids[feature].numel() + 1, device=rows.bags.device)
            found[lookup.key] = self._bags(rows, feature, lookup, offsets)
        return found

    def part(self, schema: ModelSchema) -> "TorchLookup":
        """A backend for some features of the model; see `LookupBackend`."""
        return TorchLookup(schema, self._tables, self._types)

    def _bags(self, rows: BagRows, feature: int, lookup: LookupSpec, offsets: Tensor) -> Tensor:
        """The bags of a feature's ids, [bags, dim]: bag b holds the ids [offsets[b], offsets[b + 1])."""
        table, ids = rows_needed(self._tables[lookup.table], rows.of(feature, lookup.table))
        mean, dtype = lookup.pooling is Pooling.MEAN, self._types.get(lookup.table, "fp32")
        weights = rows.bags.weights_of(feature) if lookup.weighted else None
        if weights is not None and mean:
            weights, mean = normalize_weights(weights, offsets), False
        if dtype != "fp32" or not table.is_contiguous():  # of rows with gaps, torch's bags would copy the whole table
            ids, table = torch.arange(ids.numel(), device=ids.device), decode_rows(table.index_select(0, ids), lookup.dim, dtype)
        mode = _MEAN if mean else _SUM
        return torch.embedding_bag(table, ids, offsets, False, mode, False, weights, True)[0]

    def _each(self, ids: Tensor, lookup: LookupSpec) -> Tensor:
        """The row of each id, float32 [N, dim]."""
        table, ids = rows_needed(self._tables[lookup.table], ids)
        found, dtype = table.index_select(0, ids), self._types.get(lookup.table, "fp32")
        return found if dtype == "fp32" else decode_rows(found, lookup.dim, dtype)


def normalize_weights(weights: Tensor, offsets: Tensor) -> Tensor:
    """Each weight over the sum of its bag's, so that a weighted sum becomes a weighted mean; 0 where that sum is 0.

    The sum is taken in float64, as in training: weights that cancel in float32 but not in exact arithmetic must not differ between the two.

    Args:
        weights: float32 [N].
        offsets: int64 [B + 1] from 0.
    """
    bags = torch.repeat_interleave(offsets.diff(), output_size=weights.numel())
    sums = torch.zeros(offsets.numel() - 1, dtype=torch.float64, device=weights.device).index_add_(0, bags, weights.double())
    factors = torch.where(sums == 0, torch.zeros_like(sums), 1 / sums)
    return (weights.double() * factors[bags]).float()
