"""Options that choose for all of a model's features or tables, and for single ones."""

from collections.abc import Sequence

import pytest

from emberline.errors import ExportError
from emberline.export.choices import read_choices


def read(*texts: str) -> tuple[str | None, dict[str, str]]:
    names: Sequence[str] = ("city", "uid", "a=b")
    return read_choices("--paint", texts, thing="wall", names=names, choice="colour", choices=("red", "blue"), refused={"door": "it is no wall"})


def test_what_is_said_of_all_and_of_single_ones() -> None:
    assert read() == (None, {})
    assert read("red") == ("red", {})
    assert read("uid=red") == (None, {"uid": "red"})
    assert read("uid=red", "blue", "a=b=blue") == ("blue", {"uid": "red", "a=b": "blue"})


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["green"], r"--paint green: unknown colour 'green'; known: red, blue; write COLOUR or WALL=COLOUR$"),
        (["uid=rde"], "--paint uid=rde: unknown colour 'rde'; did you mean 'red'"),
        (["uid="], "--paint uid=: unknown colour ''"),
        (["="], "unknown colour ''"),
        (["=red"], "--paint =red: unknown wall ''"),
        (["uidd=red"], "--paint uidd=red: unknown wall 'uidd'; did you mean 'uid'?"),
        (["door=red"], "--paint door=red: it is no wall"),
        (["red", "blue"], "--paint: red and blue are given for all walls: keep one, or name the walls"),
        (["red", "red"], "--paint: red and red are given for all walls"),
        (["uid=red", "uid=red"], "--paint uid=red: wall 'uid' has the colour red already"),
    ],
)
def test_what_makes_no_sense_is_refused(texts: list[str], message: str) -> None:
    with pytest.raises(ExportError, match=message):
        read(*texts)
