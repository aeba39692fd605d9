import grpc
import pytest

from emberline import errors
from emberline.errors import DeadlineError, OverloadedError, RequestError, ServingError, TooLargeError, UnavailableError
from emberline.serving.protocol.status import STATUSES, describe_error, error_for_grpc, error_for_http


def test_every_serving_error_has_a_status() -> None:
    kinds = {kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, ServingError)}
    assert set(STATUSES) == kinds
    assert all(hasattr(grpc.StatusCode, status.grpc) for status in STATUSES.values())


@pytest.mark.parametrize("kind", list(STATUSES))
def test_an_http_status_gives_its_error_back(kind: type[ServingError]) -> None:
    assert type(error_for_http(STATUSES[kind].http, "why")) is kind


@pytest.mark.parametrize("kind", [kind for kind in STATUSES if kind is not TooLargeError])
def test_a_grpc_code_gives_its_error_back(kind: type[ServingError]) -> None:
    assert type(error_for_grpc(STATUSES[kind].grpc, "why")) is kind


def test_statuses_of_other_servers_find_the_nearest_error() -> None:
    assert type(error_for_http(499, "")) is DeadlineError
    assert type(error_for_http(422, "")) is RequestError
    assert type(error_for_http(502, "")) is ServingError
    assert type(error_for_grpc("CANCELLED", "")) is UnavailableError
    assert type(error_for_grpc("UNKNOWN", "")) is ServingError
    assert type(error_for_grpc("RESOURCE_EXHAUSTED", "Sent message larger than max (5 vs. 4)")) is TooLargeError
    assert type(error_for_grpc("RESOURCE_EXHAUSTED", "queue is full")) is OverloadedError


def test_a_fault_of_ours_tells_the_caller_nothing_of_its_inside() -> None:
    status, message = describe_error(ValueError("/secret/path"))
    assert (status.http, status.grpc) == (500, "INTERNAL")
    assert "secret" not in message


def test_a_serving_error_tells_its_message() -> None:
    assert describe_error(RequestError("the input"))[1] == "the input"
