"""A real Triton whose models change while it runs, and requests that nobody waits for any more."""

import shutil
import time
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tritonclient import grpc, http
from tritonclient.utils import InferenceServerException

from emberline.errors import ArtifactError, DeadlineError, LaunchError
from emberline.serving.probe import probe
from emberline.serving.triton.launcher import TritonServer
from emberline.serving.triton.scratch import SHM
from emberline.serving.triton.settings import TritonSettings
from tests.serving.conftest import Arrays, ToyModel, make_toy, random_request
from tests.serving.deltas.toy_delta import wait_for
from tests.serving.protocol.test_by_feature import by_feature
from tests.serving.triton.standing import held
from tests.serving.ways import Way, fails

pytestmark = pytest.mark.triton


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    models = tmp_path_factory.mktemp("models")
    make_toy().write(models, 1)
    return models


@pytest.fixture(scope="module")
def server(models: Path) -> Iterator[TritonServer]:
    settings = TritonSettings(num_threads=1, delta_poll_s=0, model_control=True, by_feature=True, timeout_s=30)
    with TritonServer(models, settings=settings) as server:
        yield server


def ask(server: TritonServer, arrays: Arrays, model: str = "toy") -> Any:
    return Way("http", f"127.0.0.1:{server.http_port}").infer(arrays, ["probs"], model=model)


def assert_answers(server: TritonServer, model: ToyModel, arrays: Arrays, sent: Arrays | None = None) -> None:
    found = ask(server, sent or arrays, model.name).as_numpy("probs")[0].copy()
    torch.testing.assert_close(torch.from_numpy(found), model.answers(arrays)["output.probs"], rtol=1e-6, atol=1e-6)


def test_models_come_and_go_and_one_that_does_not_load_leaves_the_old_one_serving(server: TritonServer, models: Path) -> None:
    old, request = make_toy(), random_request(make_toy().schema, num_rows=3, seed=3)
    assert_answers(server, old, request)
    make_toy(seed=7, name="other").write(models, 4)
    assert server.refresh() == {"other": 4, "toy": 1}
    assert_answers(server, make_toy(seed=7, name="other"), request)
    shutil.rmtree(models / "other")
    root = make_toy(seed=6).write(models, 8)
    (root / "tables" / "item_emb.safetensors").unlink()
    with pytest.raises(LaunchError, match=r"tables/item_emb\.safetensors is missing"):
        server.refresh()
    assert_answers(server, old, request)
    (root / "manifest.json").write_text("{}")
    with pytest.raises(ArtifactError, match="has no digest"):
        server.refresh()
    shutil.rmtree(root)
    assert server.refresh() == {"toy": 1}
    assert_answers(server, old, request)
    assert "other" in fails(lambda: ask(server, request, "other"))[1]


def test_without_a_way_to_ask_triton_looks_for_itself(tmp_path: Path) -> None:
    request = random_request(make_toy().schema, num_rows=3, seed=3)
    old, new = make_toy(), make_toy(seed=5)
    for model in (old, make_toy(seed=7, name="other")):
        model.write(tmp_path, 1)
    with TritonServer(tmp_path, settings=TritonSettings(num_threads=1, delta_poll_s=0)) as server:
        assert_answers(server, old, request)
        new.write(tmp_path, 2)
        shutil.rmtree(tmp_path / "other")
        assert server.refresh() == {"toy": 2}
        assert_answers(server, new, request)
        assert "other" in fails(lambda: ask(server, request, "other"))[1]
        status, _ = fails(lambda: Way("http", f"127.0.0.1:{server.http_port}").call("unload_model", "toy"))
        assert status in ("INVALID_ARGUMENT", "UNAVAILABLE")


def test_inputs_by_feature_are_answered_and_refused_by_name(server: TritonServer) -> None:
    model, request = make_toy(), random_request(make_toy().schema, num_rows=4, seed=9, weights=False)
    parts = by_feature(model.schema, request)
    want = ask(server, request).as_numpy("probs")
    np.testing.assert_array_equal(ask(server, parts).as_numpy("probs"), want)
    for name in ("values.user", "lengths.tags", "values.vector"):
        without = {other: values for other, values in parts.items() if other != name}
        status, message = fails(partial(ask, server, without))
        assert (status, message) == ("INVALID_ARGUMENT", f"{name} is missing")


def test_what_was_counted_is_on_the_metrics_port(server: TritonServer) -> None:
    def found(name: str) -> float:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.metrics_port}/metrics", timeout=10) as answer:
            lines = [line for line in answer.read().decode().splitlines() if line.startswith(name)]
        return float(lines[0].rpartition(" ")[2]) if lines else 0.0

    name = 'emberline_table_ids_total{model="toy",table="user_emb",version="1"}'
    before, count = found(name), 50_000
    ask(server, {"ids": np.arange(count), "lengths": np.array([count, 0, 0, 0], np.int32), "dense": np.zeros(3, np.float32)})
    wait_for(lambda: found(name) >= before + count)
    assert found(name) < before + count + 1000  # what earlier requests asked for may have come late
    assert found("emberline_batches_total") > 0


def batches(server: TritonServer) -> int:
    with http.InferenceServerClient(f"127.0.0.1:{server.http_port}") as client:
        return sum(entry["execution_count"] for entry in client.get_inference_statistics("toy")["model_stats"])


def test_requests_that_nobody_waits_for_are_not_computed(server: TritonServer) -> None:
    """While a request is computed, one that waits is cancelled, and another runs out of time; neither makes a batch."""
    way = Way("grpc", f"127.0.0.1:{server.grpc_port}")
    inputs = [way.tensor(name, values.reshape(1, -1)) for name, values in random_request(make_toy().schema, num_rows=1, seed=1).items()]
    before, ended = batches(server), []
    with grpc.InferenceServerClient(way.place) as client:

        def start(**kwargs: Any) -> Any:
            outputs = [grpc.InferRequestedOutput("probs")]
            return client.async_infer("toy", inputs, lambda result, error: ended.append(error or result), outputs=outputs, **kwargs)

        with held(server):
            start()
            time.sleep(0.3)
            waiting = start()
            start(timeout=1000)
            time.sleep(0.3)
            waiting.cancel()
            time.sleep(0.3)
        wait_for(lambda: len(ended) == 3)
    errors = sorted(str(one) for one in ended if isinstance(one, InferenceServerException))
    assert len(errors) == 2, ended
    assert "CANCELLED" in errors[0]
    assert "timeout expired" in errors[1].lower()
    assert batches(server) == before + 1


def test_a_model_that_stands_still_is_ready_for_triton_but_not_for_a_probe(server: TritonServer) -> None:
    url = f"http://127.0.0.1:{server.http_port}"
    assert 0 < probe(url, "toy", timeout_s=20) < 20
    with held(server):
        assert Way("http", f"127.0.0.1:{server.http_port}").call("is_model_ready", "toy")
        with pytest.raises(DeadlineError, match=r"model 'toy' of http://.* gave no answer within 0\.3 s"):
            probe(url, "toy", timeout_s=0.3)
    assert probe(url, "toy", timeout_s=20) < 20


def test_memory_is_flat_over_loads_and_unloads(server: TritonServer, models: Path) -> None:
    cycle(server)
    before = used(server)
    cycle(server)
    rss, shared = (after - start for after, start in zip(used(server), before, strict=True))
    assert (rss < 12 << 20, shared) == (True, 0), (rss, shared)


def used(server: TritonServer) -> tuple[int, int]:
    """Bytes of memory of its own that the server's process has, and of shared memory that all have."""
    assert server._process is not None
    status = Path(f"/proc/{server._process.pid}/status").read_text()
    anonymous = next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("RssAnon"))
    return anonymous, sum(path.stat().st_blocks * 512 for path in SHM.glob(f"{server._shm_prefix}*"))


def cycle(server: TritonServer) -> None:
    request = random_request(make_toy().schema, num_rows=2, seed=1)
    with http.InferenceServerClient(f"127.0.0.1:{server.http_port}") as client:
        client.unload_model("toy")
        wait_for(lambda: not client.is_model_ready("toy"))
        client.load_model("toy")
    ask(server, request)
