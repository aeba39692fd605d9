"""`emberline loadtest` as typed, against the real server."""

import json
import os
import re
import signal
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from emberline.cli import main
from emberline.serving.server import EmbeddedServer
from emberline.serving.settings import ServerSettings
from tests.serving.conftest import make_toy, toy_schema
from tests.serving.loadtest.slow_server import slow_server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    models = tmp_path_factory.mktemp("models")
    make_toy().write(models, version=3)
    with EmbeddedServer(models, settings=ServerSettings(num_threads=1)) as server:
        yield server


def loadtest(url: str, *options: str, model: str = "toy") -> int:
    return main(["loadtest", "--url", url, "--model", model, "--warm-up", "0", "--arrivals", "constant", *options])


@pytest.mark.parametrize(("protocol", "form"), [("http", "binary"), ("http", "json"), ("http", "rows"), ("grpc", "binary")])
def test_every_form_is_answered_and_counted(
    server: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], protocol: str, form: str
) -> None:
    url, path = server.http_url if protocol == "http" else server.grpc_url, tmp_path / "x.json"
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"user": 100, "item": [1]}\n{"user": -7}\n')
    assert loadtest(url, "--rate", "50", "--duration", "0.4", "--form", form, "--rows", "3", "--input", str(rows), "--json", str(path)) == 0
    found = json.loads(path.read_text())
    (step,) = found["steps"]
    assert (step["asked"], step["good"], step["errors"], step["versions"]) == (20, 20, {}, {"3": 20})
    assert (found["model"], found["rows"], found["form"], found["interrupted"], found["broken"]) == ("toy", 3, form, False, [])
    assert step["by_second"][0]["asked"] == 20
    if not step["load_test"]["was_too_slow"]:
        assert sum(count for _, _, count in step["histogram_ms"]) == 20
        assert 0 < step["latency_ms"]["p50"] <= step["latency_ms"]["p99"] <= step["latency_ms"]["max"]
    assert re.search(r"^ +50 +[\d.]+ +20 +0 ", capsys.readouterr().out, re.M)


def test_the_server_saw_as_many_as_were_told(server: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def counted() -> int:
        with urllib.request.urlopen(f"{server.http_url}/v2/models/toy/stats") as answer:
            return int(json.load(answer)["model_stats"][0]["inference_stats"]["success"]["count"])

    before, path = counted(), tmp_path / "x.json"
    assert loadtest(server.http_url, "--rate", "max", "--connections", "2", "--duration", "0.3", "--json", str(path)) == 0
    (step,) = json.loads(path.read_text())["steps"]
    assert step["rate_asked"] is None
    assert counted() - before == step["asked"] == step["good"] > 0
    assert re.search(r"^ +max +[\d,.]+ +[\d,]+ +0 ", capsys.readouterr().out, re.MULTILINE)


def test_a_picture_shows_times_and_failures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from emberline.serving.loadtest.chart import BARS, HEIGHT, LEFT, TOP

    path = tmp_path / "x.png"
    with slow_server(toy_schema(), lambda number: (0.02, 500 if number % 4 == 0 else 200)) as slow:
        assert loadtest(slow.url, "--rate", "20,40", "--duration", "0.5", "--png", str(path), model="slow") == 0
    with Image.open(path) as image:
        pixels = image.convert("RGB")
        colours = {colour for _, colour in pixels.getcolors(1 << 20) or []}
        assert {(20, 80, 160), (200, 120, 0), (200, 30, 30), *BARS[:2]} <= colours
        assert pixels.getpixel((LEFT + 225, TOP + HEIGHT)) == (200, 30, 30)  # the first second's failures
    out = capsys.readouterr().out
    assert "errors: 3 internal; latencies are of good answers only" in out
    assert "errors: 5 internal" in out


@pytest.mark.parametrize(("limit", "status", "told"), [("0.01", 1, "broken: 40: 1 of 20 requests failed (5.00%); it may be 1.00%"), ("0.05", 0, "")])
def test_a_limit_decides_the_status(limit: str, status: int, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with slow_server(toy_schema(), lambda number: (0.0, 400 if number == 3 else 200)) as slow:
        assert loadtest(slow.url, "--rate", "40", "--duration", "0.5", "--max-errors", limit, model="slow") == status
    out = capsys.readouterr().out
    assert told in out
    assert ("broken" in out) == bool(status)


def test_a_token_is_shown(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("open-sesame-open-sesame\n")
    with slow_server(toy_schema(), lambda _: (0.0, 200)) as slow:
        assert loadtest(slow.url, "--rate", "20", "--duration", "0.2", "--token-file", str(token), model="slow") == 0
        assert len(slow.heads) == 4
        assert all("authorization: bearer open-sesame-open-sesame" in head.lower() for head in slow.heads)


def test_ctrl_c_tells_what_was_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with slow_server(toy_schema(), lambda _: (0.01, 200)) as slow:

        def interrupt() -> None:
            deadline = time.monotonic() + 50
            while len(slow.bodies) < 20 and time.monotonic() < deadline:
                time.sleep(0.02)
            os.kill(os.getpid(), signal.SIGINT)

        before = signal.getsignal(signal.SIGINT)
        pressing = threading.Thread(target=interrupt)
        pressing.start()
        assert loadtest(slow.url, "--rate", "50", "--duration", "60", "--json", str(tmp_path / "x.json"), model="slow") == 130
        pressing.join()
        assert signal.getsignal(signal.SIGINT) is before
    assert capsys.readouterr().out.endswith("It was stopped before its end.\n")
    step = json.loads((tmp_path / "x.json").read_text())["steps"][0]
    assert step["asked"] == step["good"] + step["given_up"] >= 20


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--url", "file:///x", "--rate", "1"), "must be http://host:port"),
        (("--rate", "1", "--input", "x", "--unknown-share", "0.1"), "--unknown-share is for rows that are made"),
        (("--rate", "1", "--json", "/nowhere/x.json"), "there is no folder /nowhere"),
    ],
)
def test_what_makes_no_sense_is_refused(options: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["loadtest", "--url", "http://127.0.0.1:9", "--model", "m", *options]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("rate", ["0", "-1", "nan", "inf", "fast", "", "1,,2", "max,1", "1e9"])
def test_rates_are_numbers_above_0(rate: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["loadtest", "--url", "http://127.0.0.1:9", "--model", "m", f"--rate={rate}"])
    assert "is no rate: a number of requests a second" in capsys.readouterr().err


def test_a_server_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    with slow_server(toy_schema(), lambda _: (0.0, 200)) as slow:
        gone = slow.url
    assert loadtest(gone, "--rate", "1", "--timeout", "2", model="slow") == 1
    assert "cannot reach" in capsys.readouterr().err
