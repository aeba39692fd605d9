"""The nursery: scripts that it forks run as Python would run them, and leave nothing behind."""

from pathlib import Path

import pytest

from tests.nursery import Script, start_script


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


def test_what_does_not_end_is_ended(tmp_path: Path) -> None:
    script = start(tmp_path, "import os, time\nos.fork()\nprint('here', flush=True)\ntime.sleep(60)\n")
    assert script.runs
    with pytest.raises(TimeoutError, match="no end in 1 s: here"):
        script.finish(1)
    state = Path(f"/proc/{script.process}/stat")
    assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] in "ZX"
