"""Bearer tokens: those of a file, read again when it changes."""

import hmac
import logging
import re
from hashlib import sha256
from pathlib import Path

from emberline.errors import ConfigError, UnauthenticatedError
from emberline.serving.security.changes import Changes

_log = logging.getLogger(__name__)
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
"""What a token may be (RFC 6750, section 2.1)."""
FEWEST, _MOST, _MOST_BYTES = 16, 1000, 1 << 20
"""Characters of a token, at least; tokens of a file; bytes of it."""
_MOST_KNOWN = 64
SCHEME = "bearer "


class Tokens:
    """The tokens that callers may show, as `Authorization: Bearer TOKEN`.

    The file has one token a line: at least 16 letters, digits or `-._~+/`, such as `openssl rand -hex 32` makes. Blank lines and those that begin
    with `#` are passed over. A file that changes is read again within a second; one that is then wrong, empty or gone leaves the tokens as they
    were, and the log says so: who wants to withdraw all tokens puts another into the file.

    Args:
        path: of the file. That others than its owner may read it is told in the log.

    Raises:
        ConfigError: it cannot be read, has no token, or a line is none; the message names file and line, never what stands there.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._changes = path, Changes([path])
        self._stamp = self._changes.stamp()
        self._digests = _read(path)
        self._known: set[str] = set()
        """Texts that were found right: compared by a hash whose key is this process's own, so that how long it takes tells nothing of them."""
        self._warn()

    def allows(self, authorization: str) -> bool:
        """Whether a caller that shows this (`Bearer TOKEN`, empty for nothing) may ask. Takes well below a microsecond where it may."""
        if self._changes.is_time():
            self._look()
        return authorization in self._known or self._compare(authorization)

    def check(self, authorization: str) -> None:
        """Let pass who may ask.

        Raises:
            UnauthenticatedError: it may not.
        """
        if not self.allows(authorization):
            raise UnauthenticatedError(
                "the token is not one of this server's" if authorization else "this server wants a token: send the header Authorization: Bearer TOKEN"
            )

    def _compare(self, authorization: str) -> bool:
        if authorization[: len(SCHEME)].lower() != SCHEME:
            return False
        given, found = _digest(authorization[len(SCHEME) :].strip(" ")), False
        for digest in self._digests:  # all of them, always: the time is the same for each
            found |= hmac.compare_digest(given, digest)
        if found and len(self._known) < _MOST_KNOWN:
            self._known.add(authorization)
        return found

    def _look(self) -> None:
        stamp = self._changes.stamp()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            digests = _read(self._path)
        except ConfigError as error:
            _log.error("%s; the tokens stay as they were", error)
            return
        self._digests, self._known = digests, set()
        self._warn()
        _log.info("%d tokens read anew from %s", len(digests), self._path)

    def _warn(self) -> None:
        mode = self._path.stat().st_mode if self._path.exists() else 0
        if mode & 0o004:
            _log.warning("%s may be read by every user of this machine: `chmod o-rwx` keeps its tokens to yours", self._path)


def read_token(path: Path) -> str:
    """The first token of a file, for a caller to show.

    Raises:
        ConfigError: as of `Tokens`.
    """
    return _lines(path)[0]


def bearer(token: str) -> str:
    """What a caller sends under `authorization`.

    Raises:
        ConfigError: no token looks like that; it is not told.
    """
    if not _TOKEN.fullmatch(token):
        raise ConfigError("the token has characters that no token has: letters, digits and -._~+/ are right, and = at its end")
    return f"Bearer {token}"


def _read(path: Path) -> tuple[bytes, ...]:
    return tuple(dict.fromkeys(map(_digest, _lines(path))))


def _lines(path: Path) -> list[str]:
    """The tokens, in the file's order."""
    try:
        with path.open("rb") as stream:
            content = stream.read(_MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"the token file {path} cannot be read: {error.strerror}") from None
    if len(content) > _MOST_BYTES:
        raise ConfigError(f"the token file {path} is larger than {_MOST_BYTES} bytes")
    tokens = []
    for number, line in enumerate(content.decode("utf-8-sig", "replace").splitlines(), 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        if not _TOKEN.fullmatch(text) or len(text) < FEWEST:
            raise ConfigError(
                f"the token file {path}, line {number}: no token: at least {FEWEST} letters, digits or -._~+/, as `openssl rand -hex 32` makes"
            )
        tokens.append(text)
    if not tokens:
        raise ConfigError(f"the token file {path} has no token; put one a line, as `openssl rand -hex 32` makes them")
    if len(tokens) > _MOST:
        raise ConfigError(f"the token file {path} has {len(tokens)} tokens; {_MOST} are the most")
    return tokens


def _digest(token: str) -> bytes:
    return sha256(token.encode("utf-8", "surrogateescape")).digest()
