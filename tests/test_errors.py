"""One line of an error's text."""

import pytest

from emberline.errors import ArtifactError, first_line


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ArtifactError("x is damaged"), "x is damaged"),
        (RuntimeError("\n cause\ntrace\n"), "cause"),
        (AssertionError(), "AssertionError"),
        (ValueError(" \n "), "ValueError"),
        (KeyError("name"), "'name'"),
    ],
)
def test_an_error_in_one_line(error: BaseException, line: str) -> None:
    assert first_line(error) == line
