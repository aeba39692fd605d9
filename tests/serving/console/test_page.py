"""The console's files as the server sends them, without a browser."""

import asyncio
import http.client
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

import emberline.serving.console.page as page_module
from emberline.serving.console.page import HEADERS, add_console, console_paths
from emberline.serving.server import EmbeddedServer
from emberline.serving.settings import ServerSettings
from tests.serving.conftest import make_toy

FOLDER = Path(page_module.__file__).parent


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes


def page_of(settings: ServerSettings) -> Response:
    """The page, from an app that has nothing else."""
    app = FastAPI()
    add_console(app, settings)
    (route,) = [route for route in app.routes if isinstance(route, Route) and route.path == "/"]
    answer: Response = asyncio.run(route.endpoint(Request({"type": "http", "method": "GET", "headers": []})))
    return answer


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    models = tmp_path_factory.mktemp("models")
    make_toy().write(models)
    with EmbeddedServer(models, settings=ServerSettings(num_threads=1)) as server:
        yield server.http_url.removeprefix("http://")


def get(place: str, path: str, method: str = "GET", **headers: str) -> Answer:
    connection = http.client.HTTPConnection(place, timeout=20)
    try:
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
    finally:
        connection.close()


def test_every_file_is_served_as_it_lies(place: str) -> None:
    paths = console_paths()
    assert set(paths) == {"/"} | {f"/console/{path.name}" for path in FOLDER.iterdir() if path.suffix in (".js", ".css", ".svg")}
    for path in paths:
        answer = get(place, path)
        name = "index.html" if path == "/" else path.rpartition("/")[2]
        assert answer.status == 200
        assert answer.body.replace(b'control="yes"', b'control="no"') == (FOLDER / name).read_bytes()
        assert {name: answer.headers[name] for name in HEADERS} == HEADERS
        assert answer.headers["content-type"].split(";")[0] == page_module._TYPES[Path(name).suffix]


def test_a_browser_that_has_a_file_gets_no_second_copy(place: str) -> None:
    first = get(place, "/")
    for known in (first.headers["etag"], f'"other", W/{first.headers["etag"]}', "*"):
        again = get(place, "/", if_none_match=known)
        assert (again.status, again.body, again.headers["etag"]) == (304, b"", first.headers["etag"])
        assert again.headers["content-security-policy"] == HEADERS["content-security-policy"]
    assert get(place, "/", if_none_match='"other"').body == first.body
    head = get(place, "/", "HEAD")
    assert (head.status, head.body, head.headers["content-length"]) == (200, b"", str(len(first.body)))


@pytest.mark.parametrize("path", ["/console/", "/console/index.html", "/console/page.py", "/console/../page.py", "/console/%2e%2e/server.py"])
def test_nothing_else_of_the_folder_is_served(place: str, path: str) -> None:
    assert get(place, path).status == 404
    assert get(place, "/", "POST").status == 405


def test_the_page_offers_control_where_callers_have_it() -> None:
    may, may_not, far = [page_of(settings) for settings in (ServerSettings(), ServerSettings(model_control=False), ServerSettings(host="0.0.0.0"))]
    assert b'data-model-control="yes"' in may.body
    assert may_not.body == far.body == (FOLDER / "index.html").read_bytes()
    assert b'data-model-control="no"' in far.body
    assert may.headers["etag"] != far.headers["etag"]


def test_scripts_make_no_markup_of_text_and_ask_no_other_host(said: list[str]) -> None:
    texts = {path.name: path.read_text() for path in FOLDER.iterdir() if path.suffix in (".js", ".css", ".html", ".svg")}
    for name, text in texts.items():
        assert re.findall(r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|new Function|DOMParser|srcdoc", text) == [], name
        assert set(re.findall(r"https?://[^\s\"'`]+|(?<=[\"'(])//[\w.]+", text)) <= {"http://www.w3.org/2000/svg"}, name
    page = texts["index.html"]
    assert re.findall(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=", page) == []
    said.append(f"console: {len(texts)} files, {sum(map(len, texts.values())) // 1024} KiB")


def test_each_element_that_scripts_name_is_on_the_page() -> None:
    page = (FOLDER / "index.html").read_text()
    there = re.findall(r'\bid="([\w-]+)"', page)
    assert len(there) == len(set(there))
    named = {name for path in FOLDER.glob("*.js") for name in re.findall(r'byId\("([\w-]+)"\)', path.read_text())}
    assert named <= set(there)
