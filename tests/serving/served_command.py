"""`emberline serve` as a user starts it."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_START = "import sys; from emberline.cli import main; sys.exit(main())"


@contextmanager
def served(models: Path, *options: str) -> Iterator[tuple["subprocess.Popen[str]", list[str]]]:
    """A process that serves, on free ports, and the lines that it wrote until it was ready; it is gone afterwards."""
    command = [sys.executable, "-c", _START, "serve", str(models), "--http-port=0", "--grpc-port=0", "--threads=1", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            lines: list[str] = []
            while not lines or "Stop it" not in lines[-1]:
                lines.append(process.stdout.readline())
                assert lines[-1], process.communicate()[1]
            yield process, lines
        finally:
            process.kill()
