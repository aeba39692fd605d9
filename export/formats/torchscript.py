"""A module as a TorchScript file: traced in eval mode, frozen, and compared with the module itself before it is written."""

import hashlib
import io
import re
import warnings
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.jit._trace import TracerWarning

from emberline.errors import ExportError
from emberline.export.formats.check import Checker, ProgramSource, describe
from emberline.manifest import ProgramEntry

SUFFIX = ".ts"
_WRITTEN_ANEW = (".debug_pkl", "serialization_id")
_COUNTER = re.compile(rb"\.?___torch_mangle_\d+")

_OPERATOR_LIBRARIES = {"fbgemm": "fbgemm_gpu"}
_BUILT_IN_OPERATORS = frozenset({"aten", "prim", "prims", "quantized", "mkldnn", "mkldnn_prepacked"})


@dataclass(frozen=True, eq=False)
class Trace:
    """A frozen trace.

    Args:
        module: the script module.
        notes: what the tracer warned of.
    """

    module: torch.jit.ScriptModule
    notes: tuple[str, ...]

    @classmethod
    def of(cls, source: ProgramSource) -> "Trace":
        """Trace a module.

        Raises:
            ExportError: it cannot be traced.
        """
        with warnings.catch_warnings(record=True) as caught, torch.no_grad():
            warnings.simplefilter("always")
            try:
                trace: Any = torch.jit.trace
                frozen = torch.jit.freeze(trace(source.module, source.example, check_trace=False), optimize_numerics=False)
            except Exception as error:
                raise ExportError(f"{source.name} cannot be traced: {describe(error)}") from error
        found = [str(warning.message).split("\n")[0] for warning in caught if issubclass(warning.category, TracerWarning)]
        return cls(frozen, tuple(found))

    @property
    def hint(self) -> str:
        """The notes, to go behind a message."""
        return f"; while it was traced: {'; '.join(self.notes)}" if self.notes else ""

    def digest(self) -> str:
        """Names its code and its numbers, to the bit; what torch writes anew each time is passed over."""
        buffer = io.BytesIO()
        torch.jit.save(self.module, buffer)
        found = hashlib.sha256()
        with zipfile.ZipFile(buffer) as archive:
            for name in sorted(archive.namelist()):
                inner, data = name.partition("/")[2], archive.read(name)
                if not inner.endswith(_WRITTEN_ANEW):
                    for part in (_COUNTER.sub(b"", inner.encode()), _COUNTER.sub(b"", data) if inner.endswith((".py", ".pkl")) else data):
                        found.update(len(part).to_bytes(8, "little") + part)
        return found.hexdigest()


def write_torchscript(source: ProgramSource, trace: Trace, path: Path, bound: float) -> ProgramEntry:
    """Check a trace for inputs of several sizes, and write it.

    Args:
        source: the module.
        trace: of it.
        path: the file to write; its last two parts become the entry's `file`.
        bound: the largest difference that is let pass, absolute for answers up to 1 and relative above.

    Raises:
        ExportError: the module fails or is not deterministic in eval mode, or its trace answers otherwise than it does.
    """
    Checker(source, trace.hint).require_same(trace.module, f"the trace of {source.name}", bound)
    libraries = find_libraries(trace.module)
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.jit.save(trace.module, str(path))
    return ProgramEntry(role=source.role, file=f"{path.parent.name}/{path.name}", format="torchscript", libraries=libraries, bound=bound)


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


def _nodes(block: Any) -> list[Any]:
    """Every node of a graph or block, nested blocks included."""
    found = []
    for node in block.nodes():
        found.append(node)
        for inner in node.blocks():
            found += _nodes(inner)
    return found
