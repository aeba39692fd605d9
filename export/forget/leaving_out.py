"""Exports after ids were forgotten: a checkpoint that still has them gives an artifact, or a delta, as if it had never had them."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from emberline.export.forget.ledger import Ledger
from emberline.export.left_out import LeftOut
from emberline.export.remap import split_remaps
from emberline.export.row_source import RowSource
from emberline.schema import TableKind, TableSpec
from emberline.serving.remap import FallbackRows, RemapParts
from emberline.train.models import RecModel

Tell = Callable[[str], None]


def leave_out(ledger: Ledger | None, model: RecModel, rows: RowSource, tell: Tell) -> dict[str, RemapParts]:
    """Leave forgotten ids out of a checkpoint's tables: they read what ids without a row read, and the rows that they own become zeros.

    Args:
        ledger: who was forgotten; None for nobody.
        model: says what its tables are.
        rows: of the tables; asked for nothing before.
        tell: takes a line for each table that loses ids: of tables that grow once they are opened.

    Returns:
        The map of each zero-collision table, without these ids.
    """
    maps = split_remaps(model)
    if ledger is None or not ledger.entries:
        return maps
    schema = model.schema()
    tables = {table.name: table for table in schema.tables}

    def find_gone(table: str, ids: Tensor) -> Tensor:
        gone = ledger.find_gone(schema, tables[table], ids)
        if count := int(gone.sum()):
            tell(f"table {table}: {count} id{'s' if count > 1 else ''} left out, as forgotten")
        return gone

    blank, instead = dict[str, Tensor](), dict[str, Tensor]()
    for table, parts in maps.items():
        if bool((gone := find_gone(table, parts.raw_ids)).any()):
            order = torch.argsort(parts.rows[gone])
            fallback = FallbackRows(parts.fallback_starts, parts.fallback_rows, routing=parts.routing)
            blank[table], instead[table] = parts.rows[gone][order], fallback(parts.raw_ids[gone])[order]
            maps[table] = replace(parts, raw_ids=parts.raw_ids[~gone], rows=parts.rows[~gone], lines=None)
    blank |= _static_rows(ledger, model, tell)
    rows.leave_out(LeftOut(find_gone, blank, instead))
    return maps


def _static_rows(ledger: Ledger, model: RecModel, tell: Tell) -> dict[str, Tensor]:
    """The rows of static tables that are zeros from now on."""
    schema, found = model.schema(), dict[str, Tensor]()
    for table in schema.tables:
        if table.kind is TableKind.STATIC and ledger.may_concern(schema, table):
            rows = _zero_rows(ledger, model, table)
            if rows.numel():
                found[table.name] = rows
                tell(f"table {table.name}: {rows.numel()} row{'s' if rows.numel() > 1 else ''} made zeros, as forgotten")
    return found


def _zero_rows(ledger: Ledger, model: RecModel, table: TableSpec) -> Tensor:
    every = torch.arange(table.rows)
    return every[ledger.find_gone(model.schema(), table, every)]
