"""One model, three formats: the same answers, from any thread, any folder, and without any of our own code."""

import json
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import onnx
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from emberline.errors import ArtifactError, MissingDependencyError
from emberline.export.formats.aoti import X86_64_V3
from emberline.export.formats.onnx import OPSET
from emberline.program_inputs import full_inputs, program_inputs
from emberline.serving import Engine
from emberline.serving.artifact import load_manifest
from emberline.serving.encoded import pack_encoded
from emberline.serving.program import FORMATS
from emberline.train.checkpoint import Trained
from tests.export.odd_requests import cases_of, wanted_of

BOUNDS = {"torchscript": 1e-6, "aoti": 1e-5, "onnx": 1e-5}
PLAIN = """
import json, sys
import torch
from safetensors.torch import load_file, save_file

kind, program, given, found, names = sys.argv[1:]
inputs, names = load_file(given), json.loads(names)
if kind == "onnx":
    import onnxruntime
    session = onnxruntime.InferenceSession(program, providers=["CPUExecutionProvider"])
    takes = {one.name for one in session.get_inputs()}
    answers = session.run(None, {name: value.numpy() for name, value in inputs.items() if name in takes})
    answers = [torch.from_numpy(answer) for answer in answers]
else:
    run = torch.jit.load(program) if kind == "torchscript" else torch._inductor.aoti_load_package(program)
    answers = run(*(inputs[name] for name in names))
assert not [name for name in sys.modules if name.startswith(("emberline", "torchrec", "fbgemm"))]
save_file({str(place): answer.contiguous() for place, answer in enumerate(answers)}, found)
"""


def require_close(found: Tensor, wanted: Tensor, bound: float, at: str) -> None:
    torch.testing.assert_close(found, wanted, rtol=bound, atol=bound, msg=lambda text: f"{at}: {text}")


@pytest.mark.parametrize("format", FORMATS)
def test_every_format_answers_the_odd_requests_as_the_trained_model(everything: Path, trained: Trained, format: str) -> None:
    engine = Engine.open(everything, format=format)
    assert engine.format == format
    for case in cases_of(trained):
        request = pack_encoded(engine.schema, case.encoded)
        found = engine.predict(request)
        for name, wanted in wanted_of(trained, case).items():
            require_close(found[name], wanted, BOUNDS[format], case.name)
        groups = engine.lookup(request)
        assert groups["clicks.sequence"].shape[0] == case.encoded.num_rows


@pytest.mark.parametrize("format", FORMATS)
def test_threads_that_ask_at_once_get_what_one_gets(everything: Path, trained: Trained, format: str) -> None:
    engine = Engine.open(everything, format=format)
    requests = [pack_encoded(engine.schema, case.encoded) for case in cases_of(trained)]
    alone = [engine.predict(request) for request in requests]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(3):
            for found, wanted in zip(pool.map(engine.predict, requests), alone, strict=True):
                for name, answer in wanted.items():
                    torch.testing.assert_close(found[name], answer, rtol=0, atol=1e-6)


def test_the_manifest_tells_of_each_program(everything: Path) -> None:
    manifest = load_manifest(everything)
    entries = {(entry.role, entry.format): entry for entry in manifest.programs}
    assert set(entries) == {(role, format) for role in ("outputs", "groups", "full") for format in FORMATS}
    suffixes = {"torchscript": "ts", "aoti": "pt2", "onnx": "onnx"}
    stems = {"outputs": "dense", "groups": "groups", "full": "full"}
    for (role, format), entry in entries.items():
        assert entry.file == f"programs/{stems[role]}.{suffixes[format]}"
        assert (entry.opset, entry.bound, entry.precision) == (OPSET if format == "onnx" else 0, BOUNDS[format], "fp32")
        assert entry.arch == (X86_64_V3 if format == "aoti" else "")
    assert len({entry.source for entry in manifest.programs}) == 3
    assert list(manifest.parity["formats"]) == list(FORMATS)
    for format, report in manifest.parity["formats"].items():
        assert report["bounds"] == {"group": BOUNDS[format], "output": BOUNDS[format]}
        assert max(report["max_abs_difference"].values()) < 1e-4


def test_the_first_format_that_runs_here_is_taken(everything: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Engine.open(everything).format == "torchscript"
    with pytest.raises(ArtifactError, match="no programs of format 'xla'; it has torchscript, aoti, onnx"):
        Engine.open(everything, format="xla")
    monkeypatch.setattr("emberline.serving.program_choice.FORMATS", ("onnx", "aoti", "torchscript"))
    assert Engine.open(everything).format == "onnx"
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    monkeypatch.setattr("emberline.serving.program_choice.importlib.util.find_spec", lambda name: None)
    assert Engine.open(everything).format == "aoti"
    with pytest.raises(MissingDependencyError, match="format 'onnx' need the package 'onnxruntime'"):
        Engine.open(everything, format="onnx")


@pytest.mark.parametrize("format", FORMATS)
def test_a_full_program_runs_without_any_of_our_code(everything: Path, trained: Trained, tmp_path: Path, format: str) -> None:
    """Another folder, a fresh process that imports plain torch or onnxruntime: empty and not, one row and many."""
    moved = tmp_path / "elsewhere"
    shutil.copytree(everything, moved)
    engine = Engine.open(moved)
    names = [given.name for given in full_inputs(engine.schema)]
    program = next(entry for entry in engine.artifact.manifest.programs if (entry.role, entry.format) == ("full", format))
    case = next(case for case in cases_of(trained) if case.name == "mixed lengths")
    inputs = engine.full_inputs(pack_encoded(engine.schema, case.encoded))
    assert list(inputs) == [name for name in inputs if name in names]
    assert set(inputs) == set(names)
    save_file({name: value.clone() for name, value in inputs.items()}, tmp_path / "given.safetensors")
    arguments = [format, moved / program.file, tmp_path / "given.safetensors", tmp_path / "found.safetensors", json.dumps(names)]
    done = subprocess.run([sys.executable, "-c", PLAIN, *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = load_file(tmp_path / "found.safetensors")
    for place, wanted in enumerate(wanted_of(trained, case).values()):
        torch.testing.assert_close(found[str(place)], wanted, rtol=BOUNDS[format], atol=BOUNDS[format])


def test_onnx_has_plain_operators_and_the_names_of_the_schema(everything: Path) -> None:
    schema = load_manifest(everything).schema
    for stem, inputs, outputs in (
        ("dense", program_inputs(schema), ["logits", "probs"]),
        ("groups", program_inputs(schema), [f"lookup.{group.name}" for group in schema.groups]),
        ("full", full_inputs(schema), ["logits", "probs"]),
    ):
        model = onnx.load(everything / "programs" / f"{stem}.onnx")
        onnx.checker.check_model(model, full_check=True)
        operators = {node.op_type for node in model.graph.node}
        assert {node.domain for node in model.graph.node} == {""}
        assert not operators & {"Loop", "Scan", "If"}
        assert not [name for name in operators if "Sequence" in name]
        assert [(one.domain, one.version) for one in model.opset_import] == [("", OPSET)]
        assert len(model.functions) == 0
        shapes = {
            one.name: tuple(size.dim_param or size.dim_value for size in one.type.tensor_type.shape.dim)
            for one in (*model.graph.input, *model.graph.output)
        }
        assert [one.name for one in model.graph.output] == outputs
        assert [shapes[given.name] for given in inputs] == [given.dims for given in inputs]
        assert {shapes[name][0] for name in outputs} == {"B"}
        assert str(everything).encode() not in (everything / "programs" / f"{stem}.onnx").read_bytes()
        assert b"site-packages" not in (everything / "programs" / f"{stem}.onnx").read_bytes()
