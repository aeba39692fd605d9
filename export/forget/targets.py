"""What a command asks for: the ids of a feature's values, as each version of a model knows them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from emberline.encoding import columns_from_rows, encode
from emberline.errors import ExportError, RequestError
from emberline.export.forget.ledger import space_of
from emberline.schema import FeatureKind, FeatureSpec, ModelSchema, TableKind, TableSpec, VocabEncoder
from emberline.train.features.sentences import unknown_name


@dataclass(frozen=True, eq=False)
class Targets:
    """Ids that are to go.

    Args:
        tables: that the feature reads.
        ids: int64, by space of ids.
    """

    tables: tuple[str, ...]
    ids: Mapping[str, npt.NDArray[np.int64]]

    @classmethod
    def of(cls, schema: ModelSchema, feature: str, values: Sequence[str], *, zero_shared: bool) -> "Targets | None":
        """What the values are in a version.

        Args:
            schema: of the version.
            feature: whose values.
            values: as a row has them; of a feature of several columns a JSON object of column and value.
            zero_shared: of a static table, whose rows have no owners, let the values' rows become zeros for all who read them.

        Returns:
            None where the version has no such feature.

        Raises:
            RequestError: the feature has no ids, or refuses a value.
            ExportError: a table that it reads is static, and `zero_shared` is not set.
        """
        spec = next((spec for spec in schema.features if spec.name == feature), None)
        if spec is None:
            return None
        if spec.kind is FeatureKind.DENSE:
            raise RequestError("it has numbers, not ids", feature=feature)
        names = list(dict.fromkeys(read.table for read in schema.reads if read.feature == feature))
        tables = [table for table in schema.tables if table.name in names]
        if not tables:
            raise RequestError("no group reads its ids, so there is no table that has them", feature=feature)
        ids = _encoded(spec, values)
        for table in tables:
            if table.kind is TableKind.STATIC:
                _require_may_be_zero(spec, table, values, ids, zero_shared=zero_shared)
        return cls(tuple(names), {space_of(table): np.unique(ids) for table in tables})


def all_targets(schemas: Mapping[int, ModelSchema], feature: str, values: Sequence[str], *, zero_shared: bool) -> Targets:
    """The same of all versions together.

    Args:
        schemas: of each version.
        feature: as for `Targets.of`, and so are `values` and `zero_shared`.

    Raises:
        RequestError: no version has such a feature, or as `Targets.of`.
        ExportError: as there.
    """
    found = [one for schema in schemas.values() if (one := Targets.of(schema, feature, values, zero_shared=zero_shared)) is not None]
    if not found:
        newest = schemas[max(schemas)]
        raise RequestError(unknown_name("feature", feature, [spec.name for spec in newest.sparse_features]))
    spaces = list(dict.fromkeys(space for one in found for space in one.ids))
    ids = {space: np.unique(np.concatenate([one.ids[space] for one in found if space in one.ids])) for space in spaces}
    return Targets(tuple(dict.fromkeys(table for one in found for table in one.tables)), ids)


def _encoded(spec: FeatureSpec, values: Sequence[str]) -> npt.NDArray[np.int64]:
    """The id of each value: int64 [V]."""
    encoded = encode((spec,), *columns_from_rows((spec,), [_row(spec, value) for value in values]))
    bags = encoded.sparse_sequences[spec.name].bags() if spec.sequence else encoded.sparse[spec.name]
    other = np.flatnonzero(bags.lengths != 1)
    if other.size:
        raise RequestError(f"{values[int(other[0])]!r} is {int(bags.lengths[other[0]])} ids, not one: give one at a time", feature=spec.name)
    ids: npt.NDArray[np.int64] = bags.values
    return ids


def _row(spec: FeatureSpec, value: str) -> dict[str, object]:
    if len(spec.columns) == 1:
        return {spec.columns[0]: value}
    try:
        row = json.loads(value)
    except json.JSONDecodeError:
        row = None
    if not isinstance(row, dict):
        raise RequestError(f"it is computed from {', '.join(spec.columns)}: give a JSON object of them, not {value!r}", feature=spec.name)
    return row


def _require_may_be_zero(spec: FeatureSpec, table: TableSpec, values: Sequence[str], ids: npt.NDArray[np.int64], *, zero_shared: bool) -> None:
    """Refuse what would harm others than those who asked for it."""
    oov = getattr(spec.encoder, "oov_row", None)
    if oov is not None and (at := np.flatnonzero(ids == oov)).size:
        raise ExportError(f"feature {spec.name!r}: {values[int(at[0])]!r} is unknown to table {table.name!r} already: it has no row of its own")
    if zero_shared:
        return
    if isinstance(spec.encoder, VocabEncoder):
        shared = "and the word would stay in the vocabulary"
    else:
        shared = f"which every value of {spec.name!r} with that row reads: all of them would lose what they have learnt"
    where = f"{values[0]!r} reads row {int(ids[0])} of table {table.name!r}, {shared}"
    raise ExportError(
        f"feature {spec.name!r}: ids of a {spec.encoder.type} table of {table.rows} rows own no rows, and none can become unknown: {where}. "
        "--shared-rows zero makes the row zeros for all who read it"
    )
