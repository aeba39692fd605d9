"""Matrix products in 16 bits: answers stay float32 and within their own bound, group tensors are as they were."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from emberline.errors import ExportError
from emberline.export.export import export_model
from emberline.export.formats.aoti import _with_loops
from emberline.export.formats.check import ProgramSource
from emberline.export.formats.exported import export_program
from emberline.export.precision import with_precision
from emberline.program_inputs import program_inputs, program_outputs
from emberline.serving import Engine
from emberline.serving.encoded import pack_encoded
from emberline.train.checkpoint import Trained
from emberline.train.encoders.recurrent_states import loops
from emberline.train.models import DenseProgram
from tests.export.formats.encoder_programs import batch_of, source_of
from tests.export.odd_requests import cases_of, wanted_of


@pytest.mark.parametrize(("precision", "bound", "dtype"), [("bf16", 2**-5, torch.bfloat16), ("fp16", 2**-8, torch.float16)])
def test_answers_are_float32_and_within_the_bound(
    everything_run: Path, trained: Trained, tmp_path: Path, precision: str, bound: float, dtype: torch.dtype
) -> None:
    path = export_model(everything_run, tmp_path, "m", precision=precision)
    engine = Engine.open(path)
    entries = {entry.role: entry for entry in engine.artifact.manifest.programs}
    assert [(role, entries[role].precision, entries[role].bound) for role in ("outputs", "groups")] == [
        ("outputs", precision, bound),
        ("groups", "fp32", 1e-6),
    ]
    assert engine.artifact.manifest.parity["formats"]["torchscript"]["bounds"] == {"group": 1e-6, "output": bound}
    case = next(case for case in cases_of(trained) if case.name == "mixed lengths")
    request = pack_encoded(engine.schema, case.encoded)
    wanted = wanted_of(trained, case)["logits"]
    found = engine.predict(request)["logits"]
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, wanted, rtol=bound, atol=bound)
    assert not torch.allclose(found, wanted, rtol=1e-6, atol=1e-6)
    # The MLP that compares a step with the query multiplies what is not bounded: beyond what float16 holds, so it stays as it is there.
    attention = torch.float32 if precision == "fp16" else dtype
    load: Any = torch.jit.load
    # A loaded graph tells no types of what is computed; the weights that layers multiply with are there as numbers.
    layers = [node for node in load(str(path / "programs/dense.ts")).inlined_graph.nodes() if node.kind() == "aten::linear"]
    weights = [node.inputsAt(1).node().t("value") for node in layers]
    named = {name: value for name, value in trained.model.named_parameters() if name.startswith("head.")}
    types = {name: weight.dtype for name, value in named.items() for weight in weights if torch.equal(weight, value.to(weight.dtype))}
    assert types == {
        "head.towers.0.layers.0.weight": dtype,
        "head.din_towers.0.attention.linear.weight": attention,
        "head.final_mlp.layers.0.weight": dtype,
        "head.output.weight": dtype,
    }


@pytest.mark.parametrize(("precision", "attention"), [("bf16", torch.bfloat16), ("fp16", torch.float32)])
def test_exported_programs_round_where_torchscript_does(trained: Trained, precision: str, attention: torch.dtype) -> None:
    schema = trained.model.schema()
    program = with_precision(DenseProgram(trained.model).eval(), precision)
    exported = export_program(ProgramSource(program, program_inputs(schema), program_outputs(schema, "outputs"), "outputs"))
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    layers = [node.meta["val"].dtype for node in exported.graph.nodes if node.target in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)]
    # The tower, query and score of attention, two layers behind them.
    assert layers == [dtype, attention, attention, dtype, dtype]


def test_exported_recurrent_encoders_stay_as_they_are() -> None:
    """As an operator, which is what ONNX's is made of, and as the loop that is compiled: the same numbers, and none in 16 bits on the way."""
    plain = source_of(["lstm", "gru"])
    exported = export_program(replace(plain, module=with_precision(plain.module, "fp16")))
    for program, operators in ((exported, set(loops())), (_with_loops(exported), set())):
        assert {node.target for node in program.graph.nodes if node.target in loops()} == operators
        values = [node.meta["val"] for node in program.graph.nodes if isinstance(node.meta.get("val"), Tensor)]
        assert {value.dtype for value in values if value.is_floating_point()} == {torch.float32}
    batch = batch_of([3, 0, 7, 1])
    with torch.no_grad():
        for found, wanted in zip(exported.module()(*batch), plain.module(*batch), strict=True):
            assert torch.equal(found, wanted)


def test_a_bound_that_is_not_kept_stops_the_export(everything_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("emberline.export.program_options", fromlist=["x"])._PRECISION_BOUNDS, "bf16", 1e-5)
    with pytest.raises(ExportError, match=r"output '(logits|probs)' differs in .*the bound is 1e-05"):
        export_model(everything_run, tmp_path, "m", precision="bf16")
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == []
