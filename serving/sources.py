"""Where requests are looked up: all features of a model at once, or those of each side by itself."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from emberline.schema import ModelSchema
from emberline.serving.lookup import LookupBackend, RowFinder, choose_finder
from emberline.serving.remap import RemapIndex


@dataclass(frozen=True, eq=False)
class Source:
    """Finds the rows of ids, and what lies there."""

    find_rows: RowFinder
    lookup: LookupBackend

    @classmethod
    def of(cls, schema: ModelSchema, remaps: Mapping[str, RemapIndex], lookup: LookupBackend) -> Self:
        """That of a model, or of a part of one; see `Sources.of`."""
        return cls(choose_finder(schema, remaps, lookup), lookup)


@dataclass(frozen=True, eq=False)
class Sources:
    """The sources of a model; all of them share its tables and maps.

    Args:
        whole: of all features.
        user: of those of the user's side.
        item: of all others.
    """

    whole: Source
    user: Source
    item: Source

    @classmethod
    def of(cls, schema: ModelSchema, remaps: Mapping[str, RemapIndex], lookup: LookupBackend) -> Self:
        """Those of a model.

        Args:
            schema: its description.
            remaps: raw id -> row, for each ZCH or dynamic table.
            lookup: has its tables.
        """
        user, item = (schema.part(per_user=per_user) for per_user in (True, False))
        sides = (Source.of(part, remaps, lookup.part(part)) for part in (user, item))
        return cls(Source.of(schema, remaps, lookup), next(sides), next(sides))
