"""A child process that never outlives its parent."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from emberline.serving.triton.process import GroupProcess


def is_running(pid: int) -> bool:
    """A zombie counts as ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until_gone(pid: int) -> bool:
    end = time.monotonic() + 120
    while is_running(pid) and time.monotonic() < end:
        time.sleep(0.02)
    return not is_running(pid)


def wait_for_text(path: Path) -> str:
    end = time.monotonic() + 120
    while time.monotonic() < end:
        if path.is_file() and (text := path.read_text()).endswith("\n"):
            return text
        time.sleep(0.02)
    raise AssertionError(f"nothing in {path}")


def test_output_goes_to_the_log(tmp_path: Path) -> None:
    process = GroupProcess(["/bin/sh", "-c", "echo out $NAME; echo err >&2; exit 3"], {"NAME": "value"}, tmp_path / "log")
    while process.poll() is None:
        time.sleep(0.01)
    assert process.poll() == 3
    assert process.stop(1) == 3
    assert sorted((tmp_path / "log").read_text().split("\n")) == ["", "err", "out value"]


def test_stop_ends_the_whole_group_even_where_it_ignores_sigterm(tmp_path: Path) -> None:
    script = "trap '' TERM; sleep 60 & echo $! > pids; echo $$ >> pids; echo end >> pids; wait"
    process = GroupProcess(["/bin/sh", "-c", f"cd {tmp_path}; {script}"], dict(os.environ), None)
    end = time.monotonic() + 120
    while not (tmp_path / "pids").is_file() or "end" not in (tmp_path / "pids").read_text():
        assert time.monotonic() < end
        time.sleep(0.02)
    child, shell = (int(line) for line in (tmp_path / "pids").read_text().split()[:2])
    assert is_running(child)
    assert process.stop(0.2) == -signal.SIGKILL
    assert wait_until_gone(child)
    assert wait_until_gone(shell)


def test_a_program_that_is_not_there_ends_with_an_error(tmp_path: Path) -> None:
    process = GroupProcess([str(tmp_path / "none")], {}, tmp_path / "log")
    end = time.monotonic() + 120
    while process.poll() is None:
        assert time.monotonic() < end
        time.sleep(0.02)
    assert process.poll() == 1
    assert "FileNotFoundError" in (tmp_path / "log").read_text()


PARENT = """
import os, sys, threading, time
from pathlib import Path
from emberline.serving.triton.process import GroupProcess
started = []
thread = threading.Thread(target=lambda: started.append(GroupProcess(["/bin/sleep", "60"], {{}}, None)))
thread.start()
thread.join()
time.sleep(0.3)
assert started[0].poll() is None, "the child ended with the thread that asked for it"
Path({path!r}).write_text(f"{{started[0]._process.pid}}\\n")
time.sleep(60)
"""


def test_the_child_ends_with_its_parent(tmp_path: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT.format(path=str(tmp_path / "pid"))])
    try:
        child = int(wait_for_text(tmp_path / "pid"))
        assert is_running(child)
        parent.kill()
        assert parent.wait(20) == -signal.SIGKILL
        assert wait_until_gone(child)
    finally:
        parent.kill()
        parent.wait()
