"""What `--quantize` asks for: the number type that each table is stored in."""

from collections.abc import Sequence

from emberline.export.choices import read_choices
from emberline.schema import TableSpec
from emberline.serving.quantized import STORED_DTYPES

AS_TRAINED = "fp32"
"""The choice that leaves a table as it was trained, also where that is a half type."""
NUMBER_TYPES = tuple(STORED_DTYPES)
"""All choices."""


def read_number_types(tables: Sequence[TableSpec], texts: Sequence[str]) -> dict[str, str]:
    """The number type that each table is stored in.

    Args:
        tables: of the model.
        texts: `TYPE` for all tables, at most once, and `TABLE=TYPE` for single ones, which counts more. Where nothing is said, and for `fp32`, a
            table keeps the type that it was trained in.

    Raises:
        ExportError: there is no such type or table, or something is said twice.
    """
    names = [table.name for table in tables]
    for_all, single = read_choices("--quantize", texts, thing="table", names=names, choice="number type", choices=NUMBER_TYPES)
    chosen = {table.name: single.get(table.name, for_all or AS_TRAINED) for table in tables}
    return {table.name: table.dtype if chosen[table.name] == AS_TRAINED else chosen[table.name] for table in tables}
