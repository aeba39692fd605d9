"""How full a run's ZCH tables were over its steps, as a picture."""

from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from emberline.errors import CheckpointError
from emberline.train.job_folder import METRICS_NAME
from emberline.train.job_log import read_lines

_WIDTH, _HEIGHT, _MARGIN, _TEXT = 900, 400, 14, 12
_INK, _GRID = (40, 40, 40), (225, 225, 225)
_COLOURS = ((150, 25, 15), (20, 80, 160), (30, 130, 60), (200, 120, 0), (120, 60, 150), (0, 140, 150), (110, 90, 60), (200, 60, 120))
Series = dict[str, list[tuple[int, float]]]


def read_occupancy(run: Path) -> Series:
    """Step and occupancy, from 0 to 1, of each ZCH table, from the run's log.

    Raises:
        CheckpointError: there is no log, or it has no ZCH tables.
    """
    path = run / METRICS_NAME
    found: Series = {}
    try:
        lines = read_lines(path)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}; give a run's folder") from error
    for line in lines:
        for name, value in line.items():
            table = name.removeprefix("zch/").removesuffix("/occupancy")
            if name == f"zch/{table}/occupancy":
                found.setdefault(table, []).append((int(line["step"]), float(value)))
    if not found:
        raise CheckpointError(f"{path} has no occupancy of ZCH tables")
    return found


def write_occupancy_chart(run: Path, path: Path) -> None:
    """Draw the log of a run as PNG: steps to the right, occupancy up, a line for each table.

    Raises:
        CheckpointError: as `read_occupancy`.
    """
    series = read_occupancy(run)
    font = ImageFont.load_default(size=_TEXT)
    last = max(step for points in series.values() for step, _ in points)
    left, top = _MARGIN + 40, _MARGIN + 24
    height = top + _HEIGHT + 40 + 18 * len(series)
    image = Image.new("RGB", (left + _WIDTH + 2 * _MARGIN, height), "white")
    draw = ImageDraw.Draw(image)
    draw.text((_MARGIN, _MARGIN), f"share of rows that have an owner, over {last:,} steps", fill=_INK, font=font)
    for tenth in range(0, 11, 2):
        y = top + _HEIGHT * (10 - tenth) / 10
        draw.line((left, y, left + _WIDTH, y), fill=_GRID)
        draw.text((_MARGIN, y - 7), f"{tenth * 10} %", fill=_INK, font=font)
    for place, (table, points) in enumerate(series.items()):
        colour = _COLOURS[place % len(_COLOURS)]
        line = [(left + _WIDTH * step / max(last, 1), top + _HEIGHT * (1.0 - share)) for step, share in points]
        draw.line(line, fill=colour, width=2)
        for x, y in line if len(line) == 1 else ():
            draw.ellipse((x - 2, y - 2, x + 2, y + 2), fill=colour)
        y = top + _HEIGHT + 30 + 18 * place
        draw.rectangle((left, y, left + 12, y + 12), fill=colour)
        draw.text((left + 20, y - 1), f"{table}: {points[-1][1]:.1%}", fill=_INK, font=font)
    draw.text((left, top + _HEIGHT + 8), "0", fill=_INK, font=font)
    draw.text((left + _WIDTH - font.getlength(f"{last:,}"), top + _HEIGHT + 8), f"{last:,}", fill=_INK, font=font)
    image.save(path, format="PNG")
