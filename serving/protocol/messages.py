"""An inference request and its answer, as both transports hand them to the data plane."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from emberline.errors import RequestError
from emberline.serving.protocol.strict_json import quote
from emberline.serving.protocol.tensors import Tensor

MOST_TENSORS = 4096
"""Inputs of a request, and outputs that it names, at most: each costs the event loop some time."""
_SHARED_MEMORY = "shared_memory_region"
_SEQUENCE = ("sequence_id", "sequence_start", "sequence_end", "priority")


@dataclass(frozen=True, kw_only=True)
class InferRequest:
    """One KServe v2 inference request.

    Args:
        model: the model's name.
        version: empty for the newest.
        id: echoed in the answer.
        inputs: each name once.
        outputs: the names wanted, each once, in the order of the answer; None for all of the model's outputs.
        timeout_s: how long the caller waits; None where it did not say.
    """

    model: str
    version: str = ""
    id: str = ""
    inputs: tuple[Tensor, ...]
    outputs: tuple[str, ...] | None = None
    timeout_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class InferResponse:
    """The answer to one request: which version of which model gave it, and its tensors in the order asked for."""

    model: str
    version: str
    id: str
    outputs: tuple[Tensor, ...]


def check_names(what: str, names: Iterable[str]) -> tuple[str, ...]:
    """The names in order, each once.

    Raises:
        RequestError: a name comes twice.
    """
    found: dict[str, None] = {}
    for name in names:
        if name in found:
            raise RequestError(f"{what} {quote(name)} comes twice")
        found[name] = None
    return tuple(found)


def check_count(what: str, count: int) -> None:
    """Refuse a request that names far more tensors than any model has.

    Raises:
        RequestError: there are more than `MOST_TENSORS`.
    """
    if count > MOST_TENSORS:
        raise RequestError(f"the request has {count} {what}; it may have {MOST_TENSORS}")


def read_parameters(parameters: Mapping[str, object]) -> float | None:
    """The timeout in seconds that a request's parameters ask for, if any.

    `timeout` is in microseconds, as in Triton; parameters that would change the answer and that this server has no use for are refused, the
    caller's own are left alone.

    Raises:
        RequestError: a parameter is of the wrong type or not supported.
    """
    for name in _SEQUENCE:
        if parameters.get(name):
            raise RequestError(f"the parameter {quote(name)} is not supported: requests are independent, and served in the order they come")
    timeout = parameters.get("timeout")
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, int) or timeout < 0:
        raise RequestError('the parameter "timeout" must be a whole number of microseconds, 0 for the server\'s own limit')
    return timeout / 1e6 if timeout else None


def check_tensor_parameters(what: str, name: str, parameters: Mapping[str, object]) -> None:
    """Refuse what a tensor's parameters may ask of Triton but not of this server.

    Raises:
        RequestError: the tensor lies in shared memory, or is to be classified.
    """
    if _SHARED_MEMORY in parameters:
        raise RequestError(f"{what} {quote(name)}: shared memory is not supported; send the values in the request")
    if parameters.get("classification"):
        raise RequestError(f"{what} {quote(name)}: classification is not supported; ask for the output itself")
