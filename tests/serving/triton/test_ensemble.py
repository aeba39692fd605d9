"""Triton folders of a model with sequences and of one without; models with an ONNX program are tested where they are exported."""

from pathlib import Path
from typing import Any

import pytest
import torch
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from emberline.errors import ArtifactError, ConfigError
from emberline.program_inputs import program_inputs
from emberline.serving import Engine, PackedRequest
from emberline.serving.limits import RequestLimits
from emberline.serving.triton.ensemble import LOOKUP_SOURCE, write_triton_models
from emberline.serving.triton.settings import TritonSettings
from tests.serving.conftest import ToyModel, make_steps_toy, make_toy, random_request
from tests.serving.tiles import tiled_toy

TYPES = model_config_pb2.DataType


def config_of(folder: Path) -> Any:
    return text_format.Parse((folder / "config.pbtxt").read_text(), model_config_pb2.ModelConfig())


@pytest.fixture(params=["steps", "toy"])
def model(request: pytest.FixtureRequest) -> ToyModel:
    return make_steps_toy() if request.param == "steps" else make_toy()


def test_all_that_programs_take_goes_from_lookups_to_the_dense_model(model: ToyModel, tmp_path: Path) -> None:
    root = model.write(tmp_path / "models")
    names = write_triton_models(root, tmp_path / "triton", "pytorch")
    assert names == [model.name, f"{model.name}_dense", f"{model.name}_lookup"]
    whole, dense, lookup = (config_of(tmp_path / "triton" / name) for name in names)
    wanted = program_inputs(model.schema)
    assert [one.name for one in lookup.output] == [given.name for given in wanted]
    assert [one.name for one in dense.input] == [f"{given.name}__{place}" for place, given in enumerate(wanted)]
    kinds = {"float32": "TYPE_FP32", "int64": "TYPE_INT64"}
    assert [TYPES.Name(one.data_type) for one in dense.input] == [kinds[given.dtype] for given in wanted]
    assert [list(one.dims) for one in dense.input] == [[size if isinstance(size, int) and size else -1 for size in given.dims] for given in wanted]
    first, second = whole.ensemble_scheduling.step
    assert sorted(first.output_map.values()) == sorted(second.input_map.values())
    assert {one.name for one in whole.output} == {output.name for output in model.schema.outputs}
    engine = Engine.open(root)
    request = PackedRequest(**random_request(model.schema, num_rows=5, seed=3, raw_ids=(100, -7)))
    inputs = engine.program_inputs(request)
    assert list(inputs) == [given.name for given in wanted]
    program: Any = torch.jit.load(str(tmp_path / "triton" / f"{model.name}_dense" / "1" / "model.pt"))  # type: ignore[no-untyped-call]
    found = program(*(inputs[one.name.rpartition("__")[0]] for one in dense.input))
    for place, (name, answer) in enumerate(engine.predict(request).items()):
        assert dense.output[place].name == f"{name}__{place}"
        torch.testing.assert_close(found[place], answer, rtol=1e-6, atol=1e-6)


def test_an_ensemble_takes_untiled_requests_only(tmp_path: Path) -> None:
    names = write_triton_models(tiled_toy().write(tmp_path / "models"), tmp_path / "triton", "pytorch")
    for name in (names[0], names[2]):
        assert [one.name for one in config_of(tmp_path / "triton" / name).input] == ["ids", "lengths", "weights", "dense"]


def test_lookups_open_the_artifact_as_it_was(tmp_path: Path) -> None:
    root = make_toy().write(tmp_path / "models", 4)
    write_triton_models(root, tmp_path / "triton", "pytorch")
    parameters = {name: value.string_value for name, value in config_of(tmp_path / "triton" / "toy_lookup").parameters.items()}
    assert parameters["emberline_artifact"] == str(root.parent)
    assert parameters["emberline_deltas"] == "0"
    assert (tmp_path / "triton" / "toy_lookup" / "4" / "model.py").read_text() == LOOKUP_SOURCE
    assert "TritonLookupModel as TritonPythonModel" in LOOKUP_SOURCE
    assert sorted(path.name for path in (tmp_path / "triton" / "toy_dense" / "4").iterdir()) == ["model.pt"]


def test_lookups_of_what_comes_from_a_url_know_its_cache(tmp_path: Path) -> None:
    root = make_toy().write(tmp_path / "models", 2)
    cache = tmp_path / "cache"
    for backend, name in (("pytorch", "toy_lookup"), ("python", "toy")):
        write_triton_models(f"local://{root}", tmp_path / backend, backend, TritonSettings(cache=cache))
        parameters = {key: value.string_value for key, value in config_of(tmp_path / backend / name).parameters.items()}
        assert parameters["emberline_artifact"] == f"local://{root.parent}"
        assert parameters["emberline_cache"] == str(cache)


def test_nothing_is_replaced_where_one_folder_is_of_others(tmp_path: Path) -> None:
    root = make_toy().write(tmp_path / "models")
    (tmp_path / "triton" / "toy_lookup").mkdir(parents=True)
    with pytest.raises(ArtifactError, match="toy_lookup is no folder that Emberline wrote"):
        write_triton_models(root, tmp_path / "triton", "pytorch")
    assert [path.name for path in (tmp_path / "triton").iterdir()] == ["toy_lookup"]


def test_settings_reach_the_model_that_has_the_lookups(tmp_path: Path) -> None:
    root = make_toy().write(tmp_path / "models")
    write_triton_models(
        root, tmp_path / "triton", "pytorch", TritonSettings(device="cuda:1", instances=2, num_threads=3, limits=RequestLimits(rows=9))
    )
    config = config_of(tmp_path / "triton" / "toy_lookup")
    assert [(group.count, list(group.gpus)) for group in config.instance_group] == [(2, [1])]
    found = {name: value.string_value for name, value in config.parameters.items() if name not in ("emberline_schema", "emberline_artifact")}
    limits = '{"rows": 9, "ids": 2097152, "padded_steps": 1048576}'
    own = {"emberline_threads": "3", "emberline_limits": limits, "FORCE_CPU_ONLY_INPUT_TENSORS": "no"}
    assert found == own | {"emberline_version": "1", "emberline_deltas": "0"}


@pytest.mark.parametrize(
    "settings",
    [
        TritonSettings(by_feature=True),
        TritonSettings(timeout_s=1),
        TritonSettings(max_waiting=3),
        TritonSettings(delta_poll_s=1),
        TritonSettings(format="torchscript"),
    ],
)
def test_what_an_ensemble_cannot_do_is_refused(tmp_path: Path, settings: TritonSettings) -> None:
    root = make_toy().write(tmp_path / "models")
    with pytest.raises(ConfigError, match="is for the Python backend alone"):
        write_triton_models(root, tmp_path / "triton", "pytorch", settings)
    assert write_triton_models(root, tmp_path / "triton", "python", settings) == ["toy"]
