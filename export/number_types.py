"""What `--quantize` asks for: the number type that each table is stored in."""

from collections.abc import Mapping, Sequence

from emberline.errors import ExportError
from emberline.export.choices import read_choices
from emberline.schema import TableSpec
from emberline.serving.quantized import STORED_DTYPES

AS_TRAINED = "fp32"
"""The choice that leaves a table as it was trained, also where that is a half type."""
NUMBER_TYPES = tuple(STORED_DTYPES)
"""All choices."""
AUTO = "auto"
"""Beside them, for all tables: what a budget or a limit asks for, table by table."""


def read_number_types(tables: Sequence[TableSpec], texts: Sequence[str]) -> dict[str, str]:
    """The number type that each table is stored in.

    Args:
        tables: of the model.
        texts: `TYPE` for all tables, at most once, and `TABLE=TYPE` for single ones, which counts more. Where nothing is said, and for `fp32`, a
            table keeps the type that it was trained in.

    Raises:
        ExportError: there is no such type or table, or something is said twice.
    """
    for_all, single = _read(tables, texts)
    return _resolved(tables, {table.name: single.get(table.name, for_all or AS_TRAINED) for table in tables})


def is_auto(texts: Sequence[str]) -> bool:
    """Whether number types are to be chosen."""
    return AUTO in texts


def read_fixed_types(tables: Sequence[TableSpec], texts: Sequence[str]) -> dict[str, str]:
    """As `read_number_types`, of the tables that are named, where the others' types are chosen.

    Raises:
        ExportError: as there, or a type is given for all tables.
    """
    for_all, single = _read(tables, [text for text in texts if text != AUTO])
    if for_all is not None:
        raise ExportError(
            f"--quantize {for_all} is for all tables, but their types are to be chosen: leave it out, or write TABLE={for_all} for some"
        )
    return _resolved(tables, single)


def _read(tables: Sequence[TableSpec], texts: Sequence[str]) -> tuple[str | None, dict[str, str]]:
    return read_choices("--quantize", texts, thing="table", names=[table.name for table in tables], choice="number type", choices=NUMBER_TYPES)


def _resolved(tables: Sequence[TableSpec], chosen: Mapping[str, str]) -> dict[str, str]:
    return {table.name: table.dtype if chosen[table.name] == AS_TRAINED else chosen[table.name] for table in tables if table.name in chosen}
