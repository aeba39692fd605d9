"""A module as machine code: compiled by AOTInductor with the C++ compiler of this machine, into one `.pt2` file.

The code is made for any CPU of the last ten years, not just for this one, and follows the number of threads that the process has.
"""

import platform
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram

from emberline.errors import ExportError
from emberline.export.formats.check import Checker, ProgramSource
from emberline.export.formats.exported import quiet, unfused_attention
from emberline.export.formats.needs import no_compiler
from emberline.manifest import ProgramEntry
from emberline.serving.program import CompiledCode
from emberline.train.encoders.recurrent_states import loops

SUFFIX = ".pt2"
X86_64_V3 = "x86_64 abm avx avx2 bmi1 bmi2 f16c fma movbe popcnt sse sse2 sse4_1 sse4_2"
"""The x86-64 psABI's third level, as `ProgramEntry.arch` has it: what code that is compiled for it needs of a CPU."""
_LAST_LINES = 8
_TRIES = 2
_ADVICE = "--format torchscript needs no compiler"


def write_aoti(source: ProgramSource, exported: ExportedProgram, path: Path, bound: float) -> ProgramEntry:
    """Compile an exported program, compare it with its module for inputs of several sizes, and keep its file.

    Args:
        source: the module, on the device that the code is for.
        exported: made of it.
        path: the file to write; its last two parts become the entry's `file`.
        bound: the largest difference that is let pass.

    Raises:
        ExportError: there is no compiler, it fails, or what it made answers otherwise than the module.
    """
    options, arch = _target(source.device)
    path.parent.mkdir(parents=True, exist_ok=True)
    _compile(source, _with_loops(exported), path, options)
    try:
        program = CompiledCode(path, torch.device(source.device))
        Checker(source).require_same(lambda *inputs: program(list(inputs)), f"the compiled form of {source.name}", bound)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return ProgramEntry(role=source.role, file=f"{path.parent.name}/{path.name}", format="aoti", device=source.device, arch=arch, bound=bound)


def _with_loops(exported: ExportedProgram) -> ExportedProgram:
    """The program with a loop for each operator that has one; tracing all of it anew takes seconds, so only where there is such an operator."""
    table = loops()
    graphs = (module.graph for module in exported.graph_module.modules() if isinstance(module, fx.GraphModule))
    if not any(node.target in table for graph in graphs for node in graph.nodes):
        return exported
    with quiet(), torch.no_grad():
        looped: ExportedProgram = exported.run_decompositions(table)
    return looped


def _target(device: str) -> tuple[dict[str, Any], str]:
    """Options of the compiler, and what its code needs; empty for this very machine's kind."""
    options: dict[str, Any] = {"cpp.dynamic_threads": True}  # else the number of threads here would be written into the code
    if device != "cpu" or platform.machine() != "x86_64" or torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"):
        return options, ""
    return {**options, "cpp.march": "x86-64-v3", "cpp.simdlen": 256}, X86_64_V3


def _compile(source: ProgramSource, exported: ExportedProgram, path: Path, options: dict[str, Any]) -> None:
    """Compile once more where it failed: compilers were seen to fail by chance."""
    from torch._inductor.exc import InvalidCxxCompiler

    for attempt in range(_TRIES):
        try:
            # The compiler finds attention in products and softmaxes too, and would fuse it again.
            with quiet(), unfused_attention(), tempfile.TemporaryDirectory(prefix="emberline-compile-") as work:
                made = torch._inductor.aoti_compile_and_package(exported, package_path=str(Path(work) / path.name), inductor_configs=dict(options))
                shutil.move(made, path)
            return
        except InvalidCxxCompiler as error:
            raise no_compiler(source.name) from error
        except Exception as error:
            if attempt == _TRIES - 1:
                raise ExportError(f"{source.name} cannot be compiled ({_TRIES} tries): {_last_lines(error)}\n{_ADVICE}") from error


def _last_lines(error: Exception) -> str:
    """The end of a compiler's log."""
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return "\n  ".join([type(error).__name__, *lines[-_LAST_LINES:]])
