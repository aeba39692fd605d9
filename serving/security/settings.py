"""Tokens and TLS of the embedded server: its settings, and its options of `emberline serve`."""

import argparse
import logging
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Self

from emberline.errors import ConfigError
from emberline.serving.sockets import is_loopback

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class SecuritySettings:
    """Who may ask, and with what files the server speaks TLS on both protocols. Without any, everyone who reaches it may, in the clear.

    Args:
        token_file: one token a line; callers show one of them. See `Tokens`.
        tls_cert: the server's certificate and those between it and its authority, as PEM.
        tls_key: its private key, as PEM, without a password.
        tls_client_ca: authorities whose certificates callers must have; None asks for no certificate.

    Raises:
        ConfigError: a certificate is there without its key, or the other way round, or clients are to have certificates while the server has none.
    """

    token_file: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None

    def __post_init__(self) -> None:
        if (self.tls_cert is None) != (self.tls_key is None):
            there, missing = ("cert", "key") if self.tls_key is None else ("key", "cert")
            raise ConfigError(f"--tls-{there} is there without --tls-{missing}: TLS needs both")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise ConfigError("--tls-client-ca asks callers for certificates, which needs TLS: give --tls-cert and --tls-key too")

    @property
    def uses_tls(self) -> bool:
        """Whether both protocols speak TLS."""
        return self.tls_cert is not None

    def scheme(self, protocol: str) -> str:
        """`http` or `grpc` as URLs have it here: with an s where TLS is spoken."""
        return f"{protocol}s" if self.uses_tls else protocol

    def to_dict(self) -> dict[str, str | None]:
        """As plain data, for another process."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: None if path is None else str(path) for name, path in found.items()}

    @classmethod
    def from_dict(cls, data: Mapping[str, str | None]) -> Self:
        """From what `to_dict` gave."""
        return cls(**{name: None if path is None else Path(path) for name, path in data.items()})


EVERYONE = SecuritySettings()
"""Everyone may ask, in the clear."""
_OPTIONS: Mapping[str, str] = {
    "token_file": "embedded: callers must show one of the tokens of this file, one a line; health and the console's page are open to all",
    "tls_cert": "embedded: speak TLS with this certificate (PEM, with those between it and its authority), over HTTP and gRPC",
    "tls_key": "embedded: its private key (PEM, without a password)",
    "tls_client_ca": "embedded: callers must have a certificate of one of these authorities (PEM)",
}


def configure_security(parser: argparse.ArgumentParser) -> None:
    """Options of `emberline serve`."""
    for name, text in _OPTIONS.items():
        parser.add_argument(_option(name), type=Path, metavar="FILE", help=text)


def security_of(args: argparse.Namespace) -> SecuritySettings:
    """What a command line asks for.

    Raises:
        ConfigError: see `SecuritySettings`.
    """
    return SecuritySettings(**{name: getattr(args, name) for name in _OPTIONS})


def refuse_security(args: argparse.Namespace) -> None:
    """For a server that has none of it.

    Raises:
        ConfigError: an option is given; the message names it and says what to do instead.
    """
    for name in _OPTIONS:
        if getattr(args, name) is not None:
            raise ConfigError(
                f"{_option(name)} is for the embedded server: Triton checks no tokens and speaks no TLS over HTTP; "
                "have it listen on loopback, and put a proxy in front that does"
            )


def warn_if_open(host: str, settings: SecuritySettings) -> None:
    """Say in the log where others than this machine can reach the server, and nothing keeps them from asking or from listening in."""
    if is_loopback(host):
        return
    if settings.token_file is None and settings.tls_client_ca is None:
        way = "over TLS" if settings.uses_tls else "and neither token nor TLS is asked for"
        _log.warning("listening on %s %s: whoever reaches it may ask; --token-file has callers show a token", host, way)
    elif not settings.uses_tls:
        _log.warning("listening on %s without TLS: whoever is on the way can read the tokens; give --tls-cert and --tls-key", host)


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")
