"""Compilers that fail: told in one message with their last words, tried twice, and nothing is left behind."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from emberline.errors import ExportError
from emberline.export.formats import aoti
from emberline.export.formats.aoti import write_aoti
from emberline.export.formats.check import ProgramSource
from emberline.export.formats.exported import export_program
from emberline.program_inputs import ProgramInput
from emberline.serving.program import CompiledCode
from tests.export.formats.encoder_programs import LENGTHS, batch_of, source_of


class _Net(nn.Module):
    """Pooled [B, 5] -> [B, 5], in code that no cache has: the number is made up for each test."""

    def __init__(self, number: float) -> None:
        super().__init__()
        self.number = number

    def forward(self, pooled: Tensor) -> tuple[Tensor, ...]:
        return (pooled.sin() * self.number,)


def _source(number: float) -> ProgramSource:
    return ProgramSource(_Net(number).eval(), (ProgramInput(name="pooled", dtype="float32", dims=("B", 5)),), ("answer",), "outputs")


def _compiler(folder: Path, text: str) -> str:
    path = folder / "g++"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_a_broken_compiler_is_told_with_its_last_lines(tmp_path: Path) -> None:
    source = _source(0.125)
    text = 'case "$1" in --version|-v) echo "g++ (Test) 12.2.0"; exit 0;; esac\necho "fatal error: the disk is on fire" >&2; exit 1'
    broken = _compiler(tmp_path, text)
    with torch._inductor.config.patch({"cpp.cxx": (broken,)}), pytest.raises(ExportError) as failure:
        write_aoti(source, export_program(source), tmp_path / "programs" / "dense.pt2", 1e-5)
    told = str(failure.value)
    assert told.startswith("the outputs program cannot be compiled (2 tries): ")
    assert "fatal error: the disk is on fire" in told
    assert told.endswith("--format torchscript needs no compiler")
    assert len(told.splitlines()) < 15
    assert list((tmp_path / "programs").iterdir()) == []


def test_no_compiler_is_told_so(tmp_path: Path) -> None:
    source = _source(0.375)
    with torch._inductor.config.patch({"cpp.cxx": (str(tmp_path / "nowhere"),)}), pytest.raises(ExportError, match="needs no compiler"):
        write_aoti(source, export_program(source), tmp_path / "programs" / "dense.pt2", 1e-5)


@pytest.mark.parametrize("failures", [1, 2])
def test_a_compiler_is_tried_once_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: int) -> None:
    source, calls = _source(0.5), []

    def compile_or_not(exported: object, package_path: str, inductor_configs: dict[str, Any]) -> str:
        calls.append(inductor_configs)
        if len(calls) <= failures:
            raise RuntimeError("internal compiler error\nsegmentation fault")
        Path(package_path).write_bytes(b"compiled")
        return package_path

    monkeypatch.setattr(torch._inductor, "aoti_compile_and_package", compile_or_not)
    options, arch = aoti._target("cpu")
    if failures == 1:
        aoti._compile(source, export_program(source), tmp_path / "dense.pt2", options)
        assert (tmp_path / "dense.pt2").read_bytes() == b"compiled"
    else:
        with pytest.raises(ExportError, match="segmentation fault"):
            aoti._compile(source, export_program(source), tmp_path / "dense.pt2", options)
    assert calls == [options, options]
    assert options["cpp.dynamic_threads"] is True
    if arch:
        assert options["cpp.march"] == "x86-64-v3"


def test_a_program_without_recurrent_encoders_is_compiled_as_it_is() -> None:
    exported = export_program(_source(0.75))
    assert aoti._with_loops(exported) is exported


def test_loops_and_attention_of_several_heads_take_rows_of_any_lengths(tmp_path: Path) -> None:
    source = source_of(["lstm", "self"])
    entry = write_aoti(source, export_program(source), tmp_path / "programs" / "dense.pt2", 1e-5)
    code = CompiledCode(tmp_path / entry.file, torch.device("cpu"))
    for lengths in LENGTHS:
        batch = batch_of(lengths)
        with torch.no_grad():
            wanted = source.module(*batch)
        for kind, found, answer in zip(source.outputs, code(batch), wanted, strict=True):
            torch.testing.assert_close(found, answer, rtol=1e-5, atol=1e-5, msg=f"{kind}, lengths {lengths}")


def test_no_program_has_fused_attention() -> None:
    exported = export_program(source_of(["self", "transformer_last"]))
    assert [str(node.target) for node in exported.graph.nodes if "scaled_dot_product" in str(node.target)] == []
