import json

import pytest

from emberline.errors import RequestError
from emberline.serving.http.infer import decode_infer
from emberline.serving.protocol.messages import MOST_TENSORS, check_count, check_names, check_tensor_parameters, read_parameters


def test_a_timeout_is_in_microseconds() -> None:
    assert read_parameters({"timeout": 1_500_000}) == 1.5
    assert read_parameters({"timeout": 0}) is None
    assert read_parameters({"anything": "of the caller's"}) is None


@pytest.mark.parametrize("timeout", ["1", 1.5, -1, True])
def test_a_timeout_of_another_kind_is_refused(timeout: object) -> None:
    with pytest.raises(RequestError, match='the parameter "timeout" must be'):
        read_parameters({"timeout": timeout})


@pytest.mark.parametrize("name", ["sequence_id", "sequence_start", "priority"])
def test_what_would_need_state_is_refused(name: str) -> None:
    with pytest.raises(RequestError, match=f'the parameter "{name}" is not supported'):
        read_parameters({name: 7})


def test_names_come_once() -> None:
    assert check_names("the input", ["b", "a"]) == ("b", "a")
    with pytest.raises(RequestError, match='the input "a" comes twice'):
        check_names("the input", ["a", "b", "a"])


@pytest.mark.parametrize(("parameters", "problem"), [({"shared_memory_region": "r"}, "shared memory"), ({"classification": 3}, "classification")])
def test_what_a_tensor_may_ask_of_triton_only_is_refused(parameters: dict[str, object], problem: str) -> None:
    with pytest.raises(RequestError, match=f'output "probs": {problem} is not supported'):
        check_tensor_parameters("output", "probs", parameters)


def test_more_tensors_than_any_model_has_are_refused() -> None:
    check_count("inputs", MOST_TENSORS)
    with pytest.raises(RequestError, match="the request has 4097 inputs; it may have 4096"):
        check_count("inputs", MOST_TENSORS + 1)
    assert len(check_names("the output", map(str, range(100_000)))) == 100_000
    for key in ("inputs", "outputs"):
        body = json.dumps({"inputs": [], key: [{"name": str(number)} for number in range(5000)]}).encode()
        with pytest.raises(RequestError, match=f"the request has 5000 {key}; it may have 4096"):
            decode_infer(bytearray(body), None, "m", "")
