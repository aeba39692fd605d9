"""The check that the images bring along."""

import http.server
import importlib.util
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.serving.security.certificates import Authority


@pytest.fixture(scope="module")
def is_ready(repository: Path) -> Callable[[int], bool]:
    spec = importlib.util.spec_from_file_location("health", repository / "deploy" / "docker" / "health.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    check: Callable[[int], bool] = module.is_ready
    return check


@contextmanager
def server(status: int, context: ssl.SSLContext | None = None) -> Iterator[int]:
    """One that answers the ready endpoint with `status`, and anything else with 404."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/v2/health/ready" else 404)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as running:
        running.handle_error = lambda *_: None  # type: ignore[method-assign]
        if context is not None:
            running.socket = context.wrap_socket(running.socket, server_side=True)
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield running.server_address[1]
        finally:
            running.shutdown()
            thread.join()


@pytest.mark.parametrize(("status", "expected"), [(200, True), (503, False), (401, False)])
@pytest.mark.parametrize("private", [False, True])
def test_it_asks_whichever_way_the_server_speaks(is_ready: Callable[[int], bool], tmp_path: Path, private: bool, status: int, expected: bool) -> None:
    context = None
    if private:
        pair = Authority(tmp_path).sign("elsewhere", "DNS:elsewhere.example")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair.cert, pair.key)
    with server(status, context) as port:
        assert is_ready(port) is expected


def test_where_nobody_listens(is_ready: Callable[[int], bool]) -> None:
    with server(200) as port:
        pass
    assert not is_ready(port)
