"""A module as ONNX: standard operators of one opset, no loops and no sequences, numbers beside the file where they are many."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram

from emberline.errors import ExportError
from emberline.export.formats.check import Checker, ProgramSource, describe
from emberline.export.formats.exported import quiet
from emberline.export.formats.recurrent import translations
from emberline.manifest import ProgramEntry
from emberline.serving.program import OnnxSession

SUFFIX = ".onnx"
DATA_SUFFIX = ".onnx.data"
OPSET = 18
EXTERNAL_DATA_BYTES = 64 << 20
"""Files whose numbers are more than this keep them in a second file. ONNX itself ends at 2 GiB a file."""
_LEAST_EXTERNAL_BYTES = 1024
_LOOPS = ("Loop", "Scan")


def write_onnx(source: ProgramSource, exported: ExportedProgram, path: Path, bound: float) -> ProgramEntry:
    """Translate an exported program, compare what onnxruntime makes of it with its module for inputs of several sizes, and keep its files.

    Args:
        source: the module.
        exported: made of it.
        path: the file to write; its last two parts become the entry's `file`.
        bound: the largest difference that is let pass.

    Raises:
        ExportError: an operator has no translation that every runtime has, or the answers are others than the module's.
    """
    model = _translate(source, exported)
    _tidy(model, source)
    if strange := sorted(set(_strange_operators(model.graph))):
        raise ExportError(f"{source.name} cannot become ONNX that every runtime takes: it needs {', '.join(strange)}; choose another --format")
    path.parent.mkdir(parents=True, exist_ok=True)
    data = path.with_name(path.name.removesuffix(SUFFIX) + DATA_SUFFIX) if _size(model) > EXTERNAL_DATA_BYTES else None
    try:
        _save(model, path, data)
        session = _session(source, path)
        names = [given.name for given in source.inputs]

        def run(*inputs: Tensor) -> list[Tensor]:
            return session(dict(zip(names, inputs, strict=True)), source.outputs)

        Checker(source).require_same(run, f"the ONNX form of {source.name}", bound)
    except BaseException:
        path.unlink(missing_ok=True)
        if data is not None:
            data.unlink(missing_ok=True)
        raise
    file = f"{path.parent.name}/{path.name}"
    beside = f"{path.parent.name}/{data.name}" if data is not None else None
    return ProgramEntry(role=source.role, file=file, format="onnx", opset=OPSET, data_file=beside, bound=bound)


def _session(source: ProgramSource, path: Path) -> OnnxSession:
    try:
        return OnnxSession(path, torch.device("cpu"))
    except RuntimeError as error:
        raise ExportError(f"onnxruntime does not take the ONNX form of {source.name}: {error}; choose another --format") from error


def _translate(source: ProgramSource, exported: ExportedProgram) -> Any:
    """The model, as onnx_ir has it."""
    try:
        with quiet(), torch.no_grad():
            made = torch.onnx.export(
                exported,
                input_names=[given.name for given in source.inputs],
                output_names=list(source.outputs),
                opset_version=OPSET,
                dynamo=True,
                external_data=False,
                custom_translation_table=translations(OPSET),
                verbose=False,
            )
    except Exception as error:
        raise ExportError(f"{source.name} cannot be translated to ONNX: {describe(error)}; choose another --format") from error
    assert made is not None
    return made.model


def _tidy(model: Any, source: ProgramSource) -> None:
    """Give sizes their names, and take out what tells of this machine: paths and traces."""
    names: dict[str, str] = {}
    for value, given in zip(model.graph.inputs, source.inputs, strict=True):
        names |= {str(found): size for found, size in zip(value.shape, given.dims, strict=True) if isinstance(size, str)}
    for value in (*model.graph.inputs, *model.graph.outputs):
        for place, size in enumerate(value.shape):
            if not isinstance(size, int):
                value.shape[place] = names.get(str(size), str(size))
    for part in (model, model.graph, *_nodes(model.graph), *_values(model.graph)):
        part.metadata_props.clear()
        part.doc_string = None


def _nodes(graph: Any) -> Iterator[Any]:
    """Every node, those in branches too."""
    return iter(graph.all_nodes())


def _values(graph: Any) -> Iterator[Any]:
    """Every value that has a name."""
    yield from (*graph.inputs, *graph.initializers.values())
    for node in _nodes(graph):
        yield from node.outputs


def _strange_operators(graph: Any) -> Iterator[str]:
    """Operators that are not of ONNX itself, loops, and those on sequences of tensors, which TensorRT and others do not take."""
    for node in _nodes(graph):
        if node.domain not in ("", "ai.onnx"):
            yield f"{node.domain}::{node.op_type}"
        elif node.op_type in _LOOPS or "Sequence" in node.op_type or "Optional" in node.op_type:
            yield str(node.op_type)


def _size(model: Any) -> int:
    """Bytes of all numbers."""
    return sum(value.const_value.nbytes for value in model.graph.initializers.values() if value.const_value is not None)


def _save(model: Any, path: Path, data: Path | None) -> None:
    import onnx
    import onnx_ir

    if data is None:
        onnx_ir.save(model, path)
    else:
        onnx_ir.save(model, path, external_data=data.name, size_threshold_bytes=_LEAST_EXTERNAL_BYTES)
    onnx.checker.check_model(str(path))
