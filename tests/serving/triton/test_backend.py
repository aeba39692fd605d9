"""The Python backend's model, with a stand-in for the module that Triton brings."""

import importlib
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from google.protobuf import json_format, text_format
from tritonclient.grpc import model_config_pb2

from emberline.serving import Engine, PackedRequest
from emberline.serving.artifact import load_manifest
from emberline.serving.limits import LimitChecker, RequestLimits
from emberline.serving.triton.config import config_text
from emberline.serving.triton.ensemble import write_triton_models
from emberline.serving.triton.settings import TritonSettings
from tests.serving.conftest import Arrays, ToyModel, random_request
from tests.serving.protocol.test_by_feature import by_feature


class FakeTensor:
    """Triton's tensor: on the host, or (for what a test calls a GPU) to be had by DLPack only."""

    def __init__(self, name: str, values: np.ndarray[Any, Any], on_host: bool = True) -> None:
        self._name, self.values, self._on_host = name, values, on_host

    @classmethod
    def from_dlpack(cls, name: str, tensor: torch.Tensor) -> "FakeTensor":
        return cls(name, tensor.numpy().copy())

    def name(self) -> str:
        return self._name

    def is_cpu(self) -> bool:
        return self._on_host

    def as_numpy(self) -> np.ndarray[Any, Any]:
        assert self._on_host, "a device tensor has no numpy form"
        return self.values

    def to_dlpack(self) -> Any:
        return torch.from_numpy(self.values).__dlpack__()


class RepeatsFirst(FakeTensor):
    """What Triton's tensor does with numpy 2: the first value over and over."""

    def as_numpy(self) -> np.ndarray[Any, Any]:
        return np.full_like(self.values, self.values.flat[0])


class FakeError(Exception):
    INVALID_ARG, NOT_FOUND, UNAVAILABLE, INTERNAL, CANCELLED = "INVALID_ARG", "NOT_FOUND", "UNAVAILABLE", "INTERNAL", "CANCELLED"

    def __init__(self, message: str, code: str = "INTERNAL") -> None:
        super().__init__(message)
        self.code = code


class FakeLoadError(Exception):
    pass


@dataclass
class FakeResponse:
    output_tensors: list[FakeTensor] = field(default_factory=list)
    error: FakeError | None = None

    def arrays(self) -> Arrays:
        assert self.error is None, self.error
        return {tensor.name(): tensor.values for tensor in self.output_tensors}


@dataclass
class FakeRequest:
    arrays: Arrays
    names: list[str]
    on_host: bool = True
    cancelled: bool = False
    sent: list[tuple[FakeResponse, str]] = field(default_factory=list)

    def get_response_sender(self) -> "FakeRequest":
        return self

    def send(self, response: FakeResponse, flags: str) -> None:
        self.sent.append((response, flags))

    def requested_output_names(self) -> list[str]:
        return self.names

    def is_cancelled(self) -> bool:
        return self.cancelled

    def inputs(self) -> list[FakeTensor]:
        return [FakeTensor(name, values.reshape(1, -1), self.on_host) for name, values in self.arrays.items()]


class FakeMetric:
    """One series of a family, kept in `FakeFamily.series`."""

    def __init__(self, family: "FakeFamily", labels: dict[str, str]) -> None:
        self._series, self._key = family.series, (family.name, *labels.values())

    def increment(self, value: float) -> None:
        self._series[self._key] = self._series.get(self._key, 0) + value

    def set(self, value: float) -> None:
        self._series[self._key] = value


class FakeFamily:
    COUNTER, GAUGE = "counter", "gauge"
    series: ClassVar[dict[tuple[str, ...], float]] = {}

    def __init__(self, name: str, description: str, kind: str) -> None:
        self.name = name

    def Metric(self, labels: dict[str, str]) -> FakeMetric:  # noqa: N802 - Triton's name
        return FakeMetric(self, labels)


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    fake = ModuleType("triton_python_backend_utils")
    parts = {
        "Tensor": FakeTensor,
        "TritonError": FakeError,
        "TritonModelException": FakeLoadError,
        "InferenceResponse": FakeResponse,
        "MetricFamily": FakeFamily,
        "TRITONSERVER_RESPONSE_COMPLETE_FINAL": "final",
    }
    FakeFamily.series.clear()
    vars(fake).update(parts)
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", fake)
    with_triton = tuple(f"emberline.serving.triton.{name}" for name in ("backend", "metrics", "tensors"))
    for name in with_triton:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module("emberline.serving.triton.backend")
    for name in with_triton:
        sys.modules.pop(name, None)


ONE_THREAD = TritonSettings(num_threads=1)


def arguments(root: Path, version: str = "1", kind: str = "CPU", device: str = "0", settings: TritonSettings = ONE_THREAD) -> dict[str, str]:
    config = text_format.Parse(config_text(load_manifest(root), root.parent, settings), model_config_pb2.ModelConfig())
    text = json.dumps(json_format.MessageToDict(config, preserving_proto_field_name=True))
    return {"model_config": text, "model_version": version, "model_instance_kind": kind, "model_instance_device_id": device}


@pytest.fixture
def model(backend: Any, toy_artifact: Path) -> Iterator[Any]:
    found = backend.TritonPythonModel()
    found.initialize(arguments(toy_artifact))
    yield found
    if hasattr(found, "_engine"):
        found.finalize()


NAMES = ["probs", "scores"]


def assert_answers(response: FakeResponse, toy: ToyModel, request: Arrays) -> None:
    for name, value in response.arrays().items():
        torch.testing.assert_close(torch.from_numpy(value), toy.answers(request)[f"output.{name}"][None], rtol=1e-6, atol=1e-6)


def test_each_request_gets_its_response(model: Any, toy: ToyModel) -> None:
    requests = [random_request(toy.schema, num_rows=rows, seed=rows, weights=bool(rows % 2)) for rows in (2, 0, 1, 3)]
    responses = model.execute([FakeRequest(request, NAMES) for request in requests])
    assert len(responses) == 4
    for request, response in zip(requests, responses, strict=True):
        assert sorted(response.arrays()) == NAMES
        assert_answers(response, toy, request)


def test_tensors_on_a_device_come_by_dlpack(model: Any, toy: ToyModel) -> None:
    request = random_request(toy.schema, num_rows=3, seed=3)
    assert_answers(model.execute([FakeRequest(request, NAMES, on_host=False)])[0], toy, request)


def test_requests_on_a_device_stay_there(model: Any, backend: Any, toy: ToyModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each by itself is told what is wrong with it, and one that is on the host may be among them."""
    good, other = (random_request(toy.schema, num_rows=3, seed=seed, raw_ids=(100, -7)) for seed in (3, 4))
    bad, large = dict(good) | {"dense": np.full(9, np.nan, np.float32)}, random_request(toy.schema, num_rows=9, seed=1)
    requests = [FakeRequest(good, NAMES, on_host=False), FakeRequest(bad, NAMES, on_host=False), FakeRequest(other, NAMES)]
    monkeypatch.setattr(model, "_limits", LimitChecker(toy.schema, RequestLimits(rows=8)))
    first, second, third, fourth = model.execute([*requests, FakeRequest(large, NAMES, on_host=False)])
    assert_answers(first, toy, good)
    assert (second.error.code, str(second.error)) == ("INVALID_ARG", "feature 'price': row 0: dense: nan is not a finite number")
    assert_answers(third, toy, other)
    assert str(fourth.error) == "the request has 9 rows; this server takes at most 8: send it in parts"
    monkeypatch.setattr(backend, "host_array", None)
    assert_answers(model.execute([FakeRequest(good, NAMES, on_host=False)])[0], toy, good)


@pytest.fixture
def asks_always(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small requests are asked whether they were cancelled, too."""
    monkeypatch.setattr(backend, "_WORTH_ASKING_BYTES", 0)


@pytest.mark.usefixtures("asks_always")
def test_bad_and_cancelled_requests_spoil_no_other(model: Any, toy: ToyModel) -> None:
    good = random_request(toy.schema, num_rows=2, seed=1)
    bad = dict(good) | {"lengths": good["lengths"][:-1]}
    requests = [FakeRequest(good, NAMES), FakeRequest(bad, NAMES), FakeRequest(good, NAMES, cancelled=True), FakeRequest(good, ["known"])]
    first, second, third, fourth = model.execute(requests)
    assert_answers(first, toy, good)
    assert (second.error.code, str(second.error)[:21]) == ("INVALID_ARG", "lengths: 7 lengths ar")
    assert (third.error.code, str(third.error)) == ("CANCELLED", "the request was cancelled")
    assert fourth.arrays()["known"].shape == (1, good["ids"].size)
    assert fourth.arrays()["known"].dtype == np.bool_


@pytest.mark.usefixtures("asks_always")
def test_no_request_is_computed_when_all_are_cancelled(model: Any, toy: ToyModel) -> None:
    request = FakeRequest(random_request(toy.schema, num_rows=1, seed=1), NAMES, cancelled=True)
    assert [response.error.code for response in model.execute([request, request])] == ["CANCELLED"] * 2


def test_only_of_large_requests_it_is_asked_whether_they_were_cancelled(model: Any, toy: ToyModel) -> None:
    small = FakeRequest(random_request(toy.schema, num_rows=1, seed=1), NAMES, cancelled=True)
    large = FakeRequest(random_request(toy.schema, num_rows=30_000, seed=1), NAMES, cancelled=True)
    first, second = model.execute([small, large])
    assert_answers(first, toy, small.arrays)
    assert second.error.code == "CANCELLED"


def test_requests_by_feature_and_packed_ones_are_answered_together(model: Any, toy: ToyModel) -> None:
    requests = [random_request(toy.schema, num_rows=rows, seed=rows, weights=False) for rows in (2, 0, 3)]
    parts = by_feature(toy.schema, requests[2])
    broken = parts | {"lengths.user": parts["lengths.user"][:-1]}
    responses = model.execute([FakeRequest(arrays, NAMES) for arrays in (requests[0], by_feature(toy.schema, requests[1]), broken, parts)])
    for response, request in zip([*responses[:2], responses[3]], requests, strict=True):
        assert_answers(response, toy, request)
    assert (responses[2].error.code, str(responses[2].error)) == ("INVALID_ARG", "lengths.user tells of 2 rows, but lengths.item of 3")


def test_requests_over_a_limit_are_refused_with_limit_and_size(backend: Any, toy: ToyModel, toy_artifact: Path) -> None:
    limited = backend.TritonPythonModel()
    limited.initialize(arguments(toy_artifact, settings=TritonSettings(num_threads=1, limits=RequestLimits(rows=3, ids=100))))
    fits, rows = (random_request(toy.schema, num_rows=number, seed=1) for number in (3, 4))
    ids: Arrays = {"ids": np.zeros(101, np.int64), "lengths": np.array([101, 0, 0, 0], np.int32), "dense": np.zeros(3, np.float32)}
    found = limited.execute([FakeRequest(request, NAMES) for request in (fits, rows, by_feature(toy.schema, rows), ids)])
    limited.finalize()
    assert_answers(found[0], toy, fits)
    assert [response.error.code for response in found[1:]] == ["INVALID_ARG"] * 3
    assert [str(response.error).partition(":")[0] for response in found[1:]] == [
        *["the request has 4 rows; this server takes at most 3"] * 2,
        "the request has 101 ids; this server takes at most 100",
    ]


@pytest.fixture
def narrow(backend: Any, toy_artifact: Path) -> Iterator[Any]:
    """A model that merges two requests, of which eight may wait."""
    found = backend.TritonPythonModel()
    found.initialize(arguments(toy_artifact, settings=TritonSettings(num_threads=1, max_merged_requests=2, max_waiting=8)))
    yield found
    found.finalize()


def toy_requests(toy: ToyModel, count: int) -> list[FakeRequest]:
    return [FakeRequest(random_request(toy.schema, num_rows=1 + number % 3, seed=number), NAMES) for number in range(count)]


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_what_waits_is_answered_batch_after_batch(narrow: Any, toy: ToyModel, count: int) -> None:
    requests = toy_requests(toy, count)
    for request, response in zip(requests, narrow.execute(requests), strict=True):
        assert_answers(response, toy, request.arrays)
    assert narrow._metrics.batches == -(-count // 2)


def test_where_as_much_waits_as_may_the_later_half_is_refused(narrow: Any, toy: ToyModel) -> None:
    requests = toy_requests(toy, 8)
    responses = narrow.execute(requests)
    for request, response in zip(requests[:4], responses[:4], strict=True):
        assert_answers(response, toy, request.arrays)
    assert {(response.error.code, str(response.error)) for response in responses[4:]} == {
        ("UNAVAILABLE", "8 requests wait for the model, more than it answers in time; try again later")
    }
    assert dict(narrow._metrics.ended) == {"ok": 4, "refused": 4}


@pytest.mark.parametrize(("least_s", "want"), [(0.0, [4, 2, 1, 1, 1, 1, 4]), (3600.0, [4, 4, 4, 4, 4, 1, 4])])
def test_while_too_much_waits_less_and_less_is_answered_but_never_nearly_nothing(
    narrow: Any, toy: ToyModel, backend: Any, monkeypatch: pytest.MonkeyPatch, least_s: float, want: list[int]
) -> None:
    monkeypatch.setattr(backend, "_LEAST_S", least_s)
    answered = []
    for count in (8, 8, 8, 8, 8, 1, 8):
        responses = narrow.execute(toy_requests(toy, count))
        answered.append([response.error is None for response in responses])
    assert [sum(found) for found in answered] == want
    assert all(found == sorted(found, reverse=True) for found in answered)


@pytest.mark.parametrize(("long_ago_s", "asked"), [(0.0, True), (3600.0, False)])
def test_what_waited_long_for_its_turn_is_asked_whether_it_was_cancelled(
    narrow: Any, toy: ToyModel, backend: Any, monkeypatch: pytest.MonkeyPatch, long_ago_s: float, asked: bool
) -> None:
    monkeypatch.setattr(backend, "_LONG_AGO_S", long_ago_s)
    requests = toy_requests(toy, 5)
    requests[3].cancelled = True
    responses = narrow.execute(requests)
    assert [response.error is not None for response in responses] == [False, False, False, asked, False]
    if asked:
        assert responses[3].error.code == "CANCELLED"
    for place in (0, 1, 2, 4) if asked else range(5):
        assert_answers(responses[place], toy, requests[place].arrays)
    assert dict(narrow._metrics.ended) == ({"ok": 4, "cancelled": 1} if asked else {"ok": 5})


def test_large_answers_are_sent_before_the_next_batch(narrow: Any, toy: ToyModel, backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "_WORTH_SENDING_BYTES", 100)  # those of 2 rows in all are smaller
    requests = [FakeRequest(random_request(toy.schema, num_rows=rows, seed=rows), NAMES) for rows in (9, 9, 1, 1, 9)]
    responses = narrow.execute(requests)
    assert [response is None for response in responses] == [True, True, False, False, True]
    for request, response in zip(requests, responses, strict=True):
        (sent, flags) = request.sent[0] if response is None else (response, "final")
        assert_answers(sent, toy, request.arrays)
        assert (flags, len(request.sent)) == ("final", int(response is None))


def test_a_batch_that_fails_takes_none_of_the_others_with_it(narrow: Any, toy: ToyModel, backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers that were sent before are not touched, and nobody hears where the code lies."""
    monkeypatch.setattr(backend, "_WORTH_SENDING_BYTES", 0)
    predict, calls = narrow._engine.predict_many, []

    def fails_second(*given: Any) -> Any:
        calls.append(given)
        if len(calls) == 2:
            raise KeyError("/where/it/is.py")
        return predict(*given)

    monkeypatch.setattr(narrow._engine, "predict_many", fails_second)
    requests = toy_requests(toy, 5)
    responses = narrow.execute(requests)
    assert [response is None for response in responses] == [True, True, False, False, True]
    assert {(response.error.code, str(response.error)) for response in responses[2:4]} == {
        ("INTERNAL", "the model failed on this request; the server's log tells more")
    }
    for request in (*requests[:2], requests[4]):
        assert_answers(request.sent[0][0], toy, request.arrays)
    assert dict(narrow._metrics.ended) == {"ok": 3, "failed": 2}


def test_what_has_no_turn_in_time_is_refused(narrow: Any, toy: ToyModel, backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "_MOST_S", 0.0)
    assert [response.error.code for response in narrow.execute(toy_requests(toy, 3))] == ["UNAVAILABLE"] * 3


class OnGpu(torch.Tensor):
    """A tensor that says that it is on a GPU."""

    is_cpu = False


def test_answers_on_a_device_go_by_dlpack_unless_they_are_empty(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def from_dlpack(name: str, tensor: torch.Tensor) -> FakeTensor:
        seen.append(name)
        return FakeTensor(name, tensor.numpy())

    monkeypatch.setattr(FakeTensor, "from_dlpack", from_dlpack)
    values = torch.arange(6.0).view(2, 3)
    found = [
        backend.given_tensor(name, tensor) for name, tensor in (("gpu", values.as_subclass(OnGpu).T), ("none", torch.empty(0, 3)), ("cpu", values.T))
    ]
    assert seen == ["gpu"]
    assert [tensor.values.tolist() for tensor in found] == [values.T.tolist(), [], values.T.tolist()]
    assert found[1].values.shape == (0, 3)


@pytest.mark.usefixtures("asks_always")
def test_metrics_tell_what_was_done(model: Any, toy: ToyModel) -> None:
    good = {"ids": np.array([100, 5, -7, 1]), "lengths": np.array([2, 1, 1, 0, 0, 0, 0, 0], np.int32), "dense": np.zeros(6, np.float32)}
    model.execute(
        [FakeRequest(good, NAMES), FakeRequest(dict(good) | {"dense": np.zeros(4, np.float32)}, NAMES), FakeRequest(good, NAMES, cancelled=True)]
    )
    model.execute([FakeRequest(good, NAMES)])
    model.finalize()
    assert FakeFamily.series == {
        ("emberline_requests_total", "toy", "1", "ok"): 2,
        ("emberline_requests_total", "toy", "1", "refused"): 1,
        ("emberline_requests_total", "toy", "1", "cancelled"): 1,
        ("emberline_batches_total", "toy", "1"): 2,
        ("emberline_table_ids_total", "toy", "1", "user_emb"): 6,
        ("emberline_table_unknown_ids_total", "toy", "1", "user_emb"): 2,
        ("emberline_model_delta", "toy", "1"): 0,
        ("emberline_table_bytes", "toy", "1"): sum(4 * rows.numel() for rows in toy.tables.values()),
        ("emberline_table_huge_page_bytes", "toy", "1"): 0,
    }


@pytest.mark.usefixtures("asks_always")
def test_lookups_alone_answer_what_programs_take(backend: Any, toy: ToyModel, toy_artifact: Path, tmp_path: Path) -> None:
    write_triton_models(toy_artifact, tmp_path / "triton", "pytorch")
    config = text_format.Parse((tmp_path / "triton" / "toy_lookup" / "config.pbtxt").read_text(), model_config_pb2.ModelConfig())
    text = json.dumps(json_format.MessageToDict(config, preserving_proto_field_name=True))
    found = backend.TritonLookupModel()
    found.initialize(arguments(toy_artifact) | {"model_config": text})
    names, engine = ["pooled", "dense"], Engine.open(toy_artifact)
    good = random_request(toy.schema, num_rows=3, seed=1)
    bad = dict(good) | {"lengths": good["lengths"][:-1]}
    first, second, third = found.execute([FakeRequest(good, names), FakeRequest(bad, names), FakeRequest(good, names, cancelled=True)])
    for name, tensor in engine.program_inputs(PackedRequest(**good)).items():
        np.testing.assert_array_equal(first.arrays()[name], tensor.numpy())
    assert (second.error.code, str(second.error)[:21]) == ("INVALID_ARG", "lengths: 11 lengths a")
    assert (third.error.code, str(third.error)) == ("CANCELLED", "the request was cancelled")
    found.finalize()
    assert FakeFamily.series["emberline_batches_total", "toy", "1"] == 1


def test_an_artifact_that_does_not_open_is_not_served(backend: Any, toy_artifact: Path) -> None:
    (toy_artifact / "tables" / "item_emb.safetensors").unlink()
    with pytest.raises(FakeLoadError, match=r"tables/item_emb\.safetensors is missing"):
        backend.TritonPythonModel().initialize(arguments(toy_artifact))


def test_a_version_that_is_not_there_is_not_served(backend: Any, toy_artifact: Path) -> None:
    with pytest.raises(FakeLoadError, match="there is no such folder"):
        backend.TritonPythonModel().initialize(arguments(toy_artifact, version="9"))


def test_a_numpy_that_triton_cannot_read_is_noticed(backend: Any, toy_artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend.pb_utils, "Tensor", RepeatsFirst)
    with pytest.raises(FakeLoadError, match=r"numpy .* do not work together: \[\[1, 2, 3, 4, 5, 6\]\] came back as \[\[1, 1, 1, 1, 1, 1\]\]"):
        backend.TritonPythonModel().initialize(arguments(toy_artifact))


@pytest.mark.parametrize(
    ("groups", "want"), [([{"count": 1}], 6), ([{"count": 4}], 1), ([{"count": 1}, {"count": 2}], 2), ([], 6), ([{"count": 99}], 1)]
)
def test_the_processes_of_a_model_share_the_cpus(backend: Any, monkeypatch: pytest.MonkeyPatch, groups: list[dict[str, int]], want: int) -> None:
    monkeypatch.setattr(backend, "usable_cpus", lambda: 6)
    assert backend.share_of_cpus({"instance_group": groups}) == want


@pytest.mark.parametrize(("kind", "device", "want"), [("CPU", "0", "cpu"), ("GPU", "0", "cuda:0"), ("GPU", "3", "cuda:3")])
def test_the_device_is_the_one_that_triton_names(backend: Any, kind: str, device: str, want: str) -> None:
    assert backend.device_of({"model_instance_kind": kind, "model_instance_device_id": device}) == want


@pytest.mark.parametrize(
    ("error", "code"),
    [
        ("RequestError", "INVALID_ARG"),
        ("TooLargeError", "INVALID_ARG"),
        ("NotFoundError", "NOT_FOUND"),
        ("OverloadedError", "UNAVAILABLE"),
        ("UnavailableError", "UNAVAILABLE"),
        ("ServingError", "INTERNAL"),
    ],
)
def test_every_error_has_its_code(backend: Any, error: str, code: str) -> None:
    errors = importlib.import_module("emberline.errors")
    assert backend.error_response(getattr(errors, error)("why")).error.code == code


def test_finalize_lets_go_of_the_engine(model: Any) -> None:
    model.finalize()
    assert not hasattr(model, "_engine")
