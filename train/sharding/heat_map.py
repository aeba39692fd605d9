"""A plan as a picture: tables down, ranks across, each cell as dark as the table's part on that rank is large."""

from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from emberline.train.sharding.report import PlanReport
from emberline.train.sharding.sizes import size_text

_CELL_HEIGHT, _MARGIN, _TEXT = 18, 12, 12
_WIDEST, _NARROWEST, _MAP_WIDTH = 48, 6, 1200
_LIGHT, _DARK, _EMPTY, _INK, _FULL = (255, 236, 214), (150, 25, 15), (245, 245, 245), (40, 40, 40), (200, 30, 30)
_MOST_TABLES = 200


def write_heat_map(report: PlanReport, path: Path) -> None:
    """Draw a report as PNG. Of more than 200 tables, the largest are drawn, and the rest is one row.

    The last row has all memory of each rank against what it has: red where nothing is left.
    """
    rows = _rows(report)
    font = ImageFont.load_default(size=_TEXT)
    count, room = report.hardware.world_size, report.hardware.table_memory
    largest = max((value for _, values in rows[:-1] for value in values), default=0)
    title = f"{'hbm' if report.on_gpu else 'ddr'} of each table on each of {count} ranks; darkest: {size_text(largest)}"
    foot = f"each rank has {size_text(room)}, of which {size_text(report.reserved.total)} are kept free"
    cell = max(_NARROWEST, min(_WIDEST, _MAP_WIDTH // count))
    left = _MARGIN + max(int(font.getlength(name)) for name, _ in rows) + 8
    top = _MARGIN + 2 * _CELL_HEIGHT
    width = max(left + cell * count, *(_MARGIN + int(font.getlength(text)) for text in (title, foot))) + _MARGIN
    image = Image.new("RGB", (width, top + _CELL_HEIGHT * (len(rows) + 4)), "white")
    draw = ImageDraw.Draw(image)
    draw.text((_MARGIN, _MARGIN), title, fill=_INK, font=font)
    for place, (name, values) in enumerate(rows):
        is_total = place == len(rows) - 1
        y = top + _CELL_HEIGHT * (place + is_total)
        draw.text((_MARGIN, y + 2), name, fill=_INK, font=font)
        for rank, value in enumerate(values):
            x = left + cell * rank
            colour = _total_colour(value, room) if is_total else _colour(value, largest)
            draw.rectangle((x, y, x + cell - 1, y + _CELL_HEIGHT - 2), fill=colour)
    step = max(1, -(-32 // cell))
    for rank in range(0, count, step):
        draw.text((left + cell * rank + 1, top + _CELL_HEIGHT * (len(rows) + 1)), str(rank), fill=_INK, font=font)
    draw.text((_MARGIN, top + _CELL_HEIGHT * (len(rows) + 2)), foot, fill=_INK, font=font)
    image.save(path, format="PNG")


def _rows(report: PlanReport) -> list[tuple[str, list[int]]]:
    """Bytes on each rank: of each table, then of all."""
    found = []
    for table in report.tables:
        values = [0] * report.hardware.world_size
        for rank, size in zip(table.ranks, table.hbm if report.on_gpu else table.ddr, strict=True):
            values[rank] += size
        kind = table.sharding_type if table.growth is None else f"{table.sharding_type} {table.growth.name}"
        found.append((f"{table.table}  {kind}", values))
    if len(found) > _MOST_TABLES:
        found.sort(key=lambda row: -sum(row[1]))
        rest = found[_MOST_TABLES:]
        found[_MOST_TABLES:] = [(f"{len(rest)} smaller tables", [sum(ranks) for ranks in zip(*(values for _, values in rest), strict=True)])]
    return [*found, ("all", [report.used(rank) for rank in report.ranks])]


def _colour(value: int, largest: int) -> tuple[int, ...]:
    if value == 0:
        return _EMPTY
    share = value / largest
    return tuple(round(light + (dark - light) * share) for light, dark in zip(_LIGHT, _DARK, strict=True))


def _total_colour(value: int, room: int) -> tuple[int, ...]:
    return _FULL if value > room else _colour(value, room)
