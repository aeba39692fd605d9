"""What a run tells: a progress bar or plain lines, `metrics.jsonl`, and TensorBoard."""

import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from tqdm import tqdm

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class ProgressBar:
    """A bar that moves where the stream is a terminal, else a line each time that there is news.

    Args:
        label: what is counted, at the beginning of the line.
        total: steps in all, or None.
        start: steps that are done already.
        stream: where to write; standard error where not given.
        quiet: write nothing: another rank does.
        unit: what is counted, in one word.
    """

    def __init__(
        self, label: str, total: int | None, start: int = 0, stream: TextIO | None = None, *, quiet: bool = False, unit: str = "step"
    ) -> None:
        self._label, self._total, self._step = label, total, start
        self._stream = stream or sys.stderr
        self._quiet = quiet
        self._bar: tqdm[Any] | None = None
        if self._stream.isatty() and not quiet:
            self._bar = tqdm(total=total, initial=start, desc=label, unit=unit, file=self._stream, dynamic_ncols=True, mininterval=0.2)

    def advance(self, count: int = 1) -> None:
        """So many more."""
        self._step += count
        if self._bar is not None:
            self._bar.update(count)

    def tell(self, **news: object) -> None:
        """Show some numbers beside the count."""
        text = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in news.items())
        if self._bar is not None:
            self._bar.set_postfix_str(text)
        else:
            of = f"/{self._total}" if self._total is not None else ""
            self.note(f"{self._label} {self._step}{of}: {text}")

    def note(self, text: str) -> None:
        """A line that stays."""
        if self._bar is not None:
            self._bar.write(text, file=self._stream)
        elif not self._quiet:
            print(text, file=self._stream, flush=True)

    def close(self) -> None:
        """Leave the bar as it is."""
        if self._bar is not None:
            self._bar.close()


class Speed:
    """Rows a second since the last question."""

    def __init__(self) -> None:
        self._rows, self._since = 0, time.perf_counter()

    def add(self, rows: int) -> None:
        """Rows that were done."""
        self._rows += rows

    def take(self) -> float:
        """The speed since the last call; the count begins anew."""
        now = time.perf_counter()
        speed = self._rows / max(now - self._since, 1e-9)
        self._rows, self._since = 0, now
        return speed


class MetricsLog:
    """Numbers of a run over its steps, in `metrics.jsonl` and as TensorBoard scalars; both begin with the first number.

    Args:
        path: the file of lines; None: nothing is written, as another rank does.
        tensorboard: folder of events, or None for none.
        step: steps done already: later lines, of a run that was killed, are forgotten.
    """

    def __init__(self, path: Path | None, tensorboard: Path | None, step: int = 0) -> None:
        self._path, self._tensorboard, self._step = path, tensorboard, step
        self._writer: SummaryWriter | None = None
        self._seen: set[tuple[str, int]] = set()
        if path is not None and path.exists():
            kept = [line for line in read_lines(path) if line["step"] <= step]
            self._seen = {(line["kind"], line["step"]) for line in kept}
            path.write_text("".join(f"{json.dumps(line)}\n" for line in kept), encoding="utf-8")

    def has(self, kind: str, step: int) -> bool:
        """Whether there is such a line already."""
        return (kind, step) in self._seen

    def write(self, kind: str, step: int, numbers: Mapping[str, float], hidden: Sequence[str] = ()) -> None:
        """One line of `kind` (`train` or `eval`), and one scalar `kind/name` for each number.

        Args:
            kind: what the numbers are of.
            step: batches trained.
            numbers: by name.
            hidden: names, or what names begin with before a `/`, that TensorBoard does not get.
        """
        self._seen.add((kind, step))
        if self._path is None:
            return
        with self._path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps({"kind": kind, "step": step, **finite(numbers)}) + "\n")
        if self._tensorboard is None:
            return
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(self._tensorboard), purge_step=self._step + 1 if self._step else None)
        for name, number in numbers.items():
            if name.split("/")[0] not in hidden:
                self._writer.add_scalar(f"{kind}/{name}", number, step)

    def close(self) -> None:
        """Write out what TensorBoard still holds."""
        if self._writer is not None:
            self._writer.close()


def finite(numbers: Mapping[str, float]) -> dict[str, float | None]:
    """The numbers as JSON can hold them: None for NaN and infinities."""
    return {name: number if math.isfinite(number) else None for name, number in numbers.items()}


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a run's log, but for one that a kill has cut off.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no text.
    """
    return [line for line in map(_parsed, path.read_text(encoding="utf-8").splitlines()) if line]


def _parsed(line: str) -> dict[str, Any]:
    """A line's content; empty for a line that was cut off by a kill."""
    try:
        content = json.loads(line)
    except ValueError:
        return {}
    return content if isinstance(content, dict) and isinstance(content.get("step"), int) and "kind" in content else {}
