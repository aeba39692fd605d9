"""ONNX files: numbers beside them where they are many, and refused where a runtime would need more than plain operators."""

import shutil
from pathlib import Path

import onnx
import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops import scan

from emberline.errors import ExportError
from emberline.export.formats import onnx as format_onnx
from emberline.export.formats.check import ProgramSource
from emberline.export.formats.exported import export_program
from emberline.export.formats.onnx import OPSET, write_onnx
from emberline.manifest import ProgramEntry
from emberline.program_inputs import ProgramInput
from emberline.serving.program import load_program
from tests.export.formats.encoder_programs import INPUTS as INPUTS_OF_ENCODERS
from tests.export.formats.encoder_programs import KINDS, LENGTHS, batch_of, source_of

INPUTS = (ProgramInput(name="pooled", dtype="float32", dims=("B", 6)),)


class _Net(nn.Module):
    """Pooled [B, 6] -> [B, 40]."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 40)

    def forward(self, pooled: Tensor) -> tuple[Tensor, ...]:
        return (self.linear(pooled).relu(),)


class _Loop(nn.Module):
    """Pooled [B, 6], added up row by row by a loop of torch's own."""

    def forward(self, pooled: Tensor) -> tuple[Tensor, ...]:
        padded = torch.cat([pooled, pooled.new_zeros(1, 6)])
        sums: Tensor = scan(lambda total, row: (total + row, total + row), padded[0] * 0, padded)[1]
        return (sums[:-1],)


def _write(module: nn.Module, path: Path) -> ProgramEntry:
    source = ProgramSource(module.eval(), INPUTS, ("answer",), "outputs")
    return write_onnx(source, export_program(source), path, 1e-5)


def test_numbers_lie_beside_a_large_file_and_move_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(format_onnx, "EXTERNAL_DATA_BYTES", 100)
    monkeypatch.setattr(format_onnx, "_LEAST_EXTERNAL_BYTES", 100)
    net = _Net()
    entry = _write(net, tmp_path / "programs" / "dense.onnx")
    assert entry == ProgramEntry(
        role="outputs", file="programs/dense.onnx", format="onnx", opset=OPSET, data_file="programs/dense.onnx.data", bound=1e-5
    )
    weight = net.linear.weight.detach().numpy().tobytes()
    assert weight not in (tmp_path / "programs" / "dense.onnx").read_bytes()
    assert (tmp_path / "programs" / "dense.onnx.data").stat().st_size >= len(weight)
    shutil.move(tmp_path / "programs", tmp_path / "moved")
    program = load_program(tmp_path / "moved" / "dense.onnx", entry, INPUTS, ("answer",), torch.device("cpu"))
    for rows in (0, 1, 5):
        pooled = torch.randn(rows, 6)
        torch.testing.assert_close(program({"pooled": pooled})["answer"], (pooled @ net.linear.weight.T + net.linear.bias).relu())
    (tmp_path / "moved" / "dense.onnx.data").unlink()
    with pytest.raises(Exception, match="does not load"):
        load_program(tmp_path / "moved" / "dense.onnx", entry, INPUTS, ("answer",), torch.device("cpu"))


def test_loops_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="the outputs program cannot become ONNX that every runtime takes: it needs Scan; choose another --format"):
        _write(_Loop(), tmp_path / "dense.onnx")
    assert list(tmp_path.iterdir()) == []


def test_every_encoder_is_plain_operators_for_rows_of_any_lengths(tmp_path: Path) -> None:
    source = source_of(KINDS)
    entry = write_onnx(source, export_program(source), tmp_path / "programs" / "dense.onnx", 1e-5)
    program = load_program(tmp_path / entry.file, entry, INPUTS_OF_ENCODERS, source.outputs, torch.device("cpu"))
    for lengths in LENGTHS:
        batch = batch_of(lengths)
        found = program({given.name: value for given, value in zip(INPUTS_OF_ENCODERS, batch, strict=True)})
        with torch.no_grad():
            wanted = dict(zip(KINDS, source.module(*batch), strict=True))
        assert list(found) == KINDS
        for kind, answer in wanted.items():
            torch.testing.assert_close(found[kind], answer, rtol=1e-5, atol=1e-5, msg=f"{kind}, lengths {lengths}")
    model = onnx.load(tmp_path / entry.file)
    onnx.checker.check_model(model, full_check=True)
    operators = [node.op_type for node in model.graph.node]
    # One for each layer and direction.
    assert (operators.count("LSTM"), operators.count("GRU")) == (4, 2)
    assert {node.domain for node in model.graph.node} == {""}
    assert not {"Loop", "Scan", "If"} & set(operators)
    assert len(model.functions) == 0
