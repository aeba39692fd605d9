"""Plain rows that ask how they were read: against what `emberline predict --explain` tells of the same rows, and against the tables' owners."""

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from emberline.schema import ModelSchema
from emberline.serving import Client, Engine, PackedRequest
from emberline.serving.explained import explain_request, explain_rows, explain_sides
from emberline.serving.server import EmbeddedServer
from emberline.serving.settings import ServerSettings
from emberline.serving.tiled_rows import TiledRows
from tests.serving.conftest import dense, make_steps_toy, make_toy
from tests.serving.tiles import tiled_toy

ROWS: list[dict[str, Any]] = [
    {"user": [100, 2**63 - 1, -(2**63)], "item": [1, 2], "price": 1.5, "tags": {"a": 0.5}, "vector": [1, 2]},
    {"city": 77, "user": "-7"},
    {},
]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for model in (make_toy(name="plain"), tiled_toy(), make_steps_toy()):
        model.write(folder)
    return folder


@pytest.fixture(scope="module")
def server(models: Path) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(models, settings=ServerSettings(num_threads=1)) as server:
        yield server


def ask(server: EmbeddedServer, model: str, body: Any, verb: str = "predict") -> tuple[int, Any]:
    connection = http.client.HTTPConnection(server.http_url.removeprefix("http://"), timeout=20)
    try:
        connection.request("POST", f"/v1/models/{model}:{verb}", body if isinstance(body, bytes) else json.dumps(body).encode())
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def test_each_id_is_told_with_whether_it_has_a_row(server: EmbeddedServer) -> None:
    status, answer = ask(server, "plain", {"rows": ROWS, "explain": True})
    assert status == 200
    first, second, third = answer["explain"]["rows"]
    assert first["user"] == {"given": [100, 2**63 - 1, -(2**63)], "ids": [100, 2**63 - 1, -(2**63)], "known": [True, False, False]}
    assert first["tags"]["weights"] == [0.5]
    assert first["vector"] == {"given": [1, 2], "numbers": [1.0, 2.0]}
    assert second["user"] == {"given": "-7", "ids": [-7], "known": [True]}
    assert third["user"] == {"ids": [], "known": []}


@pytest.mark.parametrize("verb", ["predict", "lookup"])
def test_an_explanation_changes_no_answer_and_is_the_command_lines(server: EmbeddedServer, models: Path, verb: str) -> None:
    _, plain = ask(server, "plain", {"rows": ROWS}, verb)
    _, answer = ask(server, "plain", {"rows": ROWS, "explain": True}, verb)
    schema = Engine.open(models / "plain").schema
    with Client(server.http_url, "plain") as client:
        wanted = explain_rows(schema, ROWS, client.known(ROWS))
    assert answer == {**plain, "explain": {"rows": json.loads(json.dumps(wanted))}}
    assert ask(server, "plain", {"rows": ROWS, "explain": False}, verb)[1] == plain


def test_users_are_explained_beside_their_rows(server: EmbeddedServer) -> None:
    users: list[dict[str, Any]] = [{"user": [100, 5], "city": 3}, {"vector": [1, 2]}]
    rows: list[list[dict[str, Any]]] = [[{"item": [4]}, {"item": [5, 6], "price": 2}], []]
    status, answer = ask(server, "toy", {"users": users, "rows": rows, "explain": True, "outputs": ["probs"]})
    with Client(server.http_url, "toy") as client:
        wanted = explain_sides(client.schema, TiledRows(users, rows), client.known(rows, users=users))
    assert (status, list(answer["outputs"])) == (200, ["probs"])
    assert answer["explain"] == {"users": wanted[0], "rows": wanted[1]}
    assert answer["explain"]["users"][0]["user"]["known"] == [True, False]


def test_steps_are_explained_one_by_one(server: EmbeddedServer) -> None:
    row = {"clicks": [100, 6], "words": [{"a": 2.0}, {}], "prices": [[1, 2], [3, 4]]}
    status, answer = ask(server, "steps", {"rows": [row], "explain": True})
    assert status == 200
    (told,) = answer["explain"]["rows"]
    assert told["clicks"]["ids"] == [[100], [6]]
    assert told["clicks"]["known"] == [[True], [False]]
    assert told["words"]["weights"] == [[2.0], []]


def test_no_rows_are_explained_as_none(server: EmbeddedServer) -> None:
    status, answer = ask(server, "plain", {"rows": [], "explain": True})
    assert (status, answer["explain"]) == (200, {"rows": []})


def test_what_json_cannot_say_exactly_is_told_as_text(server: EmbeddedServer) -> None:
    status, answer = ask(server, "plain", {"rows": [{"tags": {str(10**30): 1}, "price": 10**25}], "explain": True})
    assert status == 200
    told = answer["explain"]["rows"][0]
    assert told["tags"]["given"] == {str(10**30): 1}
    assert (told["price"]["given"], told["price"]["numbers"]) == (str(10**25), [float(np.float32(1e25))])
    status, answer = ask(server, "plain", b'{"rows": [{"tags": ["\\ud800"]}], "explain": true}')
    assert status == 200 or "tags" in answer["error"]


@pytest.mark.parametrize("value", [1, "yes", None, []])
def test_explain_is_true_or_false(server: EmbeddedServer, value: Any) -> None:
    status, answer = ask(server, "plain", {"rows": [], "explain": value})
    assert status == 400
    assert answer["error"].startswith("explain must be true or false, not ")


def test_a_model_without_ids_is_explained_by_its_numbers() -> None:
    schema = ModelSchema(features=(dense("price", 1), dense("vector", 2)), tables=(), lookups=(), groups=())
    found = explain_request(schema, [{"price": 3}], PackedRequest(dense=np.array([3, 0, 0], np.float32)), None)
    assert found == {"rows": [{"price": {"given": 3, "numbers": [3.0]}, "vector": {"numbers": [0.0, 0.0]}}]}
