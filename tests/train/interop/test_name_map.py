from pathlib import Path

import pytest

from emberline.errors import ConfigError
from emberline.train.interop.name_map import NameMap, read_name_map


def read(tmp_path: Path, text: str) -> NameMap:
    path = tmp_path / "m.map"
    path.write_text(text)
    return read_name_map(path)


def test_lines_wildcards_and_comments(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        "\n# all of it\n  head.out.bias\tx.last.bias   # no star\nhead.*.mlp.*  model.*_tower.net.*\nhead.* other.*\na+b c.d#e\n",
    )
    parts = ["head.out.bias", "head.user.mlp.0.weight", "head.out.weight", "aab", "a+b", "tables.x"]
    assert found.names(parts) == {
        "head.out.bias": "x.last.bias",
        "head.user.mlp.0.weight": "model.user_tower.net.0.weight",
        "head.out.weight": "other.out.weight",
        "a+b": "c.d#e",
    }


def test_an_empty_file_says_nothing(tmp_path: Path) -> None:
    assert read(tmp_path, "# nothing\n\n").names(["head.x"]) == {}


def test_all_wrong_lines_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, "head.a\nhead.b x y\nhead.* x\nhead.c x\n")
    assert caught.value.problems == (
        "line 1: must be our name and theirs with a space between them, found 1 names",
        "line 2: must be our name and theirs with a space between them, found 3 names",
        "line 3: both names must have as many *, found 1 and 0",
    )
    assert caught.value.source == str(tmp_path / "m.map")


def test_lines_about_nothing_and_unknown_names_are_told(tmp_path: Path) -> None:
    found = read(tmp_path, "head.a x\nhead.z y\n")
    assert found.problems(["head.a"], found.names(["head.a"]), ["y"]) == [
        f"{tmp_path / 'm.map'} line 2: the model has no part of that name",
        f"x: the checkpoint has no tensor of that name; {tmp_path / 'm.map'} gives it to head.a",
    ]


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00"])
def test_a_file_that_cannot_be_read(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "m.map"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match="the name map cannot be read"):
        read_name_map(path)
