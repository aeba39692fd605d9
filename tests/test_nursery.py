"""The nursery: scripts that it forks run as Python would run them, and leave nothing behind."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.nursery import Script, start_script

FORKED = """
import os, sys, time
if os.fork() == 0:
    time.sleep(600)
print("here", flush=True)
open(sys.argv[1], "w").close()
"""


def start(folder: Path, text: str, *arguments: str) -> Script:
    (folder / "script.py").write_text(text)
    return start_script([str(folder / "script.py"), *arguments])


@pytest.mark.parametrize(
    ("end", "status", "told"),
    [
        ("", 0, ""),
        ("sys.exit(3)", 3, ""),
        ("sys.exit('no')", 1, "no"),
        ("raise ValueError('odd')", 1, "ValueError: odd"),
        ("os.kill(os.getpid(), 9)", -9, ""),
    ],
)
def test_status_and_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str, status: int, told: str) -> None:
    monkeypatch.chdir(tmp_path)
    script = start(tmp_path, f"import os, sys\nprint(os.getcwd(), sys.argv[1:], __name__, flush=True)\n{end}\n", "one", "two words")
    found, written = script.finish(60)
    assert (found, written.splitlines()[0]) == (status, f"{tmp_path} ['one', 'two words'] __main__")
    assert written.splitlines()[-1].endswith(told)


@pytest.mark.parametrize(("goes_on", "told"), [("time.sleep(600)", "here\n$"), ("while True: print('x' * 60, flush=True)", "[x\n]+$")])
def test_what_does_not_end_is_ended_with_its_children(tmp_path: Path, goes_on: str, told: str) -> None:
    script, processes = start_two(tmp_path, goes_on)
    assert script.runs
    with pytest.raises(TimeoutError, match=f"no end in 1 s: {told}"):
        script.finish(1)
    assert is_gone(processes[0])
    wait_for(lambda: all(map(is_gone, processes)))


def test_what_nobody_waits_for_is_ended_with_its_children(tmp_path: Path) -> None:
    """As when the tests are killed."""
    script, processes = start_two(tmp_path, "time.sleep(600)")
    os.close(script.status)
    os.close(script.output)
    wait_for(lambda: all(map(is_gone, processes)))


def start_two(folder: Path, goes_on: str) -> tuple[Script, list[int]]:
    """A script that has written and forked, and both process ids."""
    script = start(folder, f"{FORKED}{goes_on}\n", str(folder / "wrote"))
    wait_for((folder / "wrote").exists)
    processes = [script.process, *script.children()]
    assert len(processes) == 2
    return script, processes


def wait_for(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_gone(process: int) -> bool:
    """Whether it has ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True
