"""One suite for every server, protocol and client: the same requests, the same answers, the same refusals."""

import asyncio
import json
import re
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pytest

from emberline.errors import NotFoundError, RequestError, ServingError
from emberline.schema import ModelSchema
from emberline.serving import Client, Engine
from emberline.serving.client import AsyncClient
from tests.serving.conftest import Remap, ToyModel, make_steps_toy, make_toy, random_request
from tests.serving.ways import Urls, Way, fails, same

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
EXACT = 2**53 + 1
"""The first whole number that a float cannot hold: it has a row of its own, and so has its neighbour."""
RAW_IDS = (100, -7, 2**62, EXACT, EXACT - 1, INT64_MIN)


@pytest.fixture(scope="module")
def model() -> ToyModel:
    rows = {100: 2, -7: 0, 2**62: 5, EXACT: 3, EXACT - 1: 4, INT64_MIN: 1}
    return replace(make_toy(), remaps={"user_emb": Remap(rows)})


@pytest.fixture(scope="module")
def models(model: ToyModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    models = tmp_path_factory.mktemp("models")
    model.write(models, version=1)
    model.write(models, version=3)
    make_steps_toy().write(models)
    return models


@pytest.fixture(scope="module")
def engine(models: Path) -> Engine:
    return Engine.open(models / "toy", num_threads=1)


def arrays(lengths: list[list[int]], ids: list[int], num_rows: int) -> dict[str, npt.NDArray[Any]]:
    """A request by hand: lengths of user, item, city and tags in turn."""
    flat = np.array([length for feature in lengths for length in feature], np.int32)
    return {"ids": np.array(ids, np.int64), "lengths": flat, "dense": np.linspace(0, 1, num_rows * 3, dtype=np.float32)}


GOOD = arrays([[1, 0], [1, 2], [1, 1], [0, 1]], [100, 3, 4, 5, 0, 1, 7], 2)


def check(way: Way, model: ToyModel, request: dict[str, npt.NDArray[Any]]) -> None:
    """Every answer of a request, against the oracle."""
    want = model.answers(request)
    found = way.infer(request)
    for output in model.schema.outputs:
        same(found.as_numpy(output.name), want[f"output.{output.name}"].numpy()[None])
    for group in model.schema.groups:
        same(found.as_numpy(f"lookup.{group.name}"), want[f"group.{group.name}"].numpy()[None])
    assert found.as_numpy("known").tolist() == [known(model.schema, model, request)]


def known(schema: ModelSchema, model: ToyModel, request: dict[str, npt.NDArray[Any]]) -> list[bool]:
    lengths = request["lengths"].reshape(len(schema.sparse_features), -1)
    num_users = int(lengths[0].sum())
    trained = model.remaps["user_emb"].rows
    return [int(raw_id) in trained for raw_id in request["ids"][:num_users]] + [True] * (request["ids"].size - num_users)


def test_server_and_model_describe_themselves(way: Way, urls: Urls, model: ToyModel) -> None:
    assert way.call("is_server_live")
    assert way.call("is_server_ready")
    assert way.call("is_model_ready", "toy")
    assert way.call("is_model_ready", "toy", "3")
    kwargs = {} if way.is_http else {"as_json": True}
    metadata = way.call("get_model_metadata", "toy", **kwargs)
    assert (metadata["name"], metadata["versions"]) == ("toy", ["3"])
    inputs = {tensor["name"]: (tensor["datatype"], [int(size) for size in tensor["shape"]]) for tensor in metadata["inputs"]}
    assert inputs == {"ids": ("INT64", [-1, -1]), "lengths": ("INT32", [-1, -1]), "weights": ("FP32", [-1, -1]), "dense": ("FP32", [-1, -1])}
    outputs = {tensor["name"]: (tensor["datatype"], [int(size) for size in tensor["shape"]]) for tensor in metadata["outputs"]}
    assert outputs == {
        "probs": ("FP32", [-1, -1]),
        "scores": ("FP32", [-1, -1, 3]),
        "lookup.deep": ("FP32", [-1, -1, 27]),
        "lookup.wide": ("FP32", [-1, -1, 4]),
        "known": ("BOOL", [-1, -1]),
    }
    config = way.call("get_model_config", "toy", **kwargs)
    config = config if way.is_http else config["config"]
    assert ModelSchema.from_dict(json.loads(config["parameters"]["emberline_schema"]["string_value"])) == model.schema
    assert config["parameters"]["emberline_version"]["string_value"] == "3"
    index = way.call("get_model_repository_index", **kwargs)
    models = index if way.is_http else index["models"]
    assert any({"name": "toy", "version": "3", "state": "READY"}.items() <= entry.items() for entry in models)


@pytest.mark.parametrize("num_rows", [1, 2, 7, 300])
@pytest.mark.parametrize("weights", [True, False])
def test_answers_are_the_models(way: Way, model: ToyModel, num_rows: int, weights: bool) -> None:
    check(way, model, random_request(model.schema, num_rows=num_rows, seed=num_rows, raw_ids=RAW_IDS, weights=weights))


def test_a_batch_without_rows_is_answered_with_none(way: Way, model: ToyModel) -> None:
    empty: dict[str, npt.NDArray[Any]] = {
        "ids": np.empty(0, np.int64),
        "lengths": np.empty(0, np.int32),
        "weights": np.empty(0, np.float32),
        "dense": np.empty(0, np.float32),
    }
    found = way.infer(empty)
    shapes = {name: found.as_numpy(name).shape for name in ("probs", "scores", "lookup.deep", "lookup.wide", "known")}
    assert shapes == {"probs": (1, 0), "scores": (1, 0, 3), "lookup.deep": (1, 0, 27), "lookup.wide": (1, 0, 4), "known": (1, 0)}


def test_rows_whose_bags_are_all_empty_are_answered(way: Way, model: ToyModel) -> None:
    check(way, model, arrays([[0, 0]] * 4, [], 2))


def test_ids_are_exact_to_the_last_of_64_bits(way: Way, model: ToyModel) -> None:
    ids = [EXACT, EXACT - 1, EXACT + 1, INT64_MIN, INT64_MIN + 1, INT64_MAX, 2**62, 2**62 + 1]
    request = arrays([[1] * 8, [0] * 8, [0] * 8, [0] * 8], ids, 8)
    check(way, model, request)
    assert way.infer(request, ["known"]).as_numpy("known").tolist() == [[True, True, False, True, False, False, True, False]]


def test_only_the_outputs_asked_for_come(way: Way) -> None:
    response = way.infer(GOOD, ["lookup.wide", "probs"]).get_response()
    names = [output["name"] for output in response["outputs"]] if way.is_http else [output.name for output in response.outputs]
    assert sorted(names) == ["lookup.wide", "probs"]


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_compressed_requests_are_read(way: Way, algorithm: str) -> None:
    option = "request_compression_algorithm" if way.is_http else "compression_algorithm"
    found = way.infer(GOOD, ["lookup.deep"], **{option: algorithm})
    same(found.as_numpy("lookup.deep"), way.infer(GOOD, ["lookup.deep"]).as_numpy("lookup.deep"))


def test_id_and_version_come_back(way: Way) -> None:
    response = way.infer(GOOD, ["probs"], model_version="3", request_id="abc").get_response()
    found = (response["id"], response["model_version"]) if way.is_http else (response.id, response.model_version)
    assert found == ("abc", "3")


D2 = [
    ([1, 1], [1, 2, 3], "ids"),
    ([3, 1], [1, 2, 3], "ids"),
    ([4, -1], [1, 2, 3], "lengths"),
    ([1, 2, 3], [1, 2, 3], "ids"),
]


@pytest.mark.parametrize(("user_lengths", "ids", "named"), D2)
def test_lengths_that_do_not_fit_the_ids_are_refused(way: Way, user_lengths: list[int], ids: list[int], named: str) -> None:
    others = [[0] * len(user_lengths)] * 3
    status, message = fails(lambda: way.infer(arrays([user_lengths, *others], ids, len(user_lengths)), ["probs"]))
    assert status == "INVALID_ARGUMENT"
    assert named in message


def test_lengths_that_are_not_whole_rows_are_refused(way: Way) -> None:
    status, message = fails(lambda: way.infer(GOOD | {"lengths": GOOD["lengths"][:-1]}, ["probs"]))
    assert (status, "7 lengths" in message) == ("INVALID_ARGUMENT", True)


def test_dense_of_another_number_of_rows_is_refused(way: Way) -> None:
    status, message = fails(lambda: way.infer(GOOD | {"dense": np.zeros(9, np.float32)}, ["probs"]))
    assert (status, "dense" in message) == ("INVALID_ARGUMENT", True)


def test_an_id_outside_a_table_is_refused_by_the_features_name(way: Way) -> None:
    status, message = fails(lambda: way.infer(GOOD | {"ids": np.array([100, 3, 4, 10, 0, 1, 7])}, ["probs"]))
    assert status == "INVALID_ARGUMENT"
    assert re.search(r"'item'.* 10 .*\[0, 10\)", message)


@pytest.mark.parametrize("name", ["ids", "lengths", "dense"])
def test_a_missing_input_is_refused_by_name(way: Way, name: str) -> None:
    status, message = fails(lambda: way.infer({other: values for other, values in GOOD.items() if other != name}, ["probs"]))
    assert (status, name in message) == ("INVALID_ARGUMENT", True)


def test_an_unknown_input_is_refused_by_name(way: Way) -> None:
    status, message = fails(lambda: way.infer({**GOOD, "surplus": np.zeros(1, np.float32)}, ["probs"]))
    assert (status, "surplus" in message) == ("INVALID_ARGUMENT", True)


def test_a_repeated_input_is_refused_by_name(way: Way) -> None:
    tensors = [way.tensor(name, values[None]) for name, values in GOOD.items()]
    status, message = fails(lambda: way.call("infer", "toy", [*tensors, tensors[0]]))
    assert (status, "ids" in message) == ("INVALID_ARGUMENT", True)


def test_an_unknown_output_is_refused_by_name(way: Way) -> None:
    status, message = fails(lambda: way.infer(GOOD, ["probs", "nonsense"]))
    assert (status, "nonsense" in message) == ("INVALID_ARGUMENT", True)


@pytest.mark.parametrize(("name", "dtype"), [("ids", "float32"), ("lengths", "float32"), ("dense", "int64"), ("dense", "float64")])
def test_a_wrong_datatype_is_refused_by_the_tensors_name(way: Way, name: str, dtype: str) -> None:
    status, message = fails(lambda: way.infer(GOOD | {name: GOOD[name].astype(dtype)}, ["probs"]))
    assert (status, name in message) == ("INVALID_ARGUMENT", True)


def test_a_tensor_of_rank_3_is_refused_by_name(way: Way) -> None:
    tensors = [way.tensor(name, values.reshape(1, -1, 1) if name == "ids" else values[None]) for name, values in GOOD.items()]
    status, message = fails(lambda: way.call("infer", "toy", tensors))
    assert (status, "ids" in message) == ("INVALID_ARGUMENT", True)


def test_a_model_or_version_that_is_not_there_is_not_found(way: Way) -> None:
    status, message = fails(lambda: way.infer(GOOD, ["probs"], model="nope"))
    assert (status, "nope" in message) == ("NOT_FOUND", True)
    status, _ = fails(lambda: way.infer(GOOD, ["probs"], model_version="2"))
    assert status in ("NOT_FOUND", "INVALID_ARGUMENT", "UNAVAILABLE")


def bad_requests() -> list[dict[str, npt.NDArray[Any]]]:
    """Refused for their shape, their numbers, their ids and their names."""
    return [
        GOOD | {"lengths": GOOD["lengths"][:-1]},
        GOOD | {"lengths": -GOOD["lengths"]},
        GOOD | {"ids": np.array([100, 3, 4, 10, 0, 1, 7])},
        GOOD | {"dense": np.full(6, np.nan, np.float32)},
        GOOD | {"surplus": np.zeros(1, np.float32)},
    ]


def test_bad_requests_among_good_ones_fail_alone(way: Way, model: ToyModel) -> None:
    def ask(seed: int) -> None:
        if seed % 2:
            assert fails(lambda: way.infer(bad_requests()[seed // 2 % 5], ["probs"]))[0] == "INVALID_ARGUMENT"
        else:
            check(way, model, random_request(model.schema, num_rows=seed % 5, seed=seed, raw_ids=RAW_IDS))

    with ThreadPoolExecutor(8) as pool:
        assert len(list(pool.map(ask, range(20)))) == 20


def test_errors_tell_nothing_of_the_servers_inside(way: Way, models: Path) -> None:
    messages = [fails(lambda one=one: way.infer(one, ["probs"]))[1] for one in bad_requests()]  # type: ignore[misc]
    messages.append(fails(lambda: way.infer(GOOD, ["probs"], model="../toy"))[1] or "")
    for message in messages:
        for inside in ("Traceback", ".py", 'File "', str(models), "0x"):
            assert inside not in message


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_sixteen_threads_get_their_own_answers(urls: Urls, model: ToyModel, protocol: str) -> None:
    def ask(seed: int) -> None:
        draw = np.random.default_rng(seed)
        for _ in range(6):
            users = draw.choice(np.array([*RAW_IDS, 5, 6]), size=int(draw.integers(0, 5)))
            items = draw.integers(0, 10, users.size)
            rows = [{"user": int(user), "item": [int(item)], "price": 0.5, "vector": [1, 2]} for user, item in zip(users, items, strict=True)]
            lengths = np.array([1] * users.size * 2 + [0] * users.size * 2, np.int32)
            request = {"ids": np.concatenate([users, items]), "lengths": lengths, "dense": np.tile(np.array([0.5, 1, 2], np.float32), users.size)}
            want = model.answers(request)
            same(client.predict(rows)["probs"], want["output.probs"].numpy())
            same(client.lookup(rows)["deep"], want["group.deep"].numpy())

    with Client(urls[protocol], "toy") as client, ThreadPoolExecutor(16) as pool:
        assert len(list(pool.map(ask, range(16)))) == 16


ROWS = [{"user": str(EXACT), "item": [1, 2], "city": 99, "price": 2}, {}, {"user": EXACT - 1, "tags": {"a": 0.5, "b": -1}}]


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_the_client_answers_from_rows(urls: Urls, engine: Engine, protocol: str) -> None:
    with Client(urls[protocol], "toy", max_rows=2) as client:
        found, groups, known_ids = client.predict(ROWS), client.lookup(ROWS), client.known(ROWS)
        assert client.predict([])["scores"].shape == (0, 3)
        assert client.schema == engine.schema
        assert list(client.predict(ROWS, ["scores"])) == ["scores"]
        assert list(client.lookup(ROWS, ["wide"])) == ["wide"]
    request = engine.encode_rows(ROWS)
    for name, want in engine.predict(request).items():
        same(found[name], want.numpy())
    for name, want in engine.lookup(request).items():
        same(groups[name], want.numpy())
    want_known = {"user": [True, True], "item": [True, True], "city": [True], "tags": [True, True]}
    assert {name: part.tolist() for name, part in known_ids.items()} == want_known


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_the_client_takes_columns_frames_and_tables(urls: Urls, engine: Engine, protocol: str) -> None:
    columns = {"user": [EXACT, -7], "item": [1, 2], "city": [0, 9], "tags": ["x", "y"], "price": [1.5, 2.5], "vector": [[1.0, 2.0], [3.0, 4.0]]}
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    want = engine.predict(engine.encode_rows(rows))["scores"].numpy()
    arrays_too: dict[str, Any] = {**columns, "user": np.array(columns["user"]), "vector": np.array(columns["vector"])}
    with Client(urls[protocol], "toy") as client:
        for data in (columns, arrays_too, pd.DataFrame(columns), pa.table(columns), pa.RecordBatch.from_pydict(columns)):
            same(client.predict(data)["scores"], want)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_the_clients_errors_are_those_of_the_tree(urls: Urls, protocol: str) -> None:
    with Client(urls[protocol], "toy") as client:
        with pytest.raises(RequestError, match=r"feature 'user': row 1: 5\.5 is not a whole number"):
            client.predict([{}, {"user": 5.5}])
        with pytest.raises(RequestError, match=r"feature 'item'.*10"):
            client.predict([{"item": 10}])
        with pytest.raises(RequestError, match="no output 'nope'; it has probs, scores"):
            client.predict([{}], ["nope"])
    with Client(urls[protocol], "nope") as client, pytest.raises(NotFoundError, match="nope"):
        client.predict([{}])
    with Client(urls[protocol], "toy", version="2") as client, pytest.raises(ServingError):
        client.predict([{}])


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_the_asynchronous_client_answers_many_at_once(urls: Urls, engine: Engine, protocol: str) -> None:
    async def ask() -> list[Any]:
        async with AsyncClient(urls[protocol], "toy") as client:
            return await asyncio.gather(*[client.predict([{"user": user}]) for user in RAW_IDS])

    want = engine.predict(engine.encode_rows([{"user": user} for user in RAW_IDS]))["probs"].numpy()
    same(np.concatenate([found["probs"] for found in asyncio.run(ask())]), want)


# --- sequences --------------------------------------------------------------------------------------------------------

STEPS_OUTPUTS = ["score", "lookup.deep", "lookup.seq.sequence", "lookup.seq.sequence_length", "lookup.jag.sequence", "lookup.jag.sequence_length"]


def ask_steps(way: Way, request: dict[str, npt.NDArray[Any]], **kwargs: Any) -> Any:
    return way.infer(request, [*STEPS_OUTPUTS, "known"], model="steps", **kwargs)


def test_a_model_of_sequences_describes_itself(way: Way) -> None:
    kwargs = {} if way.is_http else {"as_json": True}
    metadata = way.call("get_model_metadata", "steps", **kwargs)
    inputs = {tensor["name"]: (tensor["datatype"], [int(size) for size in tensor["shape"]]) for tensor in metadata["inputs"]}
    assert inputs == {name: (datatype, [-1, -1]) for name, datatype in STEPS_INPUTS.items()}
    outputs = {tensor["name"]: (tensor["datatype"], [int(size) for size in tensor["shape"]]) for tensor in metadata["outputs"]}
    assert outputs == {
        "score": ("FP32", [-1, -1]),
        "lookup.deep": ("FP32", [-1, -1, 5]),
        "lookup.seq.sequence": ("FP32", [-1, -1, -1, 4]),
        "lookup.seq.sequence_length": ("INT64", [-1, -1]),
        "lookup.jag.sequence": ("FP32", [-1, -1, 5]),
        "lookup.jag.sequence_length": ("INT64", [-1, -1]),
        "known": ("BOOL", [-1, -1]),
    }


STEPS_INPUTS = {
    "ids": "INT64",
    "lengths": "INT32",
    "weights": "FP32",
    "dense": "FP32",
    "steps": "INT32",
    "step_lengths": "INT32",
    "dense_steps": "FP32",
}


@pytest.mark.parametrize("num_rows", [0, 1, 3, 40])
def test_steps_are_answered_as_the_model_does(way: Way, num_rows: int) -> None:
    model = make_steps_toy()
    request = random_request(model.schema, num_rows=num_rows, seed=num_rows, raw_ids=(100, -7))
    found, want = ask_steps(way, request), model.answers(request)
    for name in STEPS_OUTPUTS:
        wanted = want[name.replace("lookup.", "group.") if name.startswith("lookup.") else f"output.{name}"].numpy()[None]
        same(found.as_numpy(name), wanted)
        assert found.as_numpy(name).dtype == wanted.dtype


def test_steps_that_do_not_fit_are_refused_by_feature_and_row(way: Way) -> None:
    request = random_request(make_steps_toy().schema, num_rows=2, seed=5, raw_ids=(100, -7))
    steps = request["steps"].copy()
    steps[5] += 1
    status, message = fails(lambda: ask_steps(way, request | {"steps": steps}))
    assert (status, "dense_steps" in message or "prices" in message) == ("INVALID_ARGUMENT", True)
    status, message = fails(lambda: ask_steps(way, {name: values for name, values in request.items() if name != "steps"}))
    assert (status, "steps" in message) == ("INVALID_ARGUMENT", True)


STEP_ROWS = [
    {"clicks": [100, 5], "words": [{"a": 0.5}, None], "prices": [[1, 2], [3, 4]], "user": -7, "age": 1},
    {},
    {"clicks": [-7], "words": [{"b": 2}], "prices": [[5, 6]]},
]


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_the_client_answers_from_rows_of_steps(urls: Urls, models: Path, protocol: str) -> None:
    engine = Engine.open(models / "steps", num_threads=1)
    request = engine.encode_rows(STEP_ROWS)
    with Client(urls[protocol], "steps", max_rows=2) as client:
        found, known_ids = client.lookup(STEP_ROWS), client.known(STEP_ROWS)
        same(client.predict(STEP_ROWS)["score"], engine.predict(request)["score"].numpy())
        assert client.schema == engine.schema
    for name, want in engine.lookup(request).items():
        same(found[name], want.numpy())
    assert {name: values.tolist() for name, values in known_ids.items()} == {"user": [True], "clicks": [True, False, True], "words": [True, True]}


def test_rows_of_steps_over_plain_http(urls: Urls, models: Path) -> None:
    if urls["server"] == "triton":
        pytest.skip("Triton has no form of plain rows")
    engine = Engine.open(models / "steps", num_threads=1)
    body = json.dumps({"rows": STEP_ROWS}).encode()
    with urllib.request.urlopen(urllib.request.Request(f"{urls['http']}/v1/models/steps:lookup", body), timeout=30) as answer:
        found = json.load(answer)["outputs"]
    for name, want in engine.lookup(engine.encode_rows(STEP_ROWS)).items():
        same(np.array(found[name], want.numpy().dtype).reshape(want.shape), want.numpy())
    with urllib.request.urlopen(f"{urls['http']}/openapi.json", timeout=30) as answer:
        paths = json.load(answer)["paths"]
    example = paths["/v2/models/{model}/infer"]["post"]["requestBody"]["content"]["application/json"]["examples"]["steps"]["value"]
    request = urllib.request.Request(f"{urls['http']}/v2/models/steps/infer", json.dumps(example).encode())
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert [output["name"] for output in json.load(answer)["outputs"]] == [*STEPS_OUTPUTS, "known"]
