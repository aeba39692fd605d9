"""Tokens of a file: who gets in, what a file may hold, and that it is read again."""

import logging
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emberline.errors import ConfigError, UnauthenticatedError
from emberline.serving.security import changes
from emberline.serving.security.tokens import Tokens, bearer, read_token

FIRST, SECOND = "first-token-0123456789", "c2Vjb25kLXRva2VuLXNlY29uZA=="


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    path.write_text(f"# of the web shop\n{FIRST}\n\n  {SECOND}  \r\n")
    path.chmod(0o600)
    return path


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Tokens:
    path = tmp_path_factory.mktemp("known") / "tokens"
    path.write_text(FIRST)
    return Tokens(path)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are looked at whenever they are asked about."""
    monkeypatch.setattr(changes, "LOOK_S", 0.0)


def test_each_token_of_the_file_gets_in(path: Path) -> None:
    tokens = Tokens(path)
    for _ in range(2):  # looked up, then remembered
        for shown in (f"Bearer {FIRST}", f"bearer {SECOND}", f"BEARER   {FIRST} "):
            assert tokens.allows(shown)
            tokens.check(shown)
    assert read_token(path) == FIRST
    assert bearer(FIRST) == f"Bearer {FIRST}"


@pytest.mark.parametrize(
    "shown",
    ["", FIRST, "Bearer", "Bearer ", f"Basic {FIRST}", f"Bearer {FIRST}x", f"Bearer {FIRST[:-1]}", f"Bearer {FIRST} {SECOND}", f"Bearer\t{FIRST}"],
)
def test_nothing_else_gets_in(path: Path, shown: str) -> None:
    tokens = Tokens(path)
    assert not tokens.allows(shown)
    with pytest.raises(UnauthenticatedError, match="token") as caught:
        tokens.check(shown)
    assert FIRST not in str(caught.value)


@given(shown=st.text())
@settings(max_examples=50)
def test_whatever_is_shown_is_compared_without_an_error(tokens: Tokens, shown: str) -> None:
    assert tokens.allows("Bearer " + shown) == (shown.strip(" ") == FIRST)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "has no token"),
        (b"# nothing\n\n", "has no token"),
        (b"short\n", "line 1: no token"),
        (FIRST.encode() + b"\nwith a blank in it!\n", "line 2: no token"),
        (b"\xff" * 30, "line 1: no token"),
        (b"t" * (1 << 20) + b"t", "larger than"),
        (b"\n".join(b"%020d" % number for number in range(1001)), "1001 tokens"),
    ],
)
def test_a_file_that_is_wrong_is_refused_by_name_and_never_quoted(tmp_path: Path, content: bytes, told: str) -> None:
    path = tmp_path / "tokens"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=told) as caught:
        Tokens(path)
    assert str(path) in str(caught.value)
    assert "blank in it" not in str(caught.value)


def test_a_file_that_is_missing_or_a_folder_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(ConfigError, match="cannot be read"):
            Tokens(path)


@pytest.mark.usefixtures("at_once")
def test_a_file_that_changes_is_read_again(path: Path) -> None:
    tokens = Tokens(path)
    assert tokens.allows(f"Bearer {FIRST}")
    path.write_text("third-token-0123456789\n")
    assert tokens.allows("Bearer third-token-0123456789")
    assert not tokens.allows(f"Bearer {FIRST}")


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("content", ["", "short\n", None])
def test_one_that_is_then_wrong_or_gone_changes_nothing(path: Path, caplog: pytest.LogCaptureFixture, content: str | None) -> None:
    tokens = Tokens(path)
    if content is None:
        path.unlink()
    else:
        path.write_text(content)
    assert tokens.allows(f"Bearer {FIRST}")
    assert tokens.allows(f"Bearer {SECOND}")
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 1
    assert str(path) in errors[0]
    path.write_text("third-token-0123456789\n")
    assert not tokens.allows(f"Bearer {FIRST}")


def test_a_file_that_all_may_read_is_told(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Tokens(path)
    assert not caplog.records
    path.chmod(0o644)
    Tokens(path)
    assert [(record.levelno, str(path) in record.getMessage()) for record in caplog.records] == [(logging.WARNING, True)]
