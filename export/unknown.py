"""What an artifact answers for ids that own no row: a policy for each feature, and the rows that its tables get for it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from emberline.errors import ExportError
from emberline.export.choices import read_choices
from emberline.export.row_source import RowSource
from emberline.schema import ModelSchema, TableKind, UnknownIds
from emberline.serving.remap import RemapParts

_ROWS_AT_A_TIME = 1 << 12
_KINDS = "zero-collision or dynamic"


@dataclass(frozen=True, eq=False)
class UnknownPlan:
    """What unknown ids read.

    Args:
        policies: of each feature that reads a table with raw ids.
        known_ids: of the same features: int64, ascending, the ids that own a row in every such table that it reads.
        fallback_rows: of each table with raw ids: int64 [S], its trained fallback rows.
        vectors: by table and policy, the row [dim], of the table's own type, that the artifact has for it after the trained rows, in this order.
    """

    policies: Mapping[str, UnknownIds]
    known_ids: Mapping[str, npt.NDArray[np.int64]]
    fallback_rows: Mapping[str, Tensor]
    vectors: Mapping[str, Mapping[UnknownIds, Tensor]]

    def rows_of(self, table: str) -> list[Tensor]:
        """The rows [dim] to write after a table's trained ones."""
        return list(self.vectors.get(table, {}).values())

    def applied_to(self, schema: ModelSchema) -> ModelSchema:
        """The model's schema as the artifact's."""
        rows = {table.name: table.rows for table in schema.tables}

        def row_of(feature: str, table: str) -> int | None:
            policies = list(self.vectors.get(table, {}))
            policy = self.policies.get(feature)
            return rows[table] + policies.index(policy) if policy in policies else None

        return replace(
            schema,
            features=tuple(replace(one, unknown_ids=self.policies.get(one.name, UnknownIds.FALLBACK)) for one in schema.features),
            tables=tuple(replace(table, rows=table.rows + len(self.rows_of(table.name))) for table in schema.tables),
            lookups=tuple(replace(lookup, unknown_row=row_of(lookup.feature, lookup.table)) for lookup in schema.lookups),
            sequence_lookups=tuple(replace(lookup, unknown_row=row_of(lookup.feature, lookup.table)) for lookup in schema.sequence_lookups),
        )


def plan_unknown(schema: ModelSchema, rows: RowSource, remaps: Mapping[str, RemapParts], texts: Sequence[str]) -> UnknownPlan:
    """The plan of a model.

    Args:
        schema: the model's.
        rows: of its tables.
        remaps: the map of each table with raw ids.
        texts: as `read_policies` takes them.

    Raises:
        ExportError: as `read_policies`, or there is no mean, as no id owns a row.
    """
    policies = read_policies(schema, texts)
    reads = {name: list(dict.fromkeys(read.table for read in schema.reads if read.feature == name and read.table in remaps)) for name in policies}
    vectors: dict[str, dict[UnknownIds, Tensor]] = {}
    for table, parts in remaps.items():
        wanted = {policies[name] for name, tables in reads.items() if table in tables}
        if UnknownIds.ZEROS in wanted:
            vectors.setdefault(table, {})[UnknownIds.ZEROS] = torch.zeros(rows.dim(table), dtype=rows.dtype(table))
        if UnknownIds.MEAN in wanted:
            if not parts.rows.numel():
                raise ExportError(
                    f"table {table!r}: no id owns a row, so there is no mean of such rows for unknown ids; "
                    "export a whole version with --unknown zeros or fallback"
                )
            vectors.setdefault(table, {})[UnknownIds.MEAN] = mean_row(rows, table, parts.rows)
    return UnknownPlan(
        policies=policies,
        known_ids={name: _known_in_all([remaps[table].raw_ids for table in tables]) for name, tables in reads.items()},
        fallback_rows={table: parts.fallback_rows for table, parts in remaps.items()},
        vectors=vectors,
    )


def features_with_unknown_ids(schema: ModelSchema) -> list[str]:
    """The features that read a table with raw ids, in the order of lookups."""
    raw = {table.name for table in schema.tables if table.kind is not TableKind.STATIC}
    return list(dict.fromkeys(lookup.feature for lookup in schema.reads if lookup.table in raw))


def read_policies(schema: ModelSchema, texts: Sequence[str]) -> dict[str, UnknownIds]:
    """The policy of each feature that reads a table with raw ids; `fallback` where nothing is said.

    Args:
        schema: the model's.
        texts: `POLICY` for all such features, at most once, and `FEATURE=POLICY` for single ones, which counts more.

    Raises:
        ExportError: there is no such policy or feature, a feature has no unknown ids, or something is said twice.
    """
    features = features_with_unknown_ids(schema)
    having = f"features that have some: {', '.join(features)}" if features else "no feature of the model has some"
    for_all, single = read_choices(
        "--unknown",
        texts,
        thing="feature",
        names=features,
        choice="policy",
        choices=[policy.value for policy in UnknownIds],
        refused={one.name: f"feature {one.name!r} reads no {_KINDS} table, so it has no unknown ids; {having}" for one in schema.features},
    )
    if for_all and not features:
        raise ExportError(f"--unknown {for_all}: no feature of the model reads a {_KINDS} table, so there are no unknown ids")
    return {name: UnknownIds(single.get(name, for_all or UnknownIds.FALLBACK)) for name in features}


def mean_row(source: RowSource, table: str, rows: Tensor) -> Tensor:
    """The mean [dim] of some rows of a table, summed in float64 in the order of rows, in the table's type.

    Args:
        source: reads the table.
        table: its name.
        rows: int64 [K], K >= 1.

    Raises:
        ExportError: one is no row of the table.
    """
    num_rows = source.rows(table)
    if not 0 <= int(rows.min()) <= int(rows.max()) < num_rows:
        raise ExportError(f"table {table!r}: the id map in the checkpoint is damaged: rows points outside the table's {num_rows} rows")
    total = torch.zeros(source.dim(table), dtype=torch.float64)
    for part in torch.split(rows.sort().values, _ROWS_AT_A_TIME):
        total += source.take(table, part).double().sum(dim=0)
    return (total / rows.numel()).to(source.dtype(table))


def _known_in_all(ids: Sequence[Tensor]) -> npt.NDArray[np.int64]:
    known = ids[0].numpy()
    for others in ids[1:]:
        known = np.intersect1d(known, others.numpy(), assume_unique=True)
    return known
