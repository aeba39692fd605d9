"""A server with tokens and TLS, as callers meet it: who gets in over HTTP and gRPC, and who does not."""

import http.client
import json
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from tritonclient.grpc import service_pb2 as pb
from tritonclient.utils import InferenceServerException

from emberline.errors import ConfigError, ServingError, UnauthenticatedError, UnavailableError
from emberline.serving import Client
from emberline.serving.probe import empty_row, probe
from emberline.serving.security.access import Access
from emberline.serving.security.guard import OPEN_CALLS
from emberline.serving.security.settings import SecuritySettings
from emberline.serving.server import EmbeddedServer
from emberline.serving.settings import ServerSettings
from tests.serving.conftest import make_toy
from tests.serving.security.certificates import Authority, Pair
from tests.serving.served_command import served

TOKEN, OTHER_TOKEN, WRONG = "t" * 20, "u" * 20, "v" * 20
ROW = [{"user": 100}]
BODY = json.dumps({"rows": ROW}).encode()


@dataclass(frozen=True)
class Place:
    """Files of all servers here."""

    models: Path
    tokens: Path
    authority: Authority
    pair: Pair
    client: Pair


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    folder = tmp_path_factory.mktemp("place")
    make_toy().write(folder / "models")
    tokens = folder / "tokens"
    tokens.write_text(f"{TOKEN}\n{OTHER_TOKEN}\n")
    tokens.chmod(0o600)
    authority = Authority(folder)
    return Place(folder / "models", tokens, authority, authority.sign("server"), authority.sign("client"))


def start(place: Place, **security: Path) -> EmbeddedServer:
    settings = ServerSettings(num_threads=1, delta_poll_s=0, version_poll_s=0, security=SecuritySettings(**security))
    return EmbeddedServer(place.models, settings=settings)


@pytest.fixture(scope="module")
def guarded(place: Place) -> Iterator[EmbeddedServer]:
    """Tokens in the clear."""
    with start(place, token_file=place.tokens) as server:
        yield server


@pytest.fixture(scope="module")
def private(place: Place) -> Iterator[EmbeddedServer]:
    """Tokens and TLS."""
    with start(place, token_file=place.tokens, tls_cert=place.pair.cert, tls_key=place.pair.key) as server:
        yield server


@pytest.fixture(scope="module")
def mutual(place: Place) -> Iterator[EmbeddedServer]:
    """TLS with certificates on both ends."""
    with start(place, tls_cert=place.pair.cert, tls_key=place.pair.key, tls_client_ca=place.authority.cert) as server:
        yield server


@pytest.fixture(scope="module")
def right(place: Place) -> dict[str, Any]:
    """What the model answers without a server."""
    return ask(place.models.as_uri())


def urls(server: EmbeddedServer) -> tuple[str, str]:
    return server.http_url, server.grpc_url


def ask(url: str, **access: Any) -> dict[str, Any]:
    with Client(url, "toy", timeout_s=5, retries=0, **access) as client:
        return client.predict(ROW)


def assert_same(found: dict[str, Any], right: dict[str, Any]) -> None:
    assert found.keys() == right.keys()
    for name, values in right.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-6)


def raw(server: EmbeddedServer, method: str, path: str, authorization: str | None = None, body: bytes | None = None) -> tuple[int, dict[str, str]]:
    """Status and fields of an answer over plain HTTP."""
    connection = http.client.HTTPConnection(server.http_url.removeprefix("http://"), timeout=20)
    connection.request(method, path, body, {} if authorization is None else {"Authorization": authorization})
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.status, {name.lower(): value for name, value in answer.getheaders()}


@pytest.mark.parametrize("token", [TOKEN, OTHER_TOKEN])
def test_who_has_a_token_gets_the_models_answer(guarded: EmbeddedServer, right: dict[str, Any], token: str) -> None:
    for url in urls(guarded):
        assert_same(ask(url, token=token), right)


@pytest.mark.parametrize(("token", "told"), [("", "wants a token"), (WRONG, "not one of this server's"), (TOKEN[:-1], "not one of")])
def test_who_has_none_or_a_wrong_one_is_refused(guarded: EmbeddedServer, token: str, told: str) -> None:
    for url in urls(guarded):
        with pytest.raises(UnauthenticatedError, match=told):
            ask(url, token=token)


def test_all_of_http_needs_a_token_but_health_and_the_page(guarded: EmbeddedServer) -> None:
    infer = json.dumps(empty_row(guarded.service.repository.get("toy").schema)).encode()
    closed = [
        ("GET", "/v2", None),
        ("GET", "/metrics", None),
        ("GET", "/docs", None),
        ("GET", "/openapi.json", None),
        ("GET", "/v2/models/toy/config", None),
        ("GET", "/v2/models/toy/ready", None),
        ("POST", "/v2/repository/index", b""),
        ("POST", "/v1/models/toy:predict", BODY),
        ("POST", "/v1/models/toy:lookup", BODY),
        ("POST", "/v2/models/toy/infer", infer),
        ("POST", "/v2/models/toy/versions/1/infer", infer),
    ]
    for method, path, body in closed:
        for shown in (None, f"Bearer {WRONG}", TOKEN, f"Basic {TOKEN}"):
            status, fields = raw(guarded, method, path, shown, body)
            assert (path, status, fields["www-authenticate"]) == (path, 401, "Bearer")
        assert raw(guarded, method, path, f"Bearer {TOKEN}", body)[0] == 200, path
    for path in ("/v2/health/live", "/v2/health/ready", "/", "/console/main.js"):
        assert raw(guarded, "GET", path)[0] == 200, path
    for path in ("/v2/health/live/", "//v2/health/live", "/v2/health/../models/toy/config", "/nothing", "/console/../metrics"):
        assert raw(guarded, "GET", path)[0] == 401, path


def test_requests_of_one_connection_are_each_asked_for_a_token(guarded: EmbeddedServer) -> None:
    connection = http.client.HTTPConnection(guarded.http_url.removeprefix("http://"), timeout=20)
    statuses = []
    for token in (TOKEN, WRONG, OTHER_TOKEN, None, TOKEN):
        connection.request("POST", "/v1/models/toy:predict", BODY, {} if token is None else {"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        answer.read()
        statuses.append(answer.status)
    connection.close()
    assert statuses == [200, 401, 200, 401, 200]


def test_all_of_grpc_needs_a_token_but_health(guarded: EmbeddedServer) -> None:
    names = [method.name for method in pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods]
    codes = {}
    with grpc.insecure_channel(guarded.grpc_url.removeprefix("grpc://")) as channel:
        for name in names:
            call = channel.unary_unary(f"/inference.GRPCInferenceService/{name}", None, None)
            for shown in ((), (("authorization", f"Bearer {WRONG}"),), (("authorization", f"Bearer {TOKEN}"),)):
                try:
                    call(b"", metadata=shown, timeout=20)
                    codes[name, shown[0][1] if shown else ""] = "OK"
                except grpc.RpcError as error:
                    codes[name, shown[0][1] if shown else ""] = error.code().name
    for (name, sent), code in codes.items():
        if name in OPEN_CALLS:
            assert code == "OK", (name, sent)
        elif sent.endswith(TOKEN):
            assert code in ("OK", "NOT_FOUND", "UNIMPLEMENTED"), (name, code)
        else:
            assert code in ("UNAUTHENTICATED", "UNIMPLEMENTED"), (name, code)
    assert {name for (name, _), code in codes.items() if code == "OK"} >= {"ServerLive", "ServerReady", "ServerMetadata"}


def test_over_tls_the_same_holds(place: Place, private: EmbeddedServer, right: dict[str, Any]) -> None:
    assert [url.partition("://")[0] for url in urls(private)] == ["https", "grpcs"]
    for url in urls(private):
        assert_same(ask(url, token=TOKEN, ca=place.authority.cert), right)
        for token in ("", WRONG):
            with pytest.raises(UnauthenticatedError):
                ask(url, token=token, ca=place.authority.cert)
    assert probe(private.http_url, "toy", timeout_s=20, access=Access(token=TOKEN, ca=place.authority.cert)) > 0
    with pytest.raises(UnauthenticatedError):
        probe(private.http_url, "toy", timeout_s=20, access=Access(ca=place.authority.cert))


def test_health_is_open_over_tls(place: Place, private: EmbeddedServer) -> None:
    context = ssl.create_default_context(cafile=place.authority.cert)
    connection = http.client.HTTPSConnection(private.http_url.removeprefix("https://"), timeout=20, context=context)
    for path in ("/v2/health/live", "/v2/health/ready"):
        connection.request("GET", path)
        answer = connection.getresponse()
        assert (path, answer.status, bool(answer.read())) == (path, 200, True)
    connection.close()
    credentials = grpc.ssl_channel_credentials(place.authority.cert.read_bytes())
    with grpc.secure_channel(private.grpc_url.removeprefix("grpcs://"), credentials) as channel:
        for name in sorted(OPEN_CALLS):
            channel.unary_unary(f"/inference.GRPCInferenceService/{name}", None, None)(b"", timeout=20)


def test_a_server_of_an_unknown_authority_is_not_trusted(place: Place, private: EmbeddedServer, tmp_path: Path) -> None:
    for url in urls(private):
        for access in ({"ca": Authority(tmp_path, "stranger").cert}, {}):
            with pytest.raises(UnavailableError, match=r"CERTIFICATE_VERIFY_FAILED|cannot reach"):
                ask(url, token=TOKEN, **access)


def test_the_clear_and_tls_do_not_meet(place: Place, guarded: EmbeddedServer, private: EmbeddedServer) -> None:
    for url in urls(private):
        with pytest.raises(ServingError):
            ask(url.replace("https", "http").replace("grpcs", "grpc"), token=TOKEN)
    for url in urls(guarded):
        with pytest.raises(ServingError):
            ask(url.replace("http", "https").replace("grpc", "grpcs"), token=TOKEN, ca=place.authority.cert)


@pytest.mark.parametrize(("name", "alternatives", "days"), [("past", "IP:127.0.0.1", -1), ("elsewhere", "DNS:elsewhere.example", 2)])
def test_a_certificate_that_is_past_or_another_hosts_is_not_trusted(place: Place, name: str, alternatives: str, days: int) -> None:
    pair = place.authority.sign(name, alternatives, days=days)
    with start(place, tls_cert=pair.cert, tls_key=pair.key) as server:
        for url in urls(server):
            with pytest.raises(UnavailableError, match="cannot reach"):
                ask(url, ca=place.authority.cert)


def test_where_callers_need_a_certificate_those_without_one_or_with_a_strangers_are_refused(
    place: Place, mutual: EmbeddedServer, right: dict[str, Any], tmp_path: Path
) -> None:
    stranger = Authority(tmp_path, "stranger").sign("me")
    past = place.authority.sign("past-client", days=-1)
    for url in urls(mutual):
        assert_same(ask(url, ca=place.authority.cert, cert=place.client.cert, key=place.client.key), right)
        for pair in (None, stranger, past):
            own = {} if pair is None else {"cert": pair.cert, "key": pair.key}
            with pytest.raises(UnavailableError):
                ask(url, ca=place.authority.cert, **own)


def test_tritonclient_gets_in_unmodified(place: Place, private: EmbeddedServer) -> None:
    headers = {"authorization": f"Bearer {TOKEN}"}
    over_http = triton_http.InferenceServerClient(
        private.http_url.removeprefix("https://"),
        ssl=True,
        ssl_options={"ca_certs": str(place.authority.cert)},
    )
    over_grpc = triton_grpc.InferenceServerClient(private.grpc_url.removeprefix("grpcs://"), ssl=True, root_certificates=str(place.authority.cert))
    for client in (over_http, over_grpc):
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("toy", headers=headers)
        with pytest.raises(InferenceServerException):
            client.get_model_config("toy")
        client.close()


def test_workers_ask_for_tokens_and_speak_tls_too(place: Place, right: dict[str, Any]) -> None:
    options = [f"--token-file={place.tokens}", f"--tls-cert={place.pair.cert}", f"--tls-key={place.pair.key}"]
    with served(place.models, "--workers=2", *options) as (_, lines):
        text = "".join(lines)
        found = [line.split()[1] for line in lines if line.startswith(("HTTP", "gRPC"))]
        assert [url.partition("://")[0] for url in found] == ["https", "grpcs"]
        assert 'curl -s -H "Authorization: Bearer $TOKEN" https://' in text
        assert TOKEN not in text
        for url in found:
            for _ in range(3):  # one connection each, of either worker
                assert_same(ask(url, token=OTHER_TOKEN, ca=place.authority.cert), right)
                with pytest.raises(UnauthenticatedError):
                    ask(url, token=WRONG, ca=place.authority.cert)


def test_a_server_with_files_that_are_wrong_does_not_start(place: Place, tmp_path: Path) -> None:
    for security in ({"token_file": tmp_path / "none"}, {"tls_cert": place.pair.cert, "tls_key": place.client.key}):
        with pytest.raises(ConfigError, match=r"none|client\.key"), start(place, **security):
            pass
