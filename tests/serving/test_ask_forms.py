"""`emberline predict --users` and `lookup --users`: users once, and their rows, against the same rows written out; and models in this process."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from emberline.cli import main
from emberline.errors import ServingError
from emberline.serving import Engine
from emberline.serving.ask import _lengths_of
from emberline.serving.server import EmbeddedServer
from emberline.serving.settings import ServerSettings
from tests.serving.conftest import make_toy, steps_schema
from tests.serving.tiles import tiled_steps_toy, tiled_toy

USERS: list[dict[str, Any]] = [
    {"user": {"user": 100, "tags": {"a": 0.5, "b": -1}}, "rows": [{"item": [1, 2], "price": 2}, {"item": [3], "city": 7}, {}]},
    {"user": {"user": str(2**62), "vector": [1.5, -2]}, "rows": []},
    {"user": {}, "rows": [{"item": [4]}]},
    {"user": {"user": None, "city": 3}, "rows": [{"price": 0.25}, {"item": []}]},
]
ROWS = [{**user["user"], **row} for user in USERS for row in user["rows"]]
STEP_USERS: list[dict[str, Any]] = [
    {"user": {"clicks": [100, 5], "words": [["a"], []], "prices": [[1, 2], [3, 4]]}, "rows": [{"user": 100}, {}]},
    {"user": {"clicks": [-7], "words": [["b", "c"]], "prices": [[5, 6]]}, "rows": [{"user": -7}]},
    {"user": {}, "rows": [{}]},
]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for model in (tiled_toy(), tiled_steps_toy(), make_toy(name="plain")):
        model.write(folder)
    return folder


@pytest.fixture(scope="module")
def server(models: Path) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(models, settings=ServerSettings(num_threads=1)) as server:
        yield server


@pytest.fixture(scope="module")
def engine(models: Path) -> Engine:
    return Engine.open(models / "toy")


@pytest.fixture(params=["http", "grpc", "here"])
def place(request: pytest.FixtureRequest, server: EmbeddedServer, models: Path) -> list[str]:
    return {"http": ["--url", server.http_url], "grpc": ["--url", server.grpc_url], "here": ["--models", str(models)]}[request.param]


def ask(call: str, place: list[str], path: Path, lines: list[dict[str, Any]], out: Any, *options: str, model: str = "toy") -> list[dict[str, Any]]:
    path.write_text("\n\n".join(json.dumps(line) for line in lines))
    assert main([call, *place, "--model", model, "--input", str(path), *options]) == 0
    return [json.loads(line) for line in out.readouterr().out.splitlines()]


def near(row: dict[str, Any]) -> dict[str, Any]:
    return {name: pytest.approx(value, rel=1e-5, abs=1e-6) for name, value in row.items()}


@pytest.mark.parametrize(("call", "batch_rows"), [("predict", "2"), ("lookup", "1000")])
def test_users_are_answered_as_their_rows_written_out(
    place: list[str], engine: Engine, tmp_path: Path, capfdbinary: Any, call: str, batch_rows: str
) -> None:
    lines = ask(call, place, tmp_path / "users.jsonl", USERS, capfdbinary, "--users", "--batch-rows", batch_rows)
    want = getattr(engine, call)(engine.encode_rows(ROWS))
    rows = iter([{name: values[row].tolist() for name, values in want.items()} for row in range(len(ROWS))])
    assert lines == [{"rows": [near(next(rows)) for _ in user["rows"]]} for user in USERS]
    written_out = ask(call, place, tmp_path / "rows.jsonl", ROWS, capfdbinary)
    assert [row for line in lines for row in line["rows"]] == [near(row) for row in written_out]


def test_users_and_rows_are_explained_each_on_their_side(place: list[str], tmp_path: Path, capfdbinary: Any) -> None:
    lines = ask("predict", place, tmp_path / "users.jsonl", USERS, capfdbinary, "--users", "--explain", "--only", "probs", "--batch-rows", "2")
    written_out = iter(ask("predict", place, tmp_path / "rows.jsonl", ROWS, capfdbinary, "--explain"))
    assert [len(line["rows"]) for line in lines] == [3, 0, 1, 2]
    for line in lines:
        assert set(line["explain"]) == {"user", "tags", "vector"}
        for row in line["rows"]:
            assert list(row) == ["probs", "explain"]
            assert {**line["explain"], **row["explain"]} == next(written_out)["explain"]
    assert lines[1]["explain"]["vector"] == {"given": [1.5, -2], "numbers": [1.5, -2.0]}
    assert lines[3]["rows"][1]["explain"]["city"] == {"given": 3, "ids": [3], "known": [True]}


def test_steps_of_users_are_cut_by_row(place: list[str], tmp_path: Path, capfdbinary: Any) -> None:
    lines = ask("lookup", place, tmp_path / "users.jsonl", STEP_USERS, capfdbinary, "--users", "--only", "jag.sequence", model="steps")
    rows = [{**user["user"], **row} for user in STEP_USERS for row in user["rows"]]
    want = ask("lookup", place, tmp_path / "rows.jsonl", rows, capfdbinary, "--only", "jag.sequence", model="steps")
    assert [len(row["jag.sequence"]) for line in lines for row in line["rows"]] == [2, 2, 1, 0]
    assert [row for line in lines for row in line["rows"]] == want


def test_nothing_in_gives_nothing_out(place: list[str], tmp_path: Path, capfdbinary: Any) -> None:
    assert ask("predict", place, tmp_path / "users.jsonl", [], capfdbinary, "--users") == []
    lone: list[dict[str, Any]] = [{"user": {}, "rows": []}]
    assert ask("predict", place, tmp_path / "users.jsonl", lone, capfdbinary, "--users") == [{"rows": []}]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"user": {"user": 5.5}, "rows": [{}]}', "line 9: the user: feature 'user': 5.5 is not a whole number"),
        ('{"user": {}, "rows": [{}, {"price": "x"}]}', "line 9: row 1: feature 'price': 'x' is not a number"),
        ('{"user": {}, "rows": [{"user": 1}]}', "line 9: row 0: column 'user' is the user's: give it in users, once for all rows"),
        ('{"user": {"usr": 1}, "rows": []}', "line 9: the user: there is no column 'usr'"),
        ('{"user": {"city": 1}, "rows": [{"city": 2}]}', "line 9: row 0: column 'city' is given by the row and by its user"),
        ('{"user": {}}', 'line 9: the line must be {"user": {column: value}, "rows": [{column: value}, ...]}; it has "user"'),
        ('{"item": 3}', 'line 9: the line must be {"user"'),
        ('{"user": [], "rows": []}', "line 9: user must be an object of columns and values, not an array"),
        ('{"user": {}, "rows": {}}', "line 9: rows must be an array of objects, not an object"),
        ('{"user": {}, "rows": [{}, 3]}', "line 9: row 1 must be an object of columns and values, not a number"),
        ('{"user": {}', "line 9: the line is not JSON"),
        ("[]", "line 9: the line must be a JSON object, not an array"),
    ],
)
def test_a_bad_line_is_told_by_number(models: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], line: str, problem: str) -> None:
    path = tmp_path / "users.jsonl"
    path.write_text("\n\n".join(json.dumps(user) for user in USERS) + "\n\n" + line)
    command = ["predict", "--models", str(models), "--model", "toy", "--input", str(path), "--users", "--output", str(tmp_path / "out")]
    assert main(command) == 1
    assert capfd.readouterr().err.startswith(f"emberline: error: {path}, {problem}")
    assert not (tmp_path / "out").exists()


def test_a_model_without_sides_refuses_users_by_feature(place: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "users.jsonl"
    path.write_text(json.dumps(USERS[0]))
    assert main(["predict", *place, "--model", "plain", "--input", str(path), "--users", "--explain"]) == 1
    assert "feature 'user': has no side, the user's or the item's" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--model", "nope"], 'there is no model "nope" in '),
        (["--model", "../models"], 'there is no model "../models" in '),
        (["--version", "9"], 'model "toy" has no version "9" in '),
        (["--version", "../plain/1"], 'model "toy" has no version "../plain/1" in '),
        (["--models", "/nope"], 'there is no model "toy" in /nope'),
    ],
)
def test_a_model_that_is_not_in_the_folder_is_told(
    models: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], options: list[str], problem: str
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("{}")
    assert main(["predict", "--models", str(models), "--model", "toy", "--input", str(path), *options]) == 1
    assert f"emberline: error: {problem}" in capfd.readouterr().err


def test_a_server_and_a_folder_at_once_are_refused(models: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["predict", "--models", str(models), "--url", "http://127.0.0.1:9", "--model", "toy", "--input", "-"])
    assert "not allowed with argument" in capfd.readouterr().err


def test_help_shows_the_form_of_a_user(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["predict", "--help"])
    assert ended.value.code == 0
    assert '{"user": {"age": 31}, "rows": [{"item_id": 4}, {"item_id": 5}]}' in capfd.readouterr().out


def test_a_group_whose_steps_nothing_counts_is_told() -> None:
    schema = steps_schema()
    jagged = next(group for group in schema.groups if group.is_jagged)
    assert _lengths_of(schema, jagged) == "seq.sequence_length"
    with pytest.raises(ServingError, match="counts the steps that each row has in 'jag\\.sequence'"):
        _lengths_of(replace(schema, groups=(jagged,)), jagged)
