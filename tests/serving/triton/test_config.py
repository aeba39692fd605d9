"""The generated config.pbtxt: the standing example, and a reading of it by protobuf's own parser."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2

from emberline.errors import ConfigError
from emberline.manifest import ArtifactManifest
from emberline.schema import HashEncoder, LookupSpec, ModelSchema, Pooling
from emberline.serving.artifact import load_manifest
from emberline.serving.limits import RequestLimits
from emberline.serving.triton.config import config_text, quote
from emberline.serving.triton.settings import TritonSettings
from tests.serving.conftest import ToyModel, make_lookup_model, sparse


def manifest_of(model: ToyModel, tmp_path: Path) -> ArtifactManifest:
    return load_manifest(model.write(tmp_path))


def parse(text: str) -> "model_config_pb2.ModelConfig":
    return text_format.Parse(text, model_config_pb2.ModelConfig())


def test_the_standing_example_is_what_is_generated(toy: ToyModel, tmp_path: Path, repository: Path) -> None:
    text = (repository / "model_repository" / "toy" / "config.pbtxt").read_text()
    assert config_text(manifest_of(toy, tmp_path), Path("/models/toy")) == text


def test_triton_reads_what_is_meant(toy: ToyModel, tmp_path: Path) -> None:
    settings = TritonSettings(instances=3, num_threads=2, max_merged_requests=16, max_waiting=0, lookup="torch")
    config = parse(config_text(manifest_of(toy, tmp_path), Path('/models/a "b"\\c'), settings))
    assert (config.name, config.backend, config.max_batch_size) == ("toy", "python", 16)
    types = model_config_pb2.DataType
    assert [(item.name, types.Name(item.data_type), list(item.dims), item.optional) for item in config.input] == [
        ("ids", "TYPE_INT64", [-1], False),
        ("lengths", "TYPE_INT32", [-1], False),
        ("weights", "TYPE_FP32", [-1], True),
        ("dense", "TYPE_FP32", [-1], False),
    ]
    assert all(item.allow_ragged_batch for item in config.input)
    assert [(item.name, types.Name(item.data_type), list(item.dims)) for item in config.output] == [
        ("probs", "TYPE_FP32", [-1]),
        ("scores", "TYPE_FP32", [-1, 3]),
        ("lookup.deep", "TYPE_FP32", [-1, 27]),
        ("lookup.wide", "TYPE_FP32", [-1, 4]),
        ("known", "TYPE_BOOL", [-1]),
    ]
    assert config.HasField("dynamic_batching")
    assert [(group.count, group.kind) for group in config.instance_group] == [(3, model_config_pb2.ModelInstanceGroup.KIND_CPU)]
    assert list(config.version_policy.specific.versions) == [1]
    assert not config.model_transaction_policy.decoupled
    values = {name: value.string_value for name, value in config.parameters.items()}
    assert values["emberline_artifact"] == '/models/a "b"\\c'
    assert values["emberline_version"] == "1"
    assert values["emberline_lookup"] == "torch"
    assert values["emberline_threads"] == "2"
    assert ModelSchema.from_dict(json.loads(values["emberline_schema"])) == toy.schema


@pytest.mark.parametrize(("device", "gpus"), [("cuda", []), ("cuda:3", [3])])
def test_models_run_on_each_gpu_or_on_one(toy: ToyModel, tmp_path: Path, device: str, gpus: list[int]) -> None:
    config = parse(config_text(manifest_of(toy, tmp_path), tmp_path, TritonSettings(device=device, instances=2)))
    kind = model_config_pb2.ModelInstanceGroup.KIND_GPU
    assert [(group.count, group.kind, list(group.gpus)) for group in config.instance_group] == [(2, kind, gpus)]
    assert config.parameters["FORCE_CPU_ONLY_INPUT_TENSORS"].string_value == "no"


@pytest.mark.parametrize("device", ["", "gpu", "cuda:", "cuda:x", "cuda:-1", "mps"])
def test_no_other_device_is_taken(device: str) -> None:
    with pytest.raises(ConfigError, match="Triton runs models on cpu, cuda"):
        TritonSettings(device=device)


def test_a_request_waits_no_longer_than_is_said(toy: ToyModel, tmp_path: Path) -> None:
    config = parse(config_text(manifest_of(toy, tmp_path), tmp_path, TritonSettings(timeout_s=1.5, max_waiting=7)))
    policy = config.dynamic_batching.default_queue_policy
    reject = model_config_pb2.ModelQueuePolicy.REJECT
    assert (policy.timeout_action, policy.default_timeout_microseconds, policy.allow_timeout_override, policy.max_queue_size) == (
        reject,
        1500000,
        True,
        7,
    )


@pytest.mark.parametrize(
    ("settings", "handed_over", "merged"),
    [
        (TritonSettings(), 512, "64"),
        (TritonSettings(instances=3), 171, "64"),
        (TritonSettings(instances=100), 128, "64"),
        (TritonSettings(max_waiting=7, max_merged_requests=16), 7, "16"),
        (TritonSettings(max_waiting=0, max_merged_requests=16), 16, None),
        (TritonSettings(timeout_s=1), 64, None),
    ],
)
def test_a_process_is_given_as_much_as_may_wait(
    toy: ToyModel, tmp_path: Path, settings: TritonSettings, handed_over: int, merged: str | None
) -> None:
    config = parse(config_text(manifest_of(toy, tmp_path), tmp_path, settings))
    assert config.max_batch_size == handed_over
    assert (config.parameters["emberline_max_merged"].string_value if "emberline_max_merged" in config.parameters else None) == merged


@pytest.mark.parametrize(
    ("given_settings", "message"),
    [
        ({"instances": 0}, "instances must be a whole number from 1 on; found 0"),
        ({"instances": True}, "instances must be a whole number from 1 on; found True"),
        ({"instances": 1.5}, r"instances must be a whole number from 1 on; found 1\.5"),
        ({"num_threads": 0}, "num_threads must be a whole number from 1 on; found 0"),
        ({"max_merged_requests": 0}, "max_merged_requests must be a whole number from 1 on; found 0"),
        ({"max_waiting": -1}, "max_waiting must be a whole number from 0 on; found -1"),
        ({"timeout_s": -1.0}, r"timeout_s must be seconds from 0 on, below 1,000,000; found -1\.0"),
        ({"timeout_s": float("nan")}, "timeout_s must be seconds from 0 on, below 1,000,000; found nan"),
        ({"delta_poll_s": float("inf")}, "delta_poll_s must be seconds from 0 on, below 1,000,000; found inf"),
        ({"format": "pickle"}, "format must be one of torchscript, aoti, onnx; found 'pickle'"),
        ({"lookup": "magic"}, "lookup must be one of .*; found 'magic'"),
    ],
)
def test_settings_that_nothing_can_serve_by_are_refused(given_settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"TritonSettings: {message}"):
        TritonSettings(**given_settings)


@pytest.mark.parametrize("limit", ["rows", "ids", "padded_steps"])
@pytest.mark.parametrize("value", [0, -5, 2.5])
def test_limits_that_let_nothing_through_are_refused(limit: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"RequestLimits: {limit} must be a whole number from 1 on; found {value}"):
        RequestLimits(**{limit: value})


def test_a_queue_has_no_rules_unless_asked_for(toy: ToyModel, tmp_path: Path) -> None:
    """With any of them, Triton leaves a request that comes while another is computed for half a second."""
    config = parse(config_text(manifest_of(toy, tmp_path), tmp_path))
    assert config.HasField("dynamic_batching")
    assert not config.dynamic_batching.HasField("default_queue_policy")


def test_inputs_by_feature_are_there_on_request(toy: ToyModel, tmp_path: Path) -> None:
    config = parse(config_text(manifest_of(toy, tmp_path), tmp_path, TritonSettings(by_feature=True)))
    names = [item.name for item in config.input]
    assert names[:4] == ["ids", "lengths", "weights", "dense"]
    assert {"values.user", "lengths.user", "values.price", "weights.tags"} < set(names)
    assert all(item.optional and item.allow_ragged_batch for item in config.input)


def test_a_model_has_only_the_inputs_that_it_needs(tmp_path: Path) -> None:
    lookup = LookupSpec(key="f", feature="f", table="t", pooling=Pooling.SUM, dim=2)
    model = make_lookup_model((lookup,), (sparse("f", HashEncoder(rows=4)),), {"t": torch.zeros(4, 2)})
    config = parse(config_text(manifest_of(model, tmp_path), tmp_path))
    assert [item.name for item in config.input] == ["ids", "lengths"]


@given(st.text())
def test_any_text_survives_quoting(text: str) -> None:
    text = text.encode("utf-8", "ignore").decode()
    assert parse(f"name: {quote(text)}").name == text


def test_where_tables_are_is_said_where_it_is_not_usual(toy_artifact: Path) -> None:
    manifest = load_manifest(toy_artifact)
    assert 'key: "emberline_tables" value { string_value: "mapped" }' in config_text(manifest, "models/toy", TritonSettings(tables="mapped"))
    assert "emberline_tables" not in config_text(manifest, "models/toy", TritonSettings())
    assert 'key: "emberline_row_growth" value { string_value: "0" }' in config_text(manifest, "models/toy", TritonSettings(row_growth=0))
    assert "emberline_row_growth" not in config_text(manifest, "models/toy", TritonSettings())


def test_limits_are_said_where_they_are_not_usual(toy_artifact: Path) -> None:
    manifest, limits = load_manifest(toy_artifact), RequestLimits(rows=5, ids=7, padded_steps=9)
    found = parse(config_text(manifest, "models/toy", TritonSettings(limits=limits))).parameters["emberline_limits"].string_value
    assert RequestLimits(**json.loads(found)) == limits
    assert "emberline_limits" not in config_text(manifest, "models/toy", TritonSettings())


@pytest.mark.parametrize(("device", "tables"), [("cuda", "mapped"), ("cuda:1", "mapped"), ("cpu", "shared")])
def test_tables_that_cannot_be_there_are_refused(device: str, tables: str) -> None:
    with pytest.raises(ConfigError, match="tables"):
        TritonSettings(device=device, tables=tables)
