"""The gRPC face beyond what the conformance suite asks of every server."""

from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from emberline.serving.server import EmbeddedServer
from emberline.serving.settings import ServerSettings
from tests.serving.conftest import ToyModel, make_toy
from tests.serving.ways import same

LIMIT = 20_000


@pytest.fixture(scope="module")
def model() -> ToyModel:
    return make_toy()


@pytest.fixture(scope="module")
def server(model: ToyModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    models = tmp_path_factory.mktemp("models")
    model.write(models)
    with EmbeddedServer(models, settings=ServerSettings(num_threads=1, max_request_bytes=LIMIT)) as server:
        yield server


@pytest.fixture(scope="module")
def stub(server: EmbeddedServer) -> Iterator[Any]:
    with grpc.insecure_channel(server.grpc_url.removeprefix("grpc://")) as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


def typed_request(*users: int) -> Any:
    """Rows with a user each and nothing else, in typed contents."""
    request = pb.ModelInferRequest(model_name="toy")
    request.outputs.add(name="lookup.wide")
    for name, datatype, field, values in (
        ("ids", "INT64", "int64_contents", list(users)),
        ("lengths", "INT32", "int_contents", [1] * len(users) + [0] * 3 * len(users)),
        ("dense", "FP32", "fp32_contents", [0.0] * 3 * len(users)),
    ):
        tensor = request.inputs.add(name=name, datatype=datatype, shape=[1, len(values)])
        getattr(tensor.contents, field).extend(values)
    return request


def refusal(stub: Any, request: Any, **kwargs: Any) -> tuple[str, str]:
    with pytest.raises(grpc.RpcError) as caught:
        stub.ModelInfer(request, **kwargs)
    return caught.value.code().name, caught.value.details() or ""


@pytest.mark.parametrize("user", [2**62, 2**62 + 1, 9007199254740993, -(2**63), 2**63 - 1, -7])
def test_typed_ids_are_exact(stub: Any, model: ToyModel, user: int) -> None:
    answer = stub.ModelInfer(typed_request(user))
    want = model.tables["user_emb"][model.remaps["user_emb"].row(user)]
    same(np.frombuffer(answer.raw_output_contents[0], np.float32), want.numpy())
    assert [output.name for output in answer.outputs] == ["lookup.wide"]


def test_a_typed_batch_without_rows_is_answered(stub: Any) -> None:
    answer = stub.ModelInfer(typed_request())
    assert (list(answer.outputs[0].shape), list(answer.raw_output_contents)) == ([1, 0, 4], [b""])


def test_values_in_the_wrong_field_are_refused_by_tensor(stub: Any) -> None:
    request = typed_request(1)
    request.inputs[0].contents.int_contents.append(1)
    assert refusal(stub, request) == ("INVALID_ARGUMENT", 'input "ids" is INT64: its values belong in int64_contents, found int_contents')


def test_raw_and_typed_values_at_once_are_refused(stub: Any) -> None:
    request = typed_request(1)
    request.raw_input_contents.extend([b"", b"", b""])
    assert refusal(stub, request) == ("INVALID_ARGUMENT", 'input "ids" has values both in raw_input_contents and in int64_contents')
    del request.raw_input_contents[2]
    assert "raw_input_contents has 2 entries for 3 inputs" in refusal(stub, request)[1]


def test_typed_values_that_do_not_fit_their_shape_are_refused(stub: Any) -> None:
    request = typed_request(1)
    request.inputs[0].shape[:] = [1, 2]
    assert refusal(stub, request) == ("INVALID_ARGUMENT", 'input "ids": shape [1, 2] takes 2 values, but 1 came')


def test_parameters_are_read(stub: Any) -> None:
    request = typed_request(1)
    request.parameters["sequence_id"].int64_param = 3
    assert 'the parameter "sequence_id" is not supported' in refusal(stub, request)[1]


def test_bytes_that_are_no_message_are_refused(server: EmbeddedServer) -> None:
    with grpc.insecure_channel(server.grpc_url.removeprefix("grpc://")) as channel, pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary("/inference.GRPCInferenceService/ModelInfer", None, None)(b"\xff" * 20)
    assert (caught.value.code().name, caught.value.details()) == ("INVALID_ARGUMENT", "the request is no ModelInferRequest of protobuf")


def test_the_message_limit_is_https(stub: Any) -> None:
    fits, over = typed_request(1), typed_request(1)
    fits.id, over.id = "x" * (LIMIT - fits.ByteSize() - 4), "x" * LIMIT
    assert fits.ByteSize() <= LIMIT
    assert stub.ModelInfer(fits).id == fits.id
    code, details = refusal(stub, over)
    assert code == "RESOURCE_EXHAUSTED"
    assert f"{over.ByteSize()} vs. {LIMIT}" in details


def test_calls_that_are_not_there_are_unimplemented(stub: Any) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        stub.SystemSharedMemoryStatus(pb.SystemSharedMemoryStatusRequest())
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_statistics_count_successes_and_failures(stub: Any) -> None:
    def counts() -> tuple[int, int]:
        stats = stub.ModelStatistics(pb.ModelStatisticsRequest(name="toy")).model_stats[0]
        return stats.inference_stats.success.count, stats.inference_stats.fail.count

    before = counts()
    stub.ModelInfer(typed_request(1))
    bad = typed_request(1)
    bad.inputs[1].contents.int_contents[0] = 2
    assert refusal(stub, bad)[0] == "INVALID_ARGUMENT"
    assert [new - old for new, old in zip(counts(), before, strict=True)] == [1, 1]
    assert len(stub.ModelStatistics(pb.ModelStatisticsRequest()).model_stats) == 1
