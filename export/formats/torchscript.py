"""A module as a TorchScript file: traced in eval mode, frozen, and compared with the module itself before it is written.

Letters used in shapes: B rows, P width of the pooled lookups, D width of the dense features.
"""

import re
import warnings
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.jit._trace import TracerWarning

from emberline.errors import ExportError
from emberline.manifest import ProgramEntry
from emberline.serving.compatibility import made_here

_CHECKED_ROWS = (0, 1, 2, 7, 64)
_TRACED_ROWS = 3
_CALLS = 3
"""Calls of each check: TorchScript profiles the first two and may run other code from the third on."""
_WRITTEN_ANEW = (".debug_pkl", "serialization_id")
_COUNTER = re.compile(rb"\.?___torch_mangle_\d+")

_OPERATOR_LIBRARIES = {"fbgemm": "fbgemm_gpu"}
_BUILT_IN_OPERATORS = frozenset({"aten", "prim", "prims", "quantized", "mkldnn", "mkldnn_prepacked"})


def write_program(program: nn.Module, widths: Sequence[int], path: Path, *, role: str, max_difference: float) -> ProgramEntry:
    """Trace `program`, check the result for several numbers of rows, and write it.

    Args:
        program: takes one float32 tensor [B, width] for each of `widths` and returns a tensor or a tuple of tensors, rows first.
        path: the file to write; its last two parts become the entry's `file`.
        role: `outputs` or `groups`.
        max_difference: the largest difference that is let pass, absolute for answers up to 1 and relative above.

    Raises:
        ExportError: the module cannot be traced, is not deterministic in eval mode, or its trace answers otherwise than it does.
    """
    program.eval()
    name = f"the {role} program"
    frozen, notes = _trace(program, widths, name)
    hint = f"; while it was traced: {'; '.join(notes)}" if notes else ""
    for rows in _CHECKED_ROWS:
        inputs = _sample(rows, widths, seed=rows)
        wanted = _call(program, inputs, f"{name} in eval mode", rows)
        _require_close(_call(program, inputs, name, rows), wanted, 0.0, f"{name} is not deterministic in eval mode: two calls on {rows} rows differ")
        for _ in range(_CALLS):
            got = _call(frozen, inputs, f"the trace of {name}", rows, hint)
            _require_close(got, wanted, max_difference, f"the trace of {name} differs from the model on {rows} rows{hint}")
    libraries = find_libraries(frozen)
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.jit.save(frozen, str(path))
    return made_here(ProgramEntry(role=role, file=f"{path.parent.name}/{path.name}", format="torchscript", libraries=libraries))


def find_libraries(module: torch.jit.ScriptModule) -> tuple[str, ...]:
    """The Python modules that must be imported before `module` can be loaded, from the operators in its graph.

    Raises:
        ExportError: an operator is of a library that this release does not know.
    """
    operators = {node.kind() for node in _nodes(module.inlined_graph)}
    spaces = {operator.split("::")[0]: operator for operator in sorted(operators) if operator.split("::")[0] not in _BUILT_IN_OPERATORS}
    unknown = sorted(operator for space, operator in spaces.items() if space not in _OPERATOR_LIBRARIES)
    if unknown:
        raise ExportError(f"operator {', '.join(unknown)} is of no library that serving can import; known: {', '.join(sorted(_OPERATOR_LIBRARIES))}")
    return tuple(sorted(_OPERATOR_LIBRARIES[space] for space in spaces))


def is_same_program(one: Path, other: Path) -> bool:
    """Whether two files hold the same code and the same numbers, to the bit; what torch writes anew each time is passed over."""
    return _contents(one) == _contents(other)


def _contents(path: Path) -> dict[bytes, bytes]:
    """What a program's file holds, by member: without debugging notes, its random number, and the counters in names of classes."""
    found = {}
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            inner, data = name.partition("/")[2], archive.read(name)
            if not inner.endswith(_WRITTEN_ANEW):
                found[_COUNTER.sub(b"", inner.encode())] = _COUNTER.sub(b"", data) if inner.endswith((".py", ".pkl")) else data
    return found


def _nodes(block: Any) -> list[Any]:
    """Every node of a graph or block, nested blocks included."""
    found = []
    for node in block.nodes():
        found.append(node)
        for inner in node.blocks():
            found += _nodes(inner)
    return found


def _trace(program: nn.Module, widths: Sequence[int], name: str) -> tuple[torch.jit.ScriptModule, list[str]]:
    """The frozen trace, and what the tracer warned of."""
    with warnings.catch_warnings(record=True) as caught, torch.no_grad():
        warnings.simplefilter("always")
        try:
            trace: Any = torch.jit.trace
            traced = trace(program, _sample(_TRACED_ROWS, widths, seed=0), check_trace=False)
            frozen = torch.jit.freeze(traced, optimize_numerics=False)
        except Exception as error:
            raise ExportError(f"{name} cannot be traced: {_describe(error)}") from error
    return frozen, [str(warning.message).split("\n")[0] for warning in caught if issubclass(warning.category, TracerWarning)]


def _sample(rows: int, widths: Sequence[int], seed: int) -> tuple[torch.Tensor, ...]:
    """Inputs of both signs, small and large, with some rows that are all zero as empty bags are."""
    generator = torch.Generator().manual_seed(seed)
    inputs = tuple(torch.randn(rows, width, generator=generator) * 3 for width in widths)
    for tensor in inputs:
        tensor[1::4] = 0
    return inputs


def _call(module: nn.Module, inputs: tuple[torch.Tensor, ...], name: str, rows: int, hint: str = "") -> tuple[torch.Tensor, ...]:
    try:
        with torch.no_grad():
            answer = module(*inputs)
    except Exception as error:
        raise ExportError(f"{name} fails on {rows} rows: {_describe(error)}{hint}") from error
    return (answer,) if isinstance(answer, torch.Tensor) else tuple(answer)


def _describe(error: Exception) -> str:
    """Type and text in one line: TorchScript's texts begin with a trace and end with the cause."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"


def _require_close(got: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor], bound: float, message: str) -> None:
    """Same number of tensors, shapes and NaNs, and values within `bound`, absolute up to 1 and relative above."""
    if [tensor.shape for tensor in got] != [tensor.shape for tensor in wanted]:
        shapes = [tuple(tensor.shape) for tensor in got], [tuple(tensor.shape) for tensor in wanted]
        raise ExportError(f"{message}: shapes {shapes[0]}, not {shapes[1]}")
    for number, (mine, theirs) in enumerate(zip(got, wanted, strict=True)):
        if not torch.allclose(mine, theirs, rtol=bound, atol=bound, equal_nan=True):
            difference = (mine - theirs).abs().max().item()
            raise ExportError(f"{message}: tensor {number} by {difference:.3g}")
