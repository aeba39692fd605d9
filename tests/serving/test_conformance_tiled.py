"""Tiled requests at every server, over every protocol and by the client: the answers of the same rows written out, and the same refusals."""

import json
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from emberline.errors import RequestError
from emberline.serving import Client, Engine
from emberline.serving.request import PackedRequest
from tests.serving.tiles import Tiled, draw_tiled, tiled_steps_toy, tiled_toy
from tests.serving.ways import Urls, Way, fails, same

MODELS = {"toy": tiled_toy(), "mixed": tiled_steps_toy(("user", "clicks", "prices"), "mixed")}
Arrays = dict[str, npt.NDArray[Any]]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    models = tmp_path_factory.mktemp("models")
    for model in MODELS.values():
        model.write(models)
    return models


@pytest.fixture(scope="module")
def engines(models: Path) -> dict[str, Engine]:
    return {name: Engine.open(models / name, num_threads=1) for name in MODELS}


def names_of(engine: Engine) -> list[str]:
    return [name for name in engine.answer_names if name != "known"]


def written_out(engine: Engine, tiled: Tiled) -> dict[str, npt.NDArray[Any]]:
    (found,) = engine.predict_many([PackedRequest(**tiled.untiled())], [names_of(engine)])
    assert isinstance(found, dict)
    return {name: answer.numpy() for name, answer in found.items()}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("rows_per_user", [[40], [2, 0, 3], [], [0]], ids=str)
def test_answers_are_those_of_the_rows_written_out(way: Way, engines: dict[str, Engine], name: str, rows_per_user: list[int]) -> None:
    engine, tiled = engines[name], draw_tiled(MODELS[name].schema, rows_per_user, seed=5)
    arrays = tiled.tiled()
    found = way.infer(arrays, [*names_of(engine), "known"], model=name)
    for answer, wanted in written_out(engine, tiled).items():
        if answer.startswith("lookup."):
            assert np.array_equal(found.as_numpy(answer)[0], wanted), answer
        same(found.as_numpy(answer), wanted[None])
    assert found.as_numpy("known").tolist() == [engine.known(PackedRequest(**arrays)).tolist()]


def test_the_model_tells_of_its_optional_inputs(way: Way) -> None:
    kwargs = {} if way.is_http else {"as_json": True}
    config = way.call("get_model_config", "toy", **kwargs)
    config = config if way.is_http else config["config"]
    inputs = {tensor["name"]: (tensor["data_type"], bool(tensor.get("optional", False))) for tensor in config["input"]}
    assert inputs["rows_per_user"] == ("TYPE_INT32", True)
    assert inputs["user_dense"] == ("TYPE_FP32", True)
    assert inputs["dense"] == ("TYPE_FP32", False)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"rows_per_user": np.array([2, -1], np.int32)}, "rows_per_user: -1 is negative"),
        ({"rows_per_user": np.array([2, 2], np.int32)}, "lengths holds"),
        ({"rows_per_user": np.array([2**31 - 1, 1], np.int32)}, "rows"),
        ({"rows_per_user": np.array([2, 1], np.float32)}, "rows_per_user"),
        ({"user_dense": np.zeros(3, np.float32)}, "user_dense"),
    ],
)
def test_malformed_ones_are_refused_by_name(way: Way, change: Arrays, named: str) -> None:
    arrays = draw_tiled(MODELS["toy"].schema, [2, 1], seed=1).tiled() | change
    status, message = fails(lambda: way.infer(arrays, ["probs"]))
    assert status in ("INVALID_ARGUMENT", "TOO_LARGE", "RESOURCE_EXHAUSTED")
    assert named in message


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_tiled_and_untiled_requests_at_once_get_their_own_answers(urls: Urls, engines: dict[str, Engine], protocol: str) -> None:
    way, engine = Way(protocol, urls[protocol].partition("://")[2]), engines["toy"]

    def ask(seed: int) -> None:
        tiled = draw_tiled(MODELS["toy"].schema, [seed % 4, 2], seed)
        found = way.infer(tiled.tiled() if seed % 2 else tiled.untiled(), names_of(engine))
        for answer, wanted in written_out(engine, tiled).items():
            same(found.as_numpy(answer), wanted[None])

    with ThreadPoolExecutor(8) as pool:
        assert len(list(pool.map(ask, range(24)))) == 24


USERS: list[dict[str, Any]] = [{"user": "100", "tags": {"a": 0.5}, "vector": [1, 2]}, {"user": -7}, {"user": 5}]
ROWS: list[list[dict[str, Any]]] = [[{"item": [1, 2], "price": 3}, {"item": 4, "city": 99}, {}], [], [{"price": 1.5}, {"item": 9}]]
PLAIN = [{**user, **row} for user, own in zip(USERS, ROWS, strict=True) for row in own]


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("max_rows", [2, 100])
def test_the_client_takes_users_with_their_rows(urls: Urls, engines: dict[str, Engine], protocol: str, max_rows: int) -> None:
    engine = engines["toy"]
    plain = engine.encode_rows(PLAIN)
    with Client(urls[protocol], "toy", max_rows=max_rows) as client:
        outputs, groups = client.predict(ROWS, users=USERS), client.lookup(ROWS, ["deep"], users=USERS)
        known = client.known(ROWS, users=USERS)
        flat = client.predict([row for rows in ROWS for row in rows], users=USERS, rows_per_user=[3, 0, 2])
        with pytest.raises(RequestError, match=r"^row 0: column 'user' is the user's"):
            client.predict([[{"user": 1}]], users=[{}])
        with pytest.raises(RequestError, match=r"^rows_per_user is there, but users"):
            client.predict([{}], rows_per_user=[1])
    for name, wanted in engine.predict(plain).items():
        same(outputs[name], wanted.numpy())
        same(flat[name], wanted.numpy())
    assert np.array_equal(groups["deep"], engine.lookup(plain)["deep"].numpy())
    assert {name: values.tolist() for name, values in known.items()} == {
        "user": [True, True, False],
        "item": [True] * 4,
        "city": [True],
        "tags": [True],
    }


def post(url: str, body: object) -> dict[str, Any]:
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode()), timeout=30) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


def test_plain_rows_come_under_their_users(urls: Urls, engines: dict[str, Engine]) -> None:
    if urls["server"] == "triton":
        pytest.skip("Triton has no form of plain rows")
    engine, place = engines["toy"], f"{urls['http']}/v1/models/toy"
    plain = engine.encode_rows(PLAIN)
    found = post(f"{place}:predict", {"users": USERS, "rows": ROWS})["outputs"]
    for name, wanted in engine.predict(plain).items():
        same(np.array(found[name], np.float32), wanted.numpy())
    found = post(f"{place}:lookup", {"users": USERS, "rows": ROWS, "outputs": ["wide"]})["outputs"]
    assert np.array_equal(np.array(found["wide"], np.float32), engine.lookup(plain)["wide"].numpy())
    assert post(f"{place}:predict", {"users": [], "rows": []})["outputs"]["probs"] == []
    with urllib.request.urlopen(f"{urls['http']}/openapi.json", timeout=30) as answer:
        paths = json.load(answer)["paths"]
    examples = paths["/v1/models/{model}:predict"]["post"]["requestBody"]["content"]["application/json"]["examples"]
    assert len(post(f"{place}:predict", examples["toy, tiled"]["value"])["outputs"]["probs"]) == 2


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"users": [{}]}, "rows, beside users, must be an array that has an array of rows for each user"),
        ({"users": [{}], "rows": [{}]}, "rows, beside users, must be an array that has an array of rows for each user"),
        ({"users": {}, "rows": []}, "users must be an array of objects, one for each user, not an object"),
        ({"users": [1], "rows": [[]]}, "user 0 must be an object of columns and values, not a number"),
        ({"users": [{}], "rows": [[1]]}, "user 0: row 0 must be an object of columns and values, not a number"),
        ({"users": None, "rows": []}, "users must be an array of objects, one for each user, not null"),
        ({"users": [{}], "rows": []}, "rows has lists for 0 users, but there are 1"),
        ({"users": [{"user": 1.5}], "rows": [[]]}, "feature 'user': user 0: 1.5 is not a whole number"),
    ],
)
def test_plain_rows_that_are_malformed_are_refused(urls: Urls, body: object, message: str) -> None:
    if urls["server"] == "triton":
        pytest.skip("Triton has no form of plain rows")
    with pytest.raises(urllib.error.HTTPError) as caught:
        post(f"{urls['http']}/v1/models/toy:predict", body)
    assert caught.value.code == 400
    assert json.load(caught.value)["error"].startswith(message)
