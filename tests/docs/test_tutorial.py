"""The tutorial's commands are run as they are written, by one shell, in an empty folder; what the page shows is compared with what they print."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL

import pytest

from emberline.errors import MissingDependencyError
from emberline.export.demo.movielens import find_files
from tests.train.jobs import free_port

PORTS = "HTTP=8000 GRPC=8001\n"
END = "-- the end of a block"
ERRORS = "errors.log"
NEAR = 0.02
_FENCE = re.compile(r'^```(\w+)(?: title="([\w.]+)")?\n(.*?)^```$', re.M | re.S)
_NUMBER = re.compile(r"(-?\d+(?:\.\d+)?(?:e-?\d+)?)")


@dataclass
class Block:
    """A fenced block: commands with what the page shows below them, or a file to write."""

    kind: str
    title: str
    text: str
    shown: str = ""


def blocks_of(page: str) -> list[Block]:
    """The page's blocks in order, each output with the commands above it."""
    found: list[Block] = []
    for kind, title, text in _FENCE.findall(page):
        if kind == "text":
            assert found[-1].kind == "bash", text
            found[-1].shown = text
        else:
            found.append(Block(kind, title, text))
    return found


def agrees(shown: str, printed: str) -> bool:
    """Whether a text was printed as it is shown: words alike, numbers with a fraction nearly; `...` is anything."""
    pattern, numbers = "", []
    for place, part in enumerate(_NUMBER.split(shown.strip())):
        if place % 2 and "." in part:
            numbers.append(float(part))
            pattern += r"(-?\d+(?:\.\d+)?(?:e-?\d+)?)"
        else:
            pattern += r"[\s\S]*?".join(map(re.escape, part.split("...")))
    found = re.fullmatch(pattern, printed.strip())
    return found is not None and all(abs(float(one) - other) <= NEAR for one, other in zip(found.groups(), numbers, strict=True))


@contextmanager
def shell_in(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A shell that ends where a command fails; whatever it started has ended afterwards. What goes to stderr is kept in a file.

    One thread each: the model is small, and threads that wait for each other make a busy machine many times slower.
    """
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    with (folder / ERRORS).open("w") as errors:
        shell = subprocess.Popen(
            ["bash", "-euo", "pipefail"],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
        try:
            yield shell
        finally:
            with suppress(ProcessLookupError):
                os.killpg(shell.pid, SIGKILL)
            with suppress(BrokenPipeError):
                shell.communicate()


def run_block(shell: subprocess.Popen[str], block: Block, folder: Path) -> str:
    """What a block's commands print."""
    assert shell.stdin is not None
    assert shell.stdout is not None
    shell.stdin.write(f"{block.text.rstrip()}\necho; echo {END}\n")
    shell.stdin.flush()
    lines: list[str] = []
    for line in shell.stdout:
        if line == f"{END}\n":
            return "".join(lines)
        lines.append(line)
    pytest.fail(f"this failed:\n{block.text}\n{''.join(lines)}\n{(folder / ERRORS).read_text()[-3000:]}")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_its_commands_run_as_they_are_written(repository: Path, tmp_path: Path, said: list[str]) -> None:
    try:
        find_files()
    except MissingDependencyError as error:
        pytest.skip(str(error))
    page = (repository / "docs" / "tutorial.md").read_text(encoding="utf-8")
    blocks = blocks_of(page)
    assert blocks[0].text == PORTS
    blocks[0].text = f"HTTP={free_port()} GRPC={free_port()}\n"
    wrong, compared = [], 0
    with shell_in(tmp_path) as shell:
        for block in blocks:
            if block.kind == "python":
                (tmp_path / block.title).write_text(block.text)
                continue
            printed = run_block(shell, block, tmp_path)
            if block.shown:
                compared += 1
                if not agrees(block.shown, printed):
                    wrong.append(f"{block.text}-- the page shows:\n{block.shown}-- it printed:\n{printed}")
    assert wrong == []
    commands = sum(line.startswith(("emberline ", "python ", "curl ")) for block in blocks for line in block.text.splitlines())
    said.append(f"docs/tutorial.md: {commands} commands run, {compared} outputs compared")
    assert (commands, compared) >= (12, 8)


@pytest.mark.parametrize(
    ("shown", "printed", "wanted"),
    [
        ("a 0.50\n", "a 0.51\n", True),
        ("a 0.50\n", "a 0.55\n", False),
        ("a 5\n", "a 6\n", False),
        ("a\n...\nd\n", "a\nb\nc\nd\n", True),
        ("a\n...\nd\n", "a\nb\nc\ne\n", False),
        ('{"x":[0.5,-1e-7],...}', '{"x":[0.5,-1e-7],"y":2}', True),
        ("", "a", False),
    ],
)
def test_outputs_are_compared_by_words_and_numbers(shown: str, printed: str, wanted: bool) -> None:
    assert agrees(shown, printed) is wanted
