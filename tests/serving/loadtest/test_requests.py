"""What is sent asks for the rows that were given, in every form: servers answer it with the right rows."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb

from emberline.errors import ConfigError, DataError, RequestError
from emberline.serving.client.data import encode_data
from emberline.serving.encoded import pack_encoded
from emberline.serving.loadtest.requests import made_rows, prepare, read_rows
from emberline.serving.loadtest.senders import Prepared
from tests.serving.conftest import toy_schema

ROWS = [{"user": number, "item": [number % 3], "tags": {"7": 0.5}, "price": 1.5} for number in range(6)]
SCHEMA = toy_schema()


def made(form: str, url: str = "http://x", only: tuple[str, ...] = (), version: str = "") -> list[Prepared]:
    return prepare(SCHEMA, ROWS, 2, url=url, model="m/1", version=version, form=form, only=only)


@pytest.mark.parametrize("form", ["binary", "json", "grpc"])
def test_tensors_are_those_of_the_rows(form: str) -> None:
    requests = made("binary", "grpc://x", version="3") if form == "grpc" else made(form, version="3")
    assert len(requests) == 3
    for number, request in enumerate(requests):
        want = pack_encoded(SCHEMA, encode_data(SCHEMA, ROWS[2 * number : 2 * number + 2]))
        found = {}
        if form == "grpc":
            message = pb.ModelInferRequest.FromString(request.body)
            assert (message.model_name, message.model_version) == ("m/1", "3")
            for tensor, raw in zip(message.inputs, message.raw_input_contents, strict=True):
                found[tensor.name] = np.frombuffer(raw, getattr(want, tensor.name).dtype)
                assert list(tensor.shape) == [1, found[tensor.name].size]
            names = [output.name for output in message.outputs]
        else:
            assert request.path == "/v2/models/m%2F1/versions/3/infer"
            end = int(request.headers.get("Inference-Header-Content-Length", len(request.body)))
            head, start = json.loads(request.body[:end]), end
            for tensor in head["inputs"]:
                wanted = getattr(want, tensor["name"])
                if form == "json":
                    found[tensor["name"]] = np.array(tensor["data"], wanted.dtype)
                    continue
                size = tensor["parameters"]["binary_data_size"]
                found[tensor["name"]] = np.frombuffer(request.body[start : start + size], wanted.dtype)
                start += size
            names = [output["name"] for output in head["outputs"]]
        assert names == [output.name for output in SCHEMA.outputs]
        for name in ("ids", "lengths", "weights", "dense"):
            np.testing.assert_array_equal(found[name], getattr(want, name))


def test_plain_rows() -> None:
    first = made("rows")[0]
    assert first.path == "/v1/models/m%2F1:predict"
    assert json.loads(first.body) == {"rows": ROWS[:2], "outputs": [output.name for output in SCHEMA.outputs]}
    group = SCHEMA.groups[0].name
    looked_up = made("rows", only=(f"lookup.{group}",))[0]
    assert (looked_up.path, json.loads(looked_up.body)["outputs"]) == ("/v1/models/m%2F1:lookup", [group])


def test_what_cannot_be_asked_is_refused() -> None:
    for form in ("json", "rows"):
        with pytest.raises(ConfigError, match=f"--form {form} is for HTTP"):
            made(form, "grpc://x")
    with pytest.raises(ConfigError, match="leave --version out"):
        made("rows", version="2")
    with pytest.raises(ConfigError, match="for outputs or for groups"):
        made("rows", only=(SCHEMA.outputs[0].name, f"lookup.{SCHEMA.groups[0].name}"))
    with pytest.raises(RequestError, match="the model has no answer 'nothing'; it has "):
        made("binary", only=("nothing",))


def test_a_file_fills_whole_requests(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in ROWS[:5]) + "\n\n")
    assert read_rows(SCHEMA, path, 2) == [*ROWS[:5], ROWS[0]]
    assert read_rows(SCHEMA, path, 12) == [*ROWS[:5], *ROWS[:5], *ROWS[:2]]
    path.write_text('{"user": 1}\n{"usr": 1}\n')
    with pytest.raises(DataError, match=r"rows.jsonl, line 2: the model reads no column .?usr"):
        read_rows(SCHEMA, path, 1)
    path.write_text("\n")
    with pytest.raises(DataError, match="has no rows"):
        read_rows(SCHEMA, path, 1)
    with pytest.raises(DataError, match=r"gone cannot be read: No such file"):
        read_rows(SCHEMA, tmp_path / "gone", 1)


def test_made_requests_are_many_but_not_without_end() -> None:
    schema = replace(SCHEMA, features=SCHEMA.features[:1], lookups=())
    for num_rows, count in ((1, 512), (100, 200), (5000, 8)):
        assert len(made_rows(schema, num_rows, unknown_share=0.0, seed=0)) == num_rows * count
