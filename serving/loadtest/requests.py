"""What a load test sends, prepared before it begins: rows from a file or made, in requests of one form."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import orjson

from emberline.errors import ConfigError, DataError, RequestError
from emberline.schema import ModelSchema
from emberline.serving.ask_forms import RowForm
from emberline.serving.client.data import encode_data, split_encoded
from emberline.serving.engine import LOOKUP_PREFIX
from emberline.serving.loadtest.made_rows import Row, RowMaker
from emberline.serving.loadtest.senders import Prepared
from emberline.serving.protocol.wire import wire_inputs, wire_outputs
from emberline.serving.request import PackedRequest

FORMS = ("binary", "json", "rows")
"""KServe v2 with binary tensors (gRPC: raw contents), the same in JSON, and plain rows."""
_MOST_REQUESTS, _MOST_ROWS = 512, 20_000
"""Different requests that are made; after the last one the first comes again."""
_LENGTH = "Inference-Header-Content-Length"


def made_rows(schema: ModelSchema, num_rows: int, *, unknown_share: float, seed: int) -> list[Row]:
    """Rows for as many different requests of `num_rows` rows as are worth their time."""
    count = max(8, min(_MOST_REQUESTS, _MOST_ROWS // num_rows))
    return RowMaker(schema, unknown_share=unknown_share, seed=seed).make(count * num_rows)


def read_rows(schema: ModelSchema, path: Path, num_rows: int) -> list[Row]:
    """The rows of a file, a JSON object a line; the first ones once more, so that they fill requests of `num_rows` rows.

    Raises:
        DataError: the file cannot be read, has no rows, or a line is no row of the model.
    """
    found: list[Row] = []
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    found.append(_row(schema, path, number, line))
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    if not found:
        raise DataError(f"{path} has no rows: give one JSON object of columns and values a line")
    distinct = len(found)
    while len(found) % num_rows:
        found.append(found[len(found) % distinct])
    return found


def prepare(
    schema: ModelSchema, rows: Sequence[Row], num_rows: int, *, url: str, model: str, version: str, form: str, only: Sequence[str]
) -> list[Prepared]:
    """The requests.

    Args:
        schema: the model's description.
        rows: what is sent, a multiple of `num_rows`.
        num_rows: of each request.
        url: where to; its scheme tells the protocol.
        model: its name.
        version: empty for the one that is served.
        form: one of `FORMS`.
        only: names of outputs, or of groups after `lookup.`; all outputs where there is none, and all groups of a model that has no outputs.

    Raises:
        ConfigError: there is no such form over this protocol, or not with these names.
        RequestError: a name is unknown, or a row cannot be encoded.
    """
    names = _choose(schema, only)
    if form == "rows":
        return _plain_requests(rows, num_rows, url=url, model=model, version=version, names=names)
    requests = split_encoded(schema, encode_data(schema, rows), num_rows)
    if url.startswith("grpc"):
        if form != "binary":
            raise ConfigError(f"--form {form} is for HTTP; gRPC has binary only")
        return [Prepared(_message(schema, request, model, version, names)) for request in requests]
    path = f"/v2/models/{quote(model, safe='')}" + (f"/versions/{quote(version, safe='')}" if version else "") + "/infer"
    body = _binary if form == "binary" else _json
    return [body(schema, request, path, names) for request in requests]


def _row(schema: ModelSchema, path: Path, number: int, line: bytes) -> Row:
    try:
        return RowForm().read(schema, line)
    except RequestError as error:
        raise DataError(f"{path}, line {number}: {error}") from error


def _choose(schema: ModelSchema, only: Sequence[str]) -> list[str]:
    known = [tensor.name for tensor in wire_outputs(schema)]
    for name in only:
        if name not in known:
            raise RequestError(f"the model has no answer {name!r}; it has {', '.join(known)}")
    return list(dict.fromkeys(only)) or [output.name for output in schema.outputs] or [name for name in known if name.startswith(LOOKUP_PREFIX)]


def _plain_requests(rows: Sequence[Row], num_rows: int, *, url: str, model: str, version: str, names: Sequence[str]) -> list[Prepared]:
    if url.startswith("grpc") or version:
        raise ConfigError("--form rows is for HTTP, and asks the version that is served: leave --version out, or take --form binary or json")
    groups = [name.removeprefix(LOOKUP_PREFIX) for name in names if name.startswith(LOOKUP_PREFIX)]
    if groups and len(groups) != len(names):
        raise ConfigError("--form rows asks for outputs or for groups, not for both at once: change --only")
    path = f"/v1/models/{quote(model, safe='')}:{'lookup' if groups else 'predict'}"
    parts = [rows[start : start + num_rows] for start in range(0, len(rows), num_rows)]
    return [Prepared(orjson.dumps({"rows": part, "outputs": groups or names}), path, {"Content-Type": "application/json"}) for part in parts]


def _tensors(schema: ModelSchema, request: PackedRequest) -> Iterator[tuple[dict[str, Any], Any]]:
    """Each tensor's head and its values."""
    for tensor in wire_inputs(schema):
        values = getattr(request, tensor.name)
        if values is not None:
            yield {"name": tensor.name, "shape": [1, values.size], "datatype": _DATATYPES[values.dtype.name]}, values


_DATATYPES = {"int64": "INT64", "int32": "INT32", "float32": "FP32"}


def _binary(schema: ModelSchema, request: PackedRequest, path: str, names: Sequence[str]) -> Prepared:
    inputs, parts = [], []
    for head, values in _tensors(schema, request):
        inputs.append({**head, "parameters": {"binary_data_size": values.nbytes}})
        parts.append(values.tobytes())
    outputs = [{"name": name, "parameters": {"binary_data": True}} for name in names]
    json_part = orjson.dumps({"inputs": inputs, "outputs": outputs})
    headers = {_LENGTH: str(len(json_part)), "Content-Type": "application/octet-stream"}
    return Prepared(b"".join([json_part, *parts]), path, headers)


def _json(schema: ModelSchema, request: PackedRequest, path: str, names: Sequence[str]) -> Prepared:
    inputs = [{**head, "data": values.tolist()} for head, values in _tensors(schema, request)]
    return Prepared(orjson.dumps({"inputs": inputs, "outputs": [{"name": name} for name in names]}), path, {"Content-Type": "application/json"})


def _message(schema: ModelSchema, request: PackedRequest, model: str, version: str, names: Sequence[str]) -> bytes:
    from tritonclient.grpc import service_pb2 as pb

    message = pb.ModelInferRequest(model_name=model, model_version=version)
    for head, values in _tensors(schema, request):
        message.inputs.add(**head)
        message.raw_input_contents.append(values.tobytes())
    for name in names:
        message.outputs.add(name=name)
    found: bytes = message.SerializeToString()
    return found
