"""A module as torch's exported program: what AOTInductor compiles and what ONNX is translated from, for inputs of any sizes from 0 up."""

import inspect
import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import nn
from torch.export import Dim, ExportedProgram
from torch.nn.attention import SDPBackend, sdpa_kernel

from emberline.errors import ExportError
from emberline.export.formats.check import ProgramSource

_NOISY = ("torch.fx._symbolic_trace", "torch.onnx._internal.exporter._registration")
_NO_NAME = re.compile(r"\W")


def export_program(source: ProgramSource) -> ExportedProgram:
    """Export a module with every named size free.

    Raises:
        ExportError: it cannot be exported, or only for some sizes.
    """
    names = dict.fromkeys(size for given in source.inputs for size in given.dims if isinstance(size, str))
    # Names may hold what Python's may not; a number keeps them apart.
    sizes = {name: Dim(f"d{place}_{_NO_NAME.sub('_', name)}", min=0) for place, name in enumerate(names)}
    shapes = tuple({place: sizes[size] for place, size in enumerate(given.dims) if isinstance(size, str)} for given in source.inputs)
    try:
        with quiet(), torch.no_grad():
            found = torch.export.export(source.module, source.example, dynamic_shapes=_by_parameter(source.module, shapes), strict=False)
            with unfused_attention():
                plain: ExportedProgram = found.run_decompositions()  # writes autocast's casts out as operators
            return plain
    except Exception as error:
        raise ExportError(f"{source.name} cannot be exported for inputs of any size: {_cause(error)}") from error


def unfused_attention() -> AbstractContextManager[object]:
    """Attention becomes plain products and a softmax here.

    The fused kernel divides by the number of rows, and ends the process where there is none. Torch itself does not call it then; a program, which has
    chosen once and for all, would.
    """
    manager: AbstractContextManager[object] = sdpa_kernel(SDPBackend.MATH)
    return manager


def _cause(error: Exception) -> str:
    """In one line: torch's texts begin with the cause, and go on with advice; those of some begin with the trace."""
    text = str(error.__cause__ or error).strip() or str(error)
    return f"{type(error).__name__}: {text.splitlines()[0] if text else ''}"


def _by_parameter(module: nn.Module, shapes: tuple[Any, ...]) -> tuple[Any, ...]:
    """One entry for each parameter of a module's `forward`: what `*more` takes is one tuple."""
    kinds = [parameter.kind for parameter in inspect.signature(module.forward).parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL not in kinds:
        return shapes
    named = kinds.index(inspect.Parameter.VAR_POSITIONAL)
    return (*shapes[:named], shapes[named:]) if shapes[named:] else shapes


@contextmanager
def quiet() -> Iterator[None]:
    """Keep what torch says of its own insides off the terminal: a user can do nothing about it."""
    levels = {name: logging.getLogger(name).level for name in _NOISY}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            for name in levels:
                logging.getLogger(name).setLevel(logging.ERROR)
            yield
        finally:
            for name, level in levels.items():
                logging.getLogger(name).setLevel(level)
