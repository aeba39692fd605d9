"""Lines of the log, from records of this process and from a real server's standard error."""

import http.client
import json
import logging
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from emberline.serving.log import JsonLines, TextLines
from emberline.serving.observe.context import BATCH, CURRENT, RequestContext
from emberline.serving.observe.settings import ObserveSettings
from emberline.serving.settings import ServerSettings
from emberline.serving.workers.setup import Setup
from tests.serving.conftest import make_toy
from tests.serving.served_command import served

PREDICT = "/v1/models/toy:predict"


@pytest.fixture
def alone() -> Iterator[None]:
    """No request of another test."""
    tokens = CURRENT.set(None), BATCH.set(())
    yield
    CURRENT.reset(tokens[0])
    BATCH.reset(tokens[1])


def record(message: str = "it is %s", *args: object, **more: Any) -> logging.LogRecord:
    made = logging.LogRecord("emberline.x", logging.WARNING, "x.py", 1, message, args or ("so",), more.pop("exc_info", None))
    vars(made).update(more)
    return made


@pytest.mark.usefixtures("alone")
def test_a_line_names_the_request_that_it_is_about() -> None:
    assert TextLines().format(record()).endswith(" WARNING emberline.x: it is so")
    BATCH.set([RequestContext("a"), None, RequestContext("b")])
    assert TextLines().format(record()).endswith("it is so (request a, b)")
    assert json.loads(JsonLines().format(record()))["request_ids"] == ["a", "b"]
    BATCH.set([RequestContext(str(number)) for number in range(20)])
    assert json.loads(JsonLines().format(record()))["request_ids"] == [*"01234567", "and 12 more"]
    CURRENT.set(RequestContext("mine"))
    assert TextLines().format(record()).endswith("it is so (request mine)")
    assert TextLines().format(record(request_id="theirs")).endswith("it is so (request theirs)")


@pytest.mark.usefixtures("alone")
def test_json_is_one_line_whatever_is_logged() -> None:
    try:
        raise ValueError('two\nlines and a "quote"')
    except ValueError:
        line = JsonLines().format(record("é\n%s", "x", exc_info=sys.exc_info(), fields={"status": 500, "path": Path("/a")}))
    assert "\n" not in line
    found = json.loads(line)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", found.pop("time"))
    assert found.pop("traceback").endswith('ValueError: two\nlines and a "quote"')
    assert found == {"level": "WARNING", "logger": "emberline.x", "message": "é\nx", "status": 500, "path": "/a"}


def test_workers_are_told_how_to_log() -> None:
    settings = ServerSettings(observe=ObserveSettings(log_format="json", log_requests=True))
    told = json.loads(json.dumps(Setup("models", settings, None).to_dict()))
    assert Setup.from_dict(told).settings.observe == settings.observe


def test_a_server_logs_each_request(tmp_path: Path) -> None:
    make_toy().write(tmp_path)
    asked = [("POST", PREDICT, '{"rows": [{"user": 100}]}', 200), ("POST", PREDICT, '{"rows": [{"no": 1}]}', 400), ("GET", "/v2/a%0Ab", "", 404)]
    with served(tmp_path, "--log-format=json", "--log-requests", "--delta-poll=0", "--version-poll=0") as (process, lines):
        place = next(line for line in lines if line.startswith("HTTP")).split()[1].removeprefix("http://")
        connection = http.client.HTTPConnection(place, timeout=20)
        for number, (method, path, body, status) in enumerate(asked):
            connection.request(method, path, body or None, {"X-Request-Id": f"r{number}"})
            answer = connection.getresponse()
            answer.read()
            assert answer.status == status
        connection.close()
        process.terminate()
        _, errors = process.communicate(timeout=60)
    found = [json.loads(line) for line in errors.splitlines()]
    assert {line["logger"] for line in found} > {"emberline.requests"}
    requests = [line for line in found if line["logger"] == "emberline.requests"]
    assert [(line["request_ids"], line["call"], line["status"]) for line in requests] == [
        ([f"r{number}"], f"{method} {path}", status) for number, (method, path, _, status) in enumerate(asked)
    ]
    assert [line.get("kind") for line in requests] == [None, "bad_request", "not_found"]
    assert [line.get("model") for line in requests] == ["toy", "toy", None]
    assert all(line["seconds"] > 0 and line["protocol"] == "http" and line["level"] == "INFO" for line in requests)
