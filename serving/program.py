"""Dense programs: from looked-up tensors to the model's answers."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from emberline.errors import ArtifactError
from emberline.manifest import ProgramEntry
from emberline.program_inputs import ProgramInput
from emberline.serving.compatibility import import_libraries

PROGRAM_FAILURES = (RuntimeError, MemoryError, torch.jit.Error)
"""What running a program may raise; torch.jit.Error is no RuntimeError."""


class TorchScriptProgram:
    """One TorchScript file, loaded: the tensors that `program_inputs` lists -> tuple of tensors, for any number of rows.

    Args:
        module: the script module, on the engine's device, in eval mode.
        inputs: what it takes, in order.
        names: what its results are called, in order.
    """

    def __init__(self, module: Any, inputs: Sequence[ProgramInput], names: Sequence[str]) -> None:
        self._module = module
        self._inputs = tuple(given.name for given in inputs)
        self.names = tuple(names)

    @classmethod
    def load(
        cls, path: Path, entry: ProgramEntry, inputs: Sequence[ProgramInput], names: Sequence[str], device: torch.device
    ) -> "TorchScriptProgram":
        """Load a program, after the libraries whose operators it calls.

        Raises:
            ArtifactError: a library is not installed, the format is not one that this release runs, or the file does not load.
        """
        if entry.format != "torchscript":
            raise ArtifactError(f"{entry.file}: programs of format {entry.format!r} are not supported; this release runs torchscript")
        import_libraries(entry)
        try:
            module = torch.jit.load(str(path), map_location=device)  # type: ignore[no-untyped-call]
        except PROGRAM_FAILURES as error:
            raise ArtifactError(f"{entry.file}: the {entry.role} program does not load: {_first_line(error)}") from error
        return cls(module.eval(), inputs, names)

    def __call__(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Its results by name.

        Args:
            inputs: by name, all that `program_inputs` lists.
        """
        results = self._module(*(inputs[name] for name in self._inputs))
        if len(results) != len(self.names):
            raise ArtifactError(f"the program gives {len(results)} tensors, but the schema names {len(self.names)}: {', '.join(self.names)}")
        return dict(zip(self.names, results, strict=True))


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
