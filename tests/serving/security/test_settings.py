"""What a command line asks for, what it may not, and what is told of an open server."""

import argparse
import logging
from pathlib import Path

import pytest

from emberline.errors import ConfigError
from emberline.serving.security.settings import (
    EVERYONE,
    SecuritySettings,
    configure_security,
    refuse_security,
    security_of,
    warn_if_open,
)

FILES = {"token_file": Path("/a"), "tls_cert": Path("/b"), "tls_key": Path("/c"), "tls_client_ca": Path("/d")}


def parsed(*options: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    configure_security(parser)
    return parser.parse_args(options)


def test_options_become_settings() -> None:
    options = [f"--{name.replace('_', '-')}={path}" for name, path in FILES.items()]
    assert security_of(parsed(*options)) == SecuritySettings(**FILES)
    assert security_of(parsed()) == EVERYONE


def test_settings_survive_being_told() -> None:
    for settings in (EVERYONE, SecuritySettings(**FILES), SecuritySettings(token_file=Path("/a"))):
        assert SecuritySettings.from_dict(settings.to_dict()) == settings


@pytest.mark.parametrize("options", [["--tls-cert=/b"], ["--tls-key=/c"], ["--tls-client-ca=/d"]])
def test_half_of_tls_is_refused(options: list[str]) -> None:
    with pytest.raises(ConfigError, match=options[0].partition("=")[0]):
        security_of(parsed(*options))


@pytest.mark.parametrize("option", ["--token-file", "--tls-cert", "--tls-key", "--tls-client-ca"])
def test_triton_has_none_of_it(option: str) -> None:
    refuse_security(parsed())
    with pytest.raises(ConfigError, match=f"{option} is for the embedded server.*proxy"):
        refuse_security(parsed(option, "/x"))


@pytest.mark.parametrize(
    ("host", "names", "told"),
    [
        ("127.0.0.1", (), ""),
        ("::1", (), ""),
        ("0.0.0.0", (), "neither token nor TLS"),
        ("::", (), "neither token nor TLS"),
        ("0.0.0.0", ("token_file",), "can read the tokens"),
        ("0.0.0.0", ("tls_cert", "tls_key"), "over TLS: whoever reaches it may ask"),
        ("0.0.0.0", ("tls_cert", "tls_key", "token_file"), ""),
        ("0.0.0.0", ("tls_cert", "tls_key", "tls_client_ca"), ""),
    ],
)
def test_a_server_that_others_reach_is_told_of(host: str, names: tuple[str, ...], told: str, caplog: pytest.LogCaptureFixture) -> None:
    warn_if_open(host, SecuritySettings(**{name: FILES[name] for name in names}))
    messages = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(messages) == bool(told)
    assert all(told in message for message in messages)
