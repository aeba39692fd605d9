"""Whether a model of a server answers now: a real request with a deadline, where a ready endpoint only says that it was loaded."""

import argparse
import http.client
import json
import time
from contextlib import closing, suppress
from functools import partial
from typing import Any
from urllib.parse import SplitResult, quote, urlsplit

from emberline.errors import DeadlineError, RequestError, ServingError, UnavailableError
from emberline.schema import ModelSchema
from emberline.serving.cli import seconds
from emberline.serving.protocol import packing
from emberline.serving.protocol.status import error_for_http
from emberline.serving.protocol.wire import wire_inputs, wire_outputs
from emberline.serving.security.access import NO_ACCESS, Access, access_of, configure_access
from emberline.serving.triton.config import SCHEMA_PARAMETER


def probe(url: str, model: str, *, timeout_s: float = 1.0, access: Access = NO_ACCESS) -> float:
    """Ask for one row without ids, of the embedded server or of Triton.

    Args:
        url: `http://host:port`, or `https`.
        model: its name.
        timeout_s: for the whole of it.
        access: what the server is shown, and whom to trust.

    Returns:
        Seconds that the answer took.

    Raises:
        ServingError: there was no right answer in time; the class tells why.
    """
    parts = _parse(url)
    access.check(url, is_private=parts.scheme == "https")
    connect = partial(http.client.HTTPSConnection, context=access.context()) if parts.scheme == "https" else http.client.HTTPConnection
    start = time.monotonic()
    try:
        with closing(connect(parts.hostname or "", parts.port, timeout=timeout_s)) as connection:
            path = f"{parts.path.rstrip('/')}/v2/models/{quote(model, safe='')}"
            config = _ask(connection, access, "GET", f"{path}/config", None)
            schema = ModelSchema.from_dict(json.loads(config["parameters"][SCHEMA_PARAMETER]["string_value"]))
            connection.timeout = max(start + timeout_s - time.monotonic(), 1e-3)
            if connection.sock is not None:  # else the next request opens a new one
                connection.sock.settimeout(connection.timeout)
            shape = list(_ask(connection, access, "POST", f"{path}/infer", empty_row(schema))["outputs"][0]["shape"])
    except TimeoutError:
        raise DeadlineError(f"model {model!r} of {url} gave no answer within {timeout_s:g} s") from None
    except (OSError, http.client.HTTPException) as error:
        raise UnavailableError(f"cannot reach {url}: {error}") from None
    except (AttributeError, LookupError, TypeError, ValueError):
        raise ServingError(f"{url} does not answer as a server of Emberline's models does") from None
    if shape[:2] != [1, 1]:
        raise ServingError(f"model {model!r} of {url} answered one row with shape {shape}")
    return time.monotonic() - start


def empty_row(schema: ModelSchema) -> dict[str, Any]:
    """A v2 JSON request for one row whose bags are empty and whose numbers are 0, which every model takes."""
    packed = packing.empty_row(schema)
    values = {tensor: getattr(packed, tensor.name).tolist() for tensor in wire_inputs(schema) if not tensor.optional}
    inputs = [{"name": one.name, "shape": [1, len(data)], "datatype": one.datatypes[0], "data": data} for one, data in values.items()]
    return {"inputs": inputs, "outputs": [{"name": wire_outputs(schema)[0].name}]}


def configure_probe(parser: argparse.ArgumentParser) -> None:
    """Options of `emberline probe`."""
    parser.add_argument("--url", required=True, help="http://host:port or https://host:port, of the embedded server or of Triton")
    parser.add_argument("--model", required=True, help="the model's name")
    parser.add_argument("--timeout", type=seconds, default=1.0, help="seconds (default: %(default)g)")
    configure_access(parser)


def run_probe(args: argparse.Namespace) -> int:
    """Say how long it took; a model that does not answer ends it with status 1."""
    print(f"{args.model} answered in {1000 * probe(args.url, args.model, timeout_s=args.timeout, access=access_of(args)):.1f} ms")
    return 0


def _parse(url: str) -> SplitResult:
    with suppress(ValueError):  # a port that is none
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return parts
    raise RequestError(f"the URL {url!r} must be http://host:port or https://host:port")


def _ask(connection: http.client.HTTPConnection, access: Access, method: str, path: str, body: Any) -> Any:
    connection.request(method, path, None if body is None else json.dumps(body), {"Content-Type": "application/json", **access.headers})
    response = connection.getresponse()
    text = response.read()
    if response.status != http.HTTPStatus.OK:
        raise error_for_http(response.status, json.loads(text).get("error", ""))
    return json.loads(text)
