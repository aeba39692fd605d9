"""A load test as a picture: latencies over time, and how often each came."""

import math
from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from emberline.serving.loadtest.report import SHARES, too_slow
from emberline.serving.loadtest.tally import Tally

WIDTH, HEIGHT, LEFT, TOP = 900, 260, 84, 46
"""Of each of the two fields, and where the first one begins, in pixels."""
_GAP, _BOTTOM, _TEXT = 78, 60, 12
_INK, _GRID, _BAD = (40, 40, 40), (225, 225, 225), (200, 30, 30)
COLOURS = {"p50": (20, 80, 160), "p99": (200, 120, 0)}
BARS = ((20, 80, 160), (200, 120, 0), (30, 130, 60), (120, 60, 150), (0, 140, 150), (110, 90, 60))
Range = tuple[float, float]
Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


def write_chart(steps: Sequence[Tally], title: str, path: Path) -> None:
    """Draw it as PNG.

    Above, for each second, the latencies that 50 and 99 of 100 answers kept, with a red mark where requests failed; below, how many answers took how
    long, a colour for each step. Times grow by tens.
    """
    image = Image.new("RGB", (LEFT + WIDTH + 44, TOP + 2 * HEIGHT + _GAP + _BOTTOM + 18 * len(steps)), "white")
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(size=_TEXT)
    draw.text((LEFT, 10), title, fill=_INK, font=font)
    known = [step for step in steps if not too_slow(step) and step.latencies.count]
    span = _span(known)
    for place, (name, colour) in enumerate(COLOURS.items()):
        draw.text((LEFT + 120 * place, 27), f"{name} of each second", fill=colour, font=font)
    if len(known) < len(steps):
        draw.text((LEFT + 260, 27), "latencies of some steps are not known", fill=_BAD, font=font)
    _over_time(draw, font, steps, span)
    _histogram(draw, font, steps, span)
    image.save(path, format="PNG")


def _span(steps: Sequence[Tally]) -> Range:
    """Powers of ten that hold every latency, as logarithms of milliseconds."""
    bounds = [bucket for step in steps for bucket in step.latencies.buckets()]
    low = math.floor(math.log10(min((low_s for low_s, _, _ in bounds), default=1e-3) * 1e3))
    high = math.ceil(math.log10(max((high_s for _, high_s, _ in bounds), default=1e-2) * 1e3))
    return float(low), float(max(high, low + 1))


def share_of(time_s: float, span: Range) -> float:
    """Where a time lies, from 0 to 1."""
    return (math.log10(max(time_s, 1e-9) * 1e3) - span[0]) / (span[1] - span[0])


def _over_time(draw: ImageDraw.ImageDraw, font: Font, steps: Sequence[Tally], span: Range) -> None:
    for power in range(int(span[0]), int(span[1]) + 1):
        y = TOP + HEIGHT * (1 - (power - span[0]) / (span[1] - span[0]))
        draw.line((LEFT, y, LEFT + WIDTH, y), fill=_GRID)
        draw.text((8, y - 7), f"{10.0**power:g} ms", fill=_INK, font=font)
    total, start = max(sum(len(step.seconds) for step in steps), 1), 0
    for step in steps:
        x = LEFT + WIDTH * start / total
        draw.line((x, TOP, x, TOP + HEIGHT), fill=_GRID)
        draw.text((x + 2, TOP + HEIGHT + 4), "max" if step.rate is None else f"{step.rate:,g}/s", fill=_INK, font=font)
        for name, colour in COLOURS.items():
            points = [
                (LEFT + WIDTH * (start + number + 0.5) / total, TOP + HEIGHT * (1 - share_of(one.latencies.quantile(SHARES[name]), span)))
                for number, one in enumerate(step.seconds)
                if one.latencies.count and not too_slow(step)
            ]
            draw.line(points, fill=colour, width=2)
            for x, y in points:
                draw.ellipse((x - 2, y - 2, x + 2, y + 2), fill=colour)
        for number, one in enumerate(step.seconds):
            if one.errors:
                x = LEFT + WIDTH * (start + number + 0.5) / total
                draw.rectangle((x - 3, TOP + HEIGHT - 3, x + 3, TOP + HEIGHT + 3), fill=_BAD)
        start += len(step.seconds)
    draw.text((LEFT + WIDTH - 80, TOP + HEIGHT + 20), f"{total:,} seconds", fill=_INK, font=font)


def _histogram(draw: ImageDraw.ImageDraw, font: Font, steps: Sequence[Tally], span: Range) -> None:
    top = TOP + HEIGHT + _GAP
    for power in range(int(span[0]), int(span[1]) + 1):
        x = LEFT + WIDTH * (power - span[0]) / (span[1] - span[0])
        draw.line((x, top, x, top + HEIGHT), fill=_GRID)
        draw.text((x - 16, top + HEIGHT + 4), f"{10.0**power:g} ms", fill=_INK, font=font)
    known = [(place, step) for place, step in enumerate(steps) if not too_slow(step)]
    most = max((count for _, step in known for _, _, count in step.latencies.buckets()), default=1)
    draw.text((8, top - 7), f"{most:,}", fill=_INK, font=font)
    for place, step in known:
        for low_s, high_s, count in step.latencies.buckets():
            y = top + HEIGHT * (1 - count / most)
            box = (LEFT + WIDTH * share_of(low_s, span), y, LEFT + WIDTH * share_of(high_s, span), top + HEIGHT)
            if len(steps) == 1:
                draw.rectangle(box, fill=BARS[0])
            else:
                draw.line((box[0], y, box[2], y), fill=BARS[place % len(BARS)], width=2)
    for place, step in enumerate(steps):
        y = top + HEIGHT + 28 + 18 * place
        draw.rectangle((LEFT, y, LEFT + 12, y + 12), fill=BARS[place % len(BARS)])
        rate = "max" if step.rate is None else f"{step.rate:,g} a second"
        draw.text((LEFT + 20, y - 1), f"{rate}: {step.good:,} answers, {sum(step.errors.values()):,} errors", fill=_INK, font=font)
