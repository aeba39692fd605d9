"""The command `forget`: what it prints, and what it refuses."""

from pathlib import Path

import pytest

from emberline.cli import main
from emberline.serving import Engine
from tests.export.forget.test_killed import GONE, left, write_models

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_models(tmp_path_factory.mktemp("models"))


def test_several_ids_from_a_file_with_a_key_kept_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, ids, key = write_models(tmp_path / "models"), tmp_path / "ids.txt", tmp_path / "keys" / "forget.key"
    ids.write_text(f"{GONE}\n\n100\n{GONE}\n")
    assert main(["forget", str(model), "user", "--id-file", str(ids), "--key-file", str(key)]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "version 1, table user_emb: 2 ids in the version, delta 1"
    assert out[-1] == f"forgotten; 2 tags are in the list of {model}"
    assert "version 1 was changed, with its deltas 1" in out
    assert left(model) == 0
    assert (len(key.read_bytes()), (model / ".forgotten.key").exists()) == (32, False)
    assert Engine.open(model / "2").artifact.ids["user_emb"].raw_ids.tolist() == [200, 2**62]
    assert main(["forget", str(model), "--list"]) == 0
    head, line = capsys.readouterr().out.splitlines()
    assert head.split() == ["time", "by", "feature", "ids", "tables", "versions", "and", "deltas", "changed", "done"]
    assert line.split()[2:] == ["user", "2", "user_emb", "1", "(1),", "2", "yes"]
    assert "@" in line.split()[1]


def test_a_dry_run_says_so(untouched: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["forget", str(untouched), "user", str(GONE), "--dry-run"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "nothing was changed: this was a dry run"
    assert left(untouched) == 3
    assert main(["forget", str(untouched), "--list"]) == 0
    assert capsys.readouterr().out == f"{untouched}: nothing was forgotten\n"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["s3://bucket/m", "user", "1"], "forgetting is for folders on this machine"),
        (["MODEL"], "FEATURE and ID are needed"),
        (["MODEL", "user"], "give either an ID or --id-file"),
        (["MODEL", "user", "1", "--id-file", "x"], "give either an ID or --id-file"),
        (["MODEL", "user", "--list"], "leave out FEATURE"),
        (["/nonexistent/m", "--list"], "/nonexistent/m: there is no such folder"),
        (["MODEL", "user", "--id-file", "/nonexistent/ids"], "/nonexistent/ids cannot be read"),
        (["MODEL", "user", "--id-file", "/dev/null"], "has no ids"),
        (["MODEL", "item", "3"], "--shared-rows zero makes the row zeros"),
    ],
)
def test_what_it_refuses(untouched: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], text: str) -> None:
    assert main(["forget", *(str(untouched) if one == "MODEL" else one for one in arguments)]) in (1, 2)
    assert text in capsys.readouterr().err
    assert left(untouched) == 3
