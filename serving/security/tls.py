"""TLS: certificates of a server, read again when their files change, and what a client trusts."""

import logging
import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from emberline.errors import ConfigError
from emberline.serving.security.changes import Changes
from emberline.serving.security.settings import SecuritySettings

if TYPE_CHECKING:
    import grpc

_log = logging.getLogger(__name__)


class Certificates:
    """A server's certificate, key, and authorities of its callers, for both protocols.

    Whenever a connection is made the files are looked at, at most once a second: new ones hold from that connection on. Files that are wrong, or do
    not belong together yet, leave what was there, and the log says so.

    Args:
        settings: with a certificate and a key.

    Raises:
        ConfigError: a file cannot be read, is no PEM, or the key is not the certificate's; the message names the file.
    """

    def __init__(self, settings: SecuritySettings) -> None:
        assert settings.tls_cert is not None
        assert settings.tls_key is not None
        self._cert, self._key, self._ca = settings.tls_cert, settings.tls_key, settings.tls_client_ca
        self._changes = Changes([path for path in (self._cert, self._key, self._ca) if path is not None])
        self._lock = threading.Lock()
        self._load()

    def http_context(self) -> ssl.SSLContext:
        """For all connections of a server: TLS 1.2 or later."""
        context = self._context

        def choose(connection: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
            self._look()
            connection.context = self._context

        context.sni_callback = choose
        return context

    def grpc_credentials(self) -> "grpc.ServerCredentials":
        """For a gRPC server's port."""
        import grpc

        seen = self._configuration

        def fetch() -> Any:
            nonlocal seen
            self._look()
            if self._configuration is seen:
                return None
            seen = self._configuration
            return seen

        return grpc.dynamic_ssl_server_credentials(seen, fetch, self._ca is not None)

    def _look(self) -> None:
        """Read the files again where they changed. Called from the event loop, and from gRPC's threads."""
        with self._lock:
            if not self._changes.is_time() or self._changes.stamp() == self._stamp:
                return
            try:
                self._load()
            except ConfigError as error:
                _log.error("%s; certificates stay as they were", error)
            else:
                _log.info("the certificate %s was read anew", self._cert)

    def _load(self) -> None:
        import grpc

        self._stamp = self._changes.stamp()
        context = server_context(self._cert, self._key, self._ca)
        configuration = grpc.ssl_server_certificate_configuration(
            [(_read(self._key), _read(self._cert))], None if self._ca is None else _read(self._ca)
        )
        if self._changes.stamp() != self._stamp:
            raise ConfigError(f"{self._cert} or what belongs to it changes while it is read")
        self._context, self._configuration = context, configuration


def server_context(cert: Path, key: Path, client_ca: Path | None) -> ssl.SSLContext:
    """For a server.

    Raises:
        ConfigError: see `Certificates`.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    _load_pair(context, cert, key)
    if client_ca is not None:
        _load_authorities(context, client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(ca: Path | None, cert: Path | None, key: Path | None) -> ssl.SSLContext:
    """For a client over HTTP: it trusts `ca`, or what the system trusts, and shows a certificate where it has one.

    Raises:
        ConfigError: see `Certificates`.
    """
    context = ssl.create_default_context() if ca is None else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if ca is not None:
        _load_authorities(context, ca)
    if cert is not None and key is not None:
        _load_pair(context, cert, key)
    return context


def client_credentials(ca: Path | None, cert: Path | None, key: Path | None) -> "grpc.ChannelCredentials":
    """The same over gRPC; without `ca` it trusts the authorities that grpcio brings along.

    Raises:
        ConfigError: see `Certificates`.
    """
    import grpc

    client_context(ca, cert, key)  # gRPC does not say which file is wrong
    return grpc.ssl_channel_credentials(*[None if path is None else _read(path) for path in (ca, key, cert)])


def _load_pair(context: ssl.SSLContext, cert: Path, key: Path) -> None:
    for path in (cert, key):
        _read(path)
    _named(cert, "has no certificate as PEM", lambda: ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(cert))
    _named(
        key, f"has no private key without a password as PEM, or not that of {cert}", lambda: context.load_cert_chain(cert, key, password=lambda: "")
    )


def _load_authorities(context: ssl.SSLContext, ca: Path) -> None:
    _read(ca)
    _named(ca, "has no certificate as PEM", lambda: context.load_verify_locations(ca))


def _named(path: Path, problem: str, load: Callable[[], None]) -> None:
    try:
        load()
    except (ssl.SSLError, OSError, ValueError) as error:
        reason = getattr(error, "reason", None)
        raise ConfigError(f"{path} {problem}" + (f" ({reason})" if reason else "")) from None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
