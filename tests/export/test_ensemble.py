"""A model for a full Triton: lookups, dense program and ensemble. The lookups run in a real Triton, and what they give goes through the program."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from google.protobuf import text_format
from tritonclient import http
from tritonclient.grpc import model_config_pb2

from emberline.cli import main
from emberline.errors import ArtifactError
from emberline.export import describe
from emberline.manifest import ProgramEntry
from emberline.schema import ModelSchema
from emberline.serving import Engine
from emberline.serving.request import PackedRequest
from emberline.serving.triton import launcher
from emberline.serving.triton.ensemble import BACKENDS, write_triton_models
from emberline.serving.triton.settings import TritonSettings
from tests.export.conftest import SmallRun
from tests.serving.conftest import make_toy

TYPES = model_config_pb2.DataType
DATATYPES = {"int64": "INT64", "int32": "INT32", "float32": "FP32"}


@pytest.fixture(scope="module")
def models(small_run: SmallRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`models/m/1`, and the three kinds of Triton folders beside it."""
    root = tmp_path_factory.mktemp("full")
    arguments = ["export", "--checkpoint", str(small_run.path), "--output", str(root / "models"), "--name", "m", "--format", "torchscript,onnx"]
    assert main([*arguments, "--triton", str(root / "onnxruntime"), "--triton-backend", "onnxruntime"]) == 0
    for backend in ("pytorch", "python"):
        write_triton_models(root / "models" / "m" / "1", root / backend, backend)
    return root


@pytest.fixture(scope="module")
def engine(models: Path) -> Engine:
    return Engine.open(models / "models" / "m", num_threads=1)


def config_of(folder: Path) -> Any:
    return text_format.Parse((folder / "config.pbtxt").read_text(), model_config_pb2.ModelConfig())


def tensors(found: Any) -> list[tuple[str, str, list[int], list[int]]]:
    return [(one.name, TYPES.Name(one.data_type).removeprefix("TYPE_"), list(one.dims), list(one.reshape.shape)) for one in found]


def widths(schema: ModelSchema) -> tuple[int, int]:
    return schema.pooled_dim, schema.dense_dim


def test_all_in_one_is_what_servers_write_themselves(models: Path) -> None:
    assert sorted(path.name for path in (models / "python").iterdir()) == ["m"]
    config = config_of(models / "python" / "m")
    assert (config.name, config.backend, config.parameters["emberline_artifact"].string_value) == ("m", "python", str(models / "models" / "m"))


@pytest.mark.parametrize("backend", ["onnxruntime", "pytorch"])
def test_the_parts_fit_each_other_and_the_model(models: Path, engine: Engine, backend: str) -> None:
    folder, kind = models / backend, BACKENDS[backend]
    assert sorted(path.name for path in folder.iterdir()) == ["m", "m_dense", "m_lookup"]
    whole, dense, lookup = (config_of(folder / name) for name in ("m", "m_dense", "m_lookup"))
    assert [found.max_batch_size for found in (whole, dense, lookup)] == [0, 0, 0]
    assert (whole.platform, dense.platform, lookup.backend) == ("ensemble", kind.platform, "python")
    pooled, numbers = widths(engine.schema)
    wire: list[tuple[str, str, list[int], list[int]]]
    wire = [("ids", "INT64", [1, -1], []), ("lengths", "INT32", [1, -1], []), ("weights", "FP32", [1, -1], []), ("dense", "FP32", [1, -1], [])]
    assert tensors(whole.input) == tensors(lookup.input) == wire
    assert tensors(lookup.output) == [("pooled", "FP32", [-1, pooled], []), ("dense", "FP32", [-1, numbers], [])]
    assert tensors(whole.output) == [("logits", "FP32", [1, -1], []), ("probs", "FP32", [1, -1], [])]
    suffix = ["__0", "__1"] if backend == "pytorch" else ["", ""]
    assert tensors(dense.input) == [(f"pooled{suffix[0]}", "FP32", [-1, pooled], []), (f"dense{suffix[1]}", "FP32", [-1, numbers], [])]
    assert tensors(dense.output) == [(f"logits{suffix[0]}", "FP32", [1, -1], [-1]), (f"probs{suffix[1]}", "FP32", [1, -1], [-1])]
    for config in (whole, dense, lookup):
        assert list(config.version_policy.specific.versions) == [1]
        assert (folder / config.name / "1").is_dir()
    assert (folder / "m_dense" / "1" / kind.file).is_file()


@pytest.mark.parametrize("backend", ["onnxruntime", "pytorch"])
def test_the_ensemble_joins_all_names(models: Path, backend: str) -> None:
    whole, dense, lookup = (config_of(models / backend / name) for name in ("m", "m_dense", "m_lookup"))
    first, second = whole.ensemble_scheduling.step
    assert [(step.model_name, step.model_version) for step in (first, second)] == [("m_lookup", 1), ("m_dense", 1)]
    assert set(first.input_map) == {one.name for one in lookup.input}
    assert set(first.output_map) == {one.name for one in lookup.output}
    assert set(second.input_map) == {one.name for one in dense.input}
    assert set(second.output_map) == {one.name for one in dense.output}
    assert sorted(first.input_map.values()) == sorted(one.name for one in whole.input)
    assert sorted(first.output_map.values()) == sorted(second.input_map.values())
    assert sorted(second.output_map.values()) == sorted(one.name for one in whole.output)
    inner = {first.output_map[one.name]: list(one.dims) for one in lookup.output}
    assert {second.input_map[one.name]: list(one.dims) for one in dense.input} == inner


def run_dense(models: Path, backend: str, given: dict[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
    """What Triton's backend does: the dense model's file, called by the names and places of its config."""
    folder = models / backend / "m_dense"
    config = config_of(folder)
    if backend == "onnxruntime":
        session = onnxruntime.InferenceSession(str(folder / "1" / "model.onnx"))
        assert [one.name for one in session.get_inputs()] == [one.name for one in config.input]
        names = [one.name for one in config.output]
        return dict(zip(names, session.run(names, {one.name: given[one.name] for one in config.input}), strict=True))
    program: Any = torch.jit.load(str(folder / "1" / "model.pt"))  # type: ignore[no-untyped-call]
    places = sorted(config.input, key=lambda one: int(one.name.rpartition("__")[2]))
    found = program(*(torch.from_numpy(given[one.name.rpartition("__")[0]]) for one in places))
    return {one.name.rpartition("__")[0]: found[int(one.name.rpartition("__")[2])].numpy() for one in config.output}


def request_of(engine: Engine, run: SmallRun, num_rows: int) -> PackedRequest:
    return engine.encode_rows(run.rows[:num_rows])


@pytest.mark.parametrize("backend", ["onnxruntime", "pytorch"])
@pytest.mark.parametrize("num_rows", [1, 0, 50])
def test_program_inputs_through_the_dense_model_are_the_engines_answers(
    models: Path, engine: Engine, small_run: SmallRun, backend: str, num_rows: int
) -> None:
    request = request_of(engine, small_run, num_rows)
    inputs = {name: tensor.numpy() for name, tensor in engine.program_inputs(request).items()}
    found, wanted = run_dense(models, backend, inputs), engine.predict(request)
    for name, answer in wanted.items():
        np.testing.assert_allclose(found[name], answer.numpy(), rtol=1e-5, atol=1e-5)


@pytest.fixture(scope="module")
def lookups(models: Path) -> Iterator[str]:
    """A real Triton with the lookups alone: it has no backend for the rest."""

    def copy(models_dir: object, repository: Path, settings: TritonSettings) -> dict[str, int]:
        shutil.copytree(models / "onnxruntime" / "m_lookup", repository / "m_lookup")
        return {"m_lookup": 1}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launcher, "write_repository", copy)
        with launcher.TritonServer(models / "models", settings=TritonSettings(num_threads=1)) as server:
            yield f"127.0.0.1:{server.http_port}"


@pytest.mark.triton
@pytest.mark.parametrize("backend", ["onnxruntime", "pytorch"])
@pytest.mark.parametrize("num_rows", [1, 40])
def test_lookups_in_triton_feed_the_dense_model(lookups: str, models: Path, engine: Engine, small_run: SmallRun, backend: str, num_rows: int) -> None:
    request = request_of(engine, small_run, num_rows)
    client: Any = http.InferenceServerClient(lookups)
    inputs = []
    for name in ("ids", "lengths", "weights", "dense"):
        values = np.ascontiguousarray(getattr(request, name)).reshape(1, -1)
        inputs.append(http.InferInput(name, list(values.shape), DATATYPES[str(values.dtype)]))
        inputs[-1].set_data_from_numpy(values)
    answer = client.infer("m_lookup", inputs)
    given = {name: np.array(answer.as_numpy(name)) for name in ("pooled", "dense")}
    client.close()
    for name, tensor in engine.program_inputs(request).items():
        np.testing.assert_array_equal(given[name], tensor.numpy())
    found = run_dense(models, backend, given)
    for name, wanted in engine.predict(request).items():
        np.testing.assert_allclose(found[name], wanted.numpy(), rtol=1e-5, atol=1e-5)


_FRESH = """
import importlib, json, sys
import numpy as np
import torch
root, given, out = sys.argv[1:]
entries = [entry for entry in json.load(open(root + "/manifest.json"))["programs"] if entry["format"] == "torchscript"]
for entry in entries:
    for name in entry["libraries"]:
        importlib.import_module(name)
    assert entry["versions"]["torch"] == torch.__version__, entry
inputs = np.load(given)
found = {}
for entry in entries:
    answers = torch.jit.load(root + "/" + entry["file"])(*(torch.from_numpy(inputs[name]) for name in ("pooled", "dense")))
    found.update({f"{entry['role']}.{place}": answer.numpy() for place, answer in enumerate(answers)})
np.savez(out, **found)
strange = {name.partition(".")[0] for name in sys.modules} & {"emberline", "torchrec", "onnx", "onnxruntime", "pyarrow"}
assert not strange, strange
"""


@pytest.mark.parametrize("num_rows", [0, 30])
def test_programs_of_a_moved_artifact_run_in_a_process_that_has_torch_and_their_libraries_only(
    models: Path, engine: Engine, small_run: SmallRun, tmp_path: Path, num_rows: int
) -> None:
    root = shutil.copytree(models / "models" / "m" / "1", tmp_path / "elsewhere")
    request = request_of(engine, small_run, num_rows)
    np.savez(tmp_path / "given.npz", **{name: tensor.numpy() for name, tensor in engine.program_inputs(request).items()})
    arguments = [sys.executable, "-I", "-c", _FRESH, str(root), str(tmp_path / "given.npz"), str(tmp_path / "found.npz")]
    done = subprocess.run(arguments, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    with np.load(tmp_path / "found.npz") as found:
        for role, wanted in (("outputs", engine.predict(request)), ("groups", engine.lookup(request))):
            for place, answer in enumerate(wanted.values()):
                np.testing.assert_allclose(found[f"{role}.{place}"], answer.numpy(), rtol=1e-6, atol=1e-6)


def test_verify_replays_the_sample_by_each_format(models: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    place = str(models / "models" / "m")
    assert main(["verify", place]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == ["  onnx: the same answers"]

    def refuse(entry: ProgramEntry, device: torch.device) -> list[str]:
        raise ArtifactError(f"{entry.file}: cannot run here")

    monkeypatch.setattr(describe, "require_fit", refuse)
    assert main(["verify", place]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == ["  onnx: not tried: programs/dense.onnx: cannot run here"]


def test_a_format_that_is_not_there_is_told(tmp_path: Path) -> None:
    root = make_toy().write(tmp_path / "models")
    with pytest.raises(ArtifactError, match="the artifact has none for the model's outputs: export with --format onnx"):
        write_triton_models(root, tmp_path / "triton", "onnxruntime")
    assert list((tmp_path / "triton").iterdir()) == []


def test_folders_are_replaced_but_not_those_of_others(models: Path, tmp_path: Path) -> None:
    version = models / "models" / "m" / "1"
    (tmp_path / "other").mkdir()
    for _ in range(2):
        assert write_triton_models(version, tmp_path, "pytorch") == ["m", "m_dense", "m_lookup"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m", "m_dense", "m_lookup", "other"]
    (tmp_path / "m" / "config.pbtxt").write_text('name: "m"\n')
    with pytest.raises(ArtifactError, match="m is no folder that Emberline wrote"):
        write_triton_models(version, tmp_path, "pytorch")


def test_options_that_do_not_go_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["export", "--checkpoint", "x", "--output", str(tmp_path), "--name", "m"]
    for delta in ([], ["--delta-from", "1"]):
        assert main([*arguments, *delta, "--triton-backend", "pytorch"]) == 2
        assert "--triton-backend goes with --triton DIR" in capsys.readouterr().err
