"""Files of TLS: which are taken, which are refused by name, and which are read again."""

import ssl
from pathlib import Path

import pytest

from emberline.errors import ConfigError, RequestError
from emberline.serving.security import changes
from emberline.serving.security.access import Access
from emberline.serving.security.settings import SecuritySettings
from emberline.serving.security.tls import Certificates, client_context
from tests.serving.security.certificates import Authority, Pair


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def pair(authority: Authority) -> Pair:
    return authority.sign("server")


@pytest.fixture(scope="module")
def other(authority: Authority) -> Pair:
    return authority.sign("other")


def test_contexts_speak_tls_1_2_or_later_and_ask_for_what_they_should(authority: Authority, pair: Pair) -> None:
    server = Certificates(SecuritySettings(tls_cert=pair.cert, tls_key=pair.key)).http_context()
    mutual = Certificates(SecuritySettings(tls_cert=pair.cert, tls_key=pair.key, tls_client_ca=authority.cert)).http_context()
    client = client_context(authority.cert, pair.cert, pair.key)
    assert [context.minimum_version for context in (server, mutual, client)] == [ssl.TLSVersion.TLSv1_2] * 3
    assert [context.verify_mode for context in (server, mutual, client)] == [ssl.CERT_NONE, ssl.CERT_REQUIRED, ssl.CERT_REQUIRED]
    assert client.check_hostname
    assert client_context(None, None, None).verify_mode == ssl.CERT_REQUIRED


def test_files_that_are_wrong_are_named(tmp_path: Path, authority: Authority, pair: Pair, other: Pair) -> None:
    junk, missing = tmp_path / "junk.pem", tmp_path / "missing.pem"
    junk.write_bytes(b"\x00\xffno PEM")
    wrong = [
        (SecuritySettings(tls_cert=missing, tls_key=pair.key), missing),
        (SecuritySettings(tls_cert=tmp_path, tls_key=pair.key), tmp_path),
        (SecuritySettings(tls_cert=pair.cert, tls_key=missing), missing),
        (SecuritySettings(tls_cert=junk, tls_key=pair.key), junk),
        (SecuritySettings(tls_cert=pair.key, tls_key=pair.key), pair.key),
        (SecuritySettings(tls_cert=pair.cert, tls_key=junk), junk),
        (SecuritySettings(tls_cert=pair.cert, tls_key=other.key), other.key),
        (SecuritySettings(tls_cert=pair.cert, tls_key=pair.key, tls_client_ca=missing), missing),
        (SecuritySettings(tls_cert=pair.cert, tls_key=pair.key, tls_client_ca=junk), junk),
    ]
    for settings, named in wrong:
        with pytest.raises(ConfigError) as caught:
            Certificates(settings)
        assert str(caught.value).startswith(str(named)), settings
    for access in (Access(ca=missing), Access(ca=junk), Access(ca=authority.cert, cert=pair.cert, key=other.key)):
        for made in (access.context, access.credentials):
            with pytest.raises(ConfigError, match=r"missing\.pem|junk\.pem|other\.key"):
                made()


def test_a_key_with_a_password_is_refused_and_nobody_is_asked(tmp_path: Path, pair: Pair) -> None:
    locked = tmp_path / "locked.key"
    locked.write_text("-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n")
    with pytest.raises(ConfigError, match=r"locked\.key has no private key without a password"):
        Certificates(SecuritySettings(tls_cert=pair.cert, tls_key=locked))


def test_files_that_change_are_read_again_once_they_belong_together(
    tmp_path: Path, pair: Pair, other: Pair, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(changes, "LOOK_S", 0.0)
    cert, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    cert.write_bytes(pair.cert.read_bytes())
    key.write_bytes(pair.key.read_bytes())
    certificates = Certificates(SecuritySettings(tls_cert=cert, tls_key=key))
    context = certificates.http_context()
    assert shown(context) == pair.cert.read_text()
    cert.write_bytes(other.cert.read_bytes())  # its key is still the old one's
    assert shown(context) == pair.cert.read_text()
    assert shown(context) == pair.cert.read_text()
    assert [str(key) in record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == [True]
    key.write_bytes(other.key.read_bytes())
    assert shown(context) == other.cert.read_text()


def shown(server: ssl.SSLContext) -> str:
    """The certificate that a server shows, as PEM."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(down, up, server_hostname="localhost"), server.wrap_bio(up, down, server_side=True)]
    for _ in range(4):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    found = ends[0].getpeercert(binary_form=True)
    assert found is not None
    return ssl.DER_cert_to_PEM_cert(found)


def test_an_access_that_makes_no_sense_is_refused(pair: Pair) -> None:
    with pytest.raises(ConfigError, match="needs its key"):
        Access(cert=pair.cert)
    with pytest.raises(ConfigError, match="needs its key"):
        Access(key=pair.key)
    with pytest.raises(ConfigError, match="characters that no token has") as caught:
        Access(token="a\r\nb: c")
    assert "b: c" not in str(caught.value)
    with pytest.raises(RequestError, match="http://x has no TLS"):
        Access(ca=pair.cert).check("http://x", is_private=False)
    assert "sesame" not in repr(Access(token="sesame"))
