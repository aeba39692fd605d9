"""What a client shows a server, and whom it trusts: its settings, and its options of the commands that ask."""

import argparse
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from emberline.errors import ConfigError, RequestError
from emberline.serving.security.tls import client_context, client_credentials
from emberline.serving.security.tokens import bearer, read_token

if TYPE_CHECKING:
    import grpc


@dataclass(frozen=True, kw_only=True)
class Access:
    """How a client gets in.

    Args:
        token: to show; empty for none.
        ca: authorities to trust, as PEM; None for those of the system over HTTP, and those that grpcio brings along over gRPC.
        cert: the client's own certificate, as PEM, where the server asks for one.
        key: its private key.

    Raises:
        ConfigError: the token has characters that none has, or a certificate is there without its key or the other way round.
    """

    token: str = field(default="", repr=False)
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None

    def __post_init__(self) -> None:
        if self.token:
            bearer(self.token)
        if (self.cert is None) != (self.key is None):
            raise ConfigError("a client's certificate needs its key, and the key its certificate: give both or neither")

    @property
    def headers(self) -> dict[str, str]:
        """What goes with each request, as headers or metadata."""
        return {"authorization": bearer(self.token)} if self.token else {}

    def context(self) -> ssl.SSLContext:
        """Of HTTP connections.

        Raises:
            ConfigError: a file is wrong; the message names it.
        """
        return client_context(self.ca, self.cert, self.key)

    def credentials(self) -> "grpc.ChannelCredentials":
        """Of gRPC connections.

        Raises:
            ConfigError: a file is wrong; the message names it.
        """
        return client_credentials(self.ca, self.cert, self.key)

    def check(self, url: str, *, is_private: bool) -> None:
        """Refuse what an address has no use for.

        Raises:
            RequestError: authorities or a certificate are given for an address without TLS.
        """
        if not is_private and (self.ca is not None or self.cert is not None):
            raise RequestError(f"{url} has no TLS, so neither ca nor cert counts; write https:// or grpcs://, or leave them out")


NO_ACCESS = Access()
"""Nothing is shown, and whom the system trusts is trusted."""


def configure_access(parser: argparse.ArgumentParser) -> None:
    """Options of commands that ask a server."""
    parser.add_argument("--token-file", type=Path, metavar="FILE", help="show the server the first token of this file")
    parser.add_argument("--ca", type=Path, metavar="FILE", help="authorities that a server over https:// or grpcs:// is trusted by (PEM)")
    parser.add_argument("--cert", type=Path, metavar="FILE", help="a certificate of one's own, where the server asks for one (PEM)")
    parser.add_argument("--key", type=Path, metavar="FILE", help="its private key (PEM)")


def access_of(args: argparse.Namespace) -> Access:
    """What a command line asks for.

    Raises:
        ConfigError: the token file cannot be read, or see `Access`.
    """
    token = "" if args.token_file is None else read_token(args.token_file)
    return Access(token=token, ca=args.ca, cert=args.cert, key=args.key)
