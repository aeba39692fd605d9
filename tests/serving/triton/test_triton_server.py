"""A real Triton Inference Server over the toy model, by HTTP and gRPC: one start for the whole file."""

import hashlib
import json
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tritonclient import grpc, http
from tritonclient.utils import InferenceServerException

from emberline.schema import ModelSchema
from emberline.serving import Engine, PackedRequest
from emberline.serving.limits import RequestLimits
from emberline.serving.triton.launcher import TritonServer
from emberline.serving.triton.settings import TritonSettings
from tests.serving.conftest import Arrays, ToyModel, make_toy, random_request
from tests.serving.deltas.toy_delta import asked, changed, wait_for, write_delta
from tests.serving.triton.standing import held
from tests.serving.ways import DATATYPES, Way

pytestmark = pytest.mark.triton
CHANGING = "changing"
"""A model beside `toy`, which gets a delta."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    make_toy().write(folder, 4)
    make_toy(name=CHANGING).write(folder, 1)
    return folder


@pytest.fixture(scope="module")
def server(models: Path) -> Iterator[TritonServer]:
    settings = TritonSettings(num_threads=1, delta_poll_s=0.05, max_merged_requests=8, max_waiting=16, limits=RequestLimits(rows=500))
    with TritonServer(models, settings=settings) as found:
        yield found


@pytest.fixture(scope="module")
def model() -> ToyModel:
    return make_toy()


@pytest.fixture(params=["http", "grpc"])
def ask(request: pytest.FixtureRequest, server: TritonServer) -> Iterator[Any]:
    """Arrays -> answers by name, over one transport; arrays without a leading 1 get one."""
    library: Any = http if request.param == "http" else grpc
    port = server.http_port if request.param == "http" else server.grpc_port
    options = {"concurrency": 8} if request.param == "http" else {}
    client = library.InferenceServerClient(f"127.0.0.1:{port}", **options)

    def infer(arrays: Arrays, names: Sequence[str] = ()) -> Arrays:
        inputs = []
        for name, values in arrays.items():
            shaped = values if values.ndim > 1 else values.reshape(1, -1)
            inputs.append(library.InferInput(name, list(shaped.shape), DATATYPES[str(values.dtype)]))
            inputs[-1].set_data_from_numpy(np.ascontiguousarray(shaped))
        outputs = [library.InferRequestedOutput(name) for name in names] or None
        found = client.infer("toy", inputs, outputs=outputs)
        asked = names or ["probs", "scores", "lookup.deep", "lookup.wide", "known"]
        return {name: found.as_numpy(name) for name in asked}

    yield infer
    client.close()


def assert_answers(found: Arrays, model: ToyModel, request: Arrays) -> None:
    for key, value in model.answers(request).items():
        name = key.replace("output.", "").replace("group.", "lookup.")
        assert found[name].dtype == np.float32
        torch.testing.assert_close(torch.from_numpy(found[name].copy()), value[None], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("num_rows", [0, 1, 2, 300])
def test_answers_equal_the_oracle(ask: Any, model: ToyModel, num_rows: int) -> None:
    request = random_request(model.schema, num_rows=num_rows, seed=num_rows, raw_ids=(100, -7, 200))
    assert_answers(ask(request), model, request)


def test_weights_may_be_left_out(ask: Any, model: ToyModel) -> None:
    request = random_request(model.schema, num_rows=4, seed=4, weights=False)
    assert_answers(ask(request), model, request)


def test_all_bags_empty(ask: Any, model: ToyModel) -> None:
    request: Arrays = {"ids": np.empty(0, np.int64), "lengths": np.zeros(8, np.int32), "dense": np.ones(6, np.float32)}
    found = ask(request)
    assert_answers(found, model, request)
    assert found["known"].shape == (1, 0)


def test_no_rows_have_shapes_all_the_same(ask: Any) -> None:
    found = ask({"ids": np.empty(0, np.int64), "lengths": np.empty(0, np.int32), "dense": np.empty(0, np.float32)})
    shapes = {name: values.shape for name, values in found.items()}
    assert shapes == {"probs": (1, 0), "scores": (1, 0, 3), "lookup.deep": (1, 0, 27), "lookup.wide": (1, 0, 4), "known": (1, 0)}


def test_extreme_ids_are_exact(ask: Any, model: ToyModel) -> None:
    ids = np.array([2**63 - 1, -(2**63), 2**62, 2**62 + 1, 2**53 + 1, -7])
    request: Arrays = {"ids": ids, "lengths": np.array([6, 0, 0, 0], np.int32), "dense": np.zeros(3, np.float32)}
    found = ask(request)
    assert found["known"].tolist() == [[False, False, True, False, False, True]]
    assert_answers(found, model, request)


def test_only_the_outputs_asked_for_come(ask: Any, model: ToyModel) -> None:
    request = random_request(model.schema, num_rows=2, seed=2)
    assert sorted(ask(request, ["lookup.wide"])) == ["lookup.wide"]


def damaged(model: ToyModel, **changes: Any) -> Arrays:
    request: Arrays = {"ids": np.array([100, 3, 1, 5]), "lengths": np.ones(4, np.int32), "dense": np.zeros(3, np.float32)}
    return request | changes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ids": np.array([100, 10, 1, 5])}, r"feature 'item': row 0: id 10 is outside \[0, 10\)"),
        ({"ids": np.array([100, 3, 1])}, "ids holds 3 ids, but lengths add up to 4"),
        ({"lengths": np.array([2, -1, 2, 1], np.int32)}, "feature 'item': row 0: lengths: -1 is negative"),
        ({"lengths": np.ones(5, np.int32), "ids": np.zeros(5, np.int64)}, "lengths: 5 lengths are not a whole number for each of 4 features"),
        ({"dense": np.zeros(4, np.float32)}, "dense: 4 numbers are not a whole number of rows of 3"),
        ({"dense": np.array([0, np.nan, 0], np.float32)}, "feature 'vector': row 0: dense: nan is not a finite number"),
        ({"weights": np.ones(3, np.float32)}, "weights holds 3 weights for 4 ids"),
    ],
)
def test_a_bad_request_is_refused_by_name(ask: Any, model: ToyModel, changes: Arrays, message: str) -> None:
    with pytest.raises(InferenceServerException, match=message) as failure:
        ask(damaged(model, **changes))
    assert failure.value.status() in ("400", "StatusCode.INVALID_ARGUMENT")
    assert "/" not in str(failure.value.message())


def test_a_request_over_a_limit_is_refused_with_limit_and_size(ask: Any, model: ToyModel) -> None:
    request = random_request(model.schema, num_rows=501, seed=5)
    with pytest.raises(InferenceServerException, match="the request has 501 rows; this server takes at most 500: send it in parts") as failure:
        ask(request)
    assert failure.value.status() in ("400", "StatusCode.INVALID_ARGUMENT")


def test_two_batch_items_are_refused(ask: Any, model: ToyModel) -> None:
    two = {name: np.stack([values, values]) for name, values in damaged(model).items()}
    with pytest.raises(InferenceServerException, match=r"has shape \[2, \d\]; send \[n\] or \[1, n\]"):
        ask(two)


def test_a_missing_input_is_refused(ask: Any, model: ToyModel) -> None:
    request = damaged(model)
    request.pop("lengths")
    with pytest.raises(InferenceServerException, match="lengths"):
        ask(request)


def statistics(server: TritonServer) -> tuple[int, int]:
    """Requests answered and batches run so far."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.http_port}/v2/models/toy/stats", timeout=10) as answer:
        stats = json.load(answer)["model_stats"][0]
    return stats["inference_count"], stats["execution_count"]


def test_ragged_requests_are_batched_and_each_is_right(server: TritonServer, ask: Any, model: ToyModel) -> None:
    """Good and bad ones from eight threads at once: fewer batches than requests, and every answer its own."""
    failures: list[str] = []
    requests, batches = statistics(server)

    def work(number: int) -> None:
        client = grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}")
        for turn in range(25):
            request = random_request(model.schema, num_rows=(number + turn) % 5, seed=100 * number + turn, raw_ids=(100, -7), weights=turn % 2 == 0)
            bad = (number + turn) % 7 == 0
            if bad:
                request["lengths"] = np.append(request["lengths"], np.int32(1))
            inputs = []
            for name, values in request.items():
                inputs.append(grpc.InferInput(name, [1, values.size], DATATYPES[str(values.dtype)]))
                inputs[-1].set_data_from_numpy(values.reshape(1, -1))
            try:
                found = client.infer("toy", inputs)
                if bad:
                    failures.append(f"{number}, {turn}: answered")
                assert_answers({name: found.as_numpy(name) for name in ("probs", "scores", "lookup.deep", "lookup.wide")}, model, request)
            except InferenceServerException as error:
                if not bad or "not a whole number" not in str(error):
                    failures.append(f"{number}, {turn}: {error}")
            except AssertionError as error:
                failures.append(f"{number}, {turn}: {error}")
        client.close()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    after_requests, after_batches = statistics(server)
    assert after_batches - batches < after_requests - requests


def test_where_too_much_waits_some_is_refused_and_the_rest_is_right(server: TritonServer, model: ToyModel) -> None:
    """Sixty requests come while the model stands still, four times as many as may wait."""
    way, ended = Way("grpc", f"127.0.0.1:{server.grpc_port}"), []
    request = random_request(model.schema, num_rows=2, seed=2)
    inputs = [way.tensor(name, values.reshape(1, -1)) for name, values in request.items()]
    with grpc.InferenceServerClient(way.place) as client:
        with held(server):
            for _ in range(60):
                client.async_infer("toy", inputs, lambda result, error: ended.append(error or result), outputs=[grpc.InferRequestedOutput("probs")])
            time.sleep(0.5)
        wait_for(lambda: len(ended) == 60)
    refused = [one for one in ended if isinstance(one, InferenceServerException)]
    assert {str(one) for one in refused} == {"[StatusCode.UNAVAILABLE] 16 requests wait for the model, more than it answers in time; try again later"}
    assert (
        8 <= len(refused) <= 34
    )  # of each sixteen that were handed over at once: the half, or, where that takes long, three quarters, seven eighths
    for found in ended:
        if found not in refused:
            np.testing.assert_allclose(found.as_numpy("probs")[0], model.answers(request)["output.probs"].numpy(), rtol=1e-6, atol=1e-6)


def test_clients_find_the_schema_in_the_configuration(server: TritonServer, model: ToyModel) -> None:
    client = http.InferenceServerClient(f"127.0.0.1:{server.http_port}")
    parameters = client.get_model_config("toy")["parameters"]
    assert ModelSchema.from_dict(json.loads(parameters["emberline_schema"]["string_value"])) == model.schema
    assert parameters["emberline_version"]["string_value"] == "4"
    assert client.get_model_metadata("toy")["versions"] == ["4"]
    client.close()


def test_equal_to_the_engine_bit_by_bit(ask: Any, model: ToyModel, models: Path) -> None:
    engine = Engine.open(models / "toy", num_threads=1)
    request = random_request(model.schema, num_rows=3, seed=8)
    found = ask(request, ["probs", "scores"])
    for name, value in engine.predict(PackedRequest(**request)).items():
        assert found[name][0].tobytes() == value.numpy().tobytes()


def hash_folder(folder: Path) -> dict[str, str]:
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.rglob("*") if path.is_file()}


def test_no_file_is_written_beside_the_models(server: TritonServer, models: Path, model: ToyModel, ask: Any) -> None:
    assert server._folder is not None
    folders = (models, server._folder / "repository")
    before = [hash_folder(folder) for folder in folders]
    ask(random_request(model.schema, num_rows=1, seed=0))
    assert [hash_folder(folder) for folder in folders] == before
    assert not any(name.endswith(".pyc") for found in before for name in found)


def test_a_delta_is_taken_while_triton_serves(server: TritonServer, models: Path) -> None:
    before = make_toy(name=CHANGING)
    after = changed(before)
    arrays, way = asked(after), Way("http", f"127.0.0.1:{server.http_port}")

    def probs() -> torch.Tensor:
        return torch.from_numpy(way.infer(arrays, ["probs"], model=CHANGING).as_numpy("probs").copy())[0]

    old, new = (model.answers(arrays)["output.probs"] for model in (before, after))
    torch.testing.assert_close(probs(), old, rtol=1e-6, atol=1e-6)
    assert not torch.allclose(old, new, atol=1e-4)
    write_delta(models / CHANGING / "1", after)
    wait_for(lambda: torch.allclose(probs(), new, rtol=1e-6, atol=1e-6))
