"""`emberline predict`, `lookup` and `serve` as typed."""

import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import xxhash

from emberline.cli import main
from emberline.serving import Engine, cli
from emberline.serving.limits import RequestLimits
from emberline.serving.server import EmbeddedServer
from emberline.serving.settings import ServerSettings
from emberline.serving.triton import launcher
from emberline.serving.triton.settings import TritonSettings
from tests.serving.conftest import make_steps_toy

EXACT = 2**53 + 1
ROWS: list[dict[str, Any]] = [{"user": 100, "item": [1]}, {"user": str(2**62), "price": 2}, {}]


@pytest.fixture
def server(toy_artifact: Path) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(toy_artifact, settings=ServerSettings(num_threads=1)) as server:
        yield server


@pytest.fixture
def rows_file(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n\n".join(json.dumps(row) for row in ROWS) + "\n")
    return path


def want(artifact: Path, call: str) -> list[dict[str, Any]]:
    engine = Engine.open(artifact, num_threads=1)
    found = getattr(engine, call)(engine.encode_rows(ROWS))
    return [{name: values[row].tolist() for name, values in found.items()} for row in range(len(ROWS))]


def close(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> bool:
    return found == [{name: pytest.approx(value, rel=1e-5, abs=1e-6) for name, value in row.items()} for row in expected]


@pytest.mark.parametrize("call", ["predict", "lookup"])
@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("batch_rows", ["2", "1000"])
def test_one_line_comes_out_for_each_row(
    server: EmbeddedServer, toy_artifact: Path, rows_file: Path, capfdbinary: Any, call: str, protocol: str, batch_rows: str
) -> None:
    url = server.http_url if protocol == "http" else server.grpc_url
    assert main([call, "--url", url, "--model", "toy", "--input", str(rows_file), "--batch-rows", batch_rows]) == 0
    lines = [json.loads(line) for line in capfdbinary.readouterr().out.splitlines()]
    assert close(lines, want(toy_artifact, call))


def test_explain_adds_how_each_row_was_read(server: EmbeddedServer, toy_artifact: Path, tmp_path: Path, capfdbinary: Any) -> None:
    rows = [
        {"user": str(EXACT), "item": [1, 2], "city": 99, "price": 2, "tags": {"a": 0.5, "b": -1}},
        {"user": 100, "vector": [1.5, -2]},
        {"user": None},
    ]
    path = tmp_path / "explained.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    command = ["predict", "--url", server.http_url, "--model", "toy", "--input", str(path), "--batch-rows", "2"]
    assert main([*command, "--only", "probs", "--explain"]) == 0
    lines = [json.loads(line) for line in capfdbinary.readouterr().out.splitlines()]
    assert [list(line) for line in lines] == [["probs", "explain"]] * 3
    first, second, third = [line["explain"] for line in lines]
    tags = [xxhash.xxh64_intdigest(text) % 20 for text in (b"a", b"b")]
    nothing: dict[str, list[Any]] = {"ids": [], "known": []}
    assert first == {
        "user": {"given": str(EXACT), "ids": [EXACT], "known": [False]},
        "price": {"given": 2, "numbers": [2.0]},
        "item": {"given": [1, 2], "ids": [1, 2], "known": [True, True]},
        "city": {"given": 99, "ids": [5], "known": [True]},
        "tags": {"given": {"a": 0.5, "b": -1}, "ids": tags, "known": [True, True], "weights": [0.5, -1.0]},
        "vector": {"numbers": [0.0, 0.0]},
    }
    assert second["user"] == {"given": 100, "ids": [100], "known": [True]}
    assert second["vector"] == {"given": [1.5, -2], "numbers": [1.5, -2.0]}
    numbers = {"price": {"numbers": [0.0]}, "vector": {"numbers": [0.0, 0.0]}}
    assert third == {"user": nothing, "item": nothing, "city": nothing, "tags": nothing | {"weights": []}, **numbers}


STEP_ROWS: list[dict[str, Any]] = [
    {"user": 100, "clicks": [100, 5], "words": [["a"], []], "prices": [[1, 2], [3, 4]]},
    {},
    {"clicks": [-7], "words": [["b", "c"]], "prices": [[5, 6]]},
]


def test_sequences_are_answered_and_explained_row_by_row(tmp_path: Path, capfdbinary: Any) -> None:
    make_steps_toy().write(tmp_path / "models")
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in STEP_ROWS))
    with EmbeddedServer(tmp_path / "models", settings=ServerSettings(num_threads=1)) as server:
        command = ["lookup", "--url", server.grpc_url, "--model", "steps", "--input", str(path), "--explain"]
        assert main([*command, "--only", "jag.sequence"]) == 0
    lines = [json.loads(line) for line in capfdbinary.readouterr().out.splitlines()]
    engine = Engine.open(tmp_path / "models" / "steps", num_threads=1)
    steps = engine.lookup(engine.encode_rows(STEP_ROWS))["jag.sequence"].tolist()
    assert [list(line) for line in lines] == [["jag.sequence", "explain"]] * 3
    assert [line["jag.sequence"] for line in lines] == [[pytest.approx(step) for step in part] for part in (steps[:2], [], steps[2:])]
    first, second, third = [line["explain"] for line in lines]
    assert first["clicks"] == {"given": [100, 5], "ids": [[100], [5]], "known": [[True], [False]]}
    assert (second["clicks"], second["prices"]) == ({"ids": [], "known": []}, {"numbers": []})
    assert first["prices"] == {"given": [[1, 2], [3, 4]], "numbers": [[1.0, 2.0], [3.0, 4.0]]}
    words = [xxhash.xxh64_intdigest(text) % 20 for text in (b"a", b"b", b"c")]
    assert first["words"] == {"given": [["a"], []], "ids": [words[:1], []], "known": [[True], []], "weights": [[1.0], []]}
    assert third["words"] == {"given": [["b", "c"]], "ids": [words[1:]], "known": [[True, True]], "weights": [[1.0, 1.0]]}


def test_standard_input_is_read_and_a_file_written(server: EmbeddedServer, rows_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(rows_file.read_bytes())))
    target = tmp_path / "answers.jsonl"
    assert main(["predict", "--url", server.http_url, "--model", "toy", "--input", "-", "--output", str(target), "--only", "probs"]) == 0
    assert [list(json.loads(line)) for line in target.read_text().splitlines()] == [["probs"]] * 3


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"user": 5.5}', "line 7: feature 'user': 5.5 is not a whole number"),
        ('{"usr": 5}', 'line 7: the model reads no column "usr"; it reads user, price, item, city, tags, vector'),
        ('{"user": 5', "line 7: the row is not JSON"),
        ("[1]", "line 7: the row must be a JSON object, not an array"),
        ('{"user": 1, "user": 2}', 'line 7: the key "user" comes twice'),
    ],
)
def test_a_bad_line_is_told_by_number_and_no_file_is_left(
    server: EmbeddedServer, rows_file: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], line: str, problem: str
) -> None:
    with rows_file.open("a") as stream:
        stream.write("\n" + line + "\n")
    target = tmp_path / "answers.jsonl"
    command = ["predict", "--url", server.http_url, "--model", "toy", "--input", str(rows_file), "--output", str(target), "--batch-rows", "2"]
    assert main(command) == 1
    error = capfd.readouterr().err
    assert error.startswith(f"emberline: error: {rows_file}, {problem}")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["models", "rows.jsonl"]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--model", "nope"], 'there is no model "nope"; this server has toy'),
        (["--version", "9"], 'model "toy" has no version "9" here'),
        (["--only", "nope"], "the model has no output 'nope'; it has probs, scores"),
        (["--input", "/nope/rows"], "/nope/rows cannot be read: No such file or directory"),
        (["--output", "/nope/rows"], "/nope/rows cannot be written: No such file or directory"),
        (["--url", "grpc://127.0.0.1:9"], "cannot reach grpc://127.0.0.1:9"),
    ],
)
def test_what_cannot_be_asked_is_told(
    server: EmbeddedServer, rows_file: Path, capfd: pytest.CaptureFixture[str], options: list[str], problem: str
) -> None:
    command = ["predict", "--url", server.http_url, "--model", "toy", "--input", str(rows_file), *options]
    assert main(command) == 1
    assert f"emberline: error: {problem}" in capfd.readouterr().err


@pytest.mark.parametrize(
    "options",
    [
        ["serve"],
        ["serve", "models", "--http-port", "65536"],
        ["serve", "models", "--grpc-port", "-1"],
        ["serve", "models", "--backend", "other"],
        ["serve", "models", "--timeout", "0"],
        ["serve", "models", "--threads", "0"],
        ["predict", "--url", "http://x"],
        ["predict", "--url", "http://x", "--model", "m", "--input", "-", "--batch-rows", "x"],
        ["lookup", "--url", "http://x", "--model", "m", "--input", "-", "--timeout", "nan"],
        ["serve", "models", "--row-growth", "-0.1"],
        ["serve", "models", "--row-growth", "much"],
    ],
)
def test_a_wrong_command_line_ends_with_status_2(options: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(options)
    assert ended.value.code == 2
    assert "usage: emberline" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--backend", "triton", "--max-request-mib", "3"], "--max-request-mib is for the embedded server"),
        (["--device", "cuda"], "--device is for --backend triton"),
        (["--instances", "2"], "--instances is for --backend triton"),
        (["--by-feature"], "--by-feature is for --backend triton"),
        (["--max-waiting", "9"], "--max-waiting is for --backend triton"),
        (["--backend", "triton", "--device", "tpu"], "Triton runs models on cpu, cuda (every GPU) or cuda:<number>, not on 'tpu'"),
    ],
)
def test_an_option_of_the_other_backend_is_refused(options: list[str], message: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "models", *options]) == 2
    assert message in capfd.readouterr().err


@pytest.mark.parametrize(
    ("options", "allowed"),
    [
        ([], True),
        (["--no-model-control"], False),
        (["--host", "0.0.0.0"], False),
        (["--host", "0.0.0.0", "--model-control"], True),
    ],
)
def test_who_may_change_models_is_told(options: list[str], allowed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[ServerSettings] = []

    def serve(models: object, settings: ServerSettings) -> int:
        found.append(settings)
        return 0

    monkeypatch.setattr(cli, "_serve_embedded", serve)
    assert main(["serve", "models", *options]) == 0
    assert [settings.allows_model_control for settings in found] == [allowed]


@pytest.mark.parametrize("backend", ["embedded", "triton"])
def test_how_large_requests_and_tables_may_be_reaches_either_server(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[tuple[RequestLimits, float | None]] = []

    def serve(models: object, settings: ServerSettings | TritonSettings, **rest: object) -> int:
        limits = settings.limits if isinstance(settings, TritonSettings) else settings.request_limits
        found.append((limits, settings.row_growth))
        return 0

    monkeypatch.setattr(cli, "_serve_embedded", serve)
    monkeypatch.setattr(launcher, "serve_triton", serve)
    command = ["serve", "models", "--backend", backend]
    given = ["--max-request-rows", "3", "--max-request-ids", "4", "--max-padded-steps", "5", "--row-growth", "0.5"]
    assert main([*command, *given]) == main(command) == 0
    assert found == [(RequestLimits(rows=3, ids=4, padded_steps=5), 0.5), (RequestLimits(), None)]


def test_a_folder_without_models_is_told(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", str(tmp_path), "--http-port", "0", "--grpc-port", "0"]) == 1
    assert f"emberline: error: {tmp_path}: no models here" in capfd.readouterr().err


def test_a_missing_package_is_told_with_what_installs_it(
    toy_artifact: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert main(["serve", str(toy_artifact)]) == 1
    assert "the embedded server needs the package 'uvloop': `pip install 'emberline[serve]'`" in capfd.readouterr().err
