"""Programs: from looked-up tensors to the model's answers, one class for each format behind one interface.

Any number of threads may call a program at once.
"""

import io
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from emberline.errors import ArtifactError, MissingDependencyError, first_line
from emberline.manifest import ProgramEntry
from emberline.program_inputs import ProgramInput
from emberline.serving.compatibility import import_libraries
from emberline.serving.program_columns import Columns, columns_of

FORMATS = ("torchscript", "aoti", "onnx")
"""The formats of programs, in the order in which an engine looks for one that runs where it is."""
Source = Path | bytes
"""Where a program is read from."""
PROGRAM_FAILURES = (RuntimeError, MemoryError, torch.jit.Error)
"""What running a program may raise; torch.jit.Error is no RuntimeError."""


class Program(Protocol):
    """One program, loaded.

    Args:
        names: what its results are called, in order.
        columns: those of its results that are known to be columns of its inputs, by name.
    """

    names: tuple[str, ...]
    columns: Mapping[str, Columns]

    def __call__(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Its results by name.

        Args:
            inputs: by name, all that `program_inputs` lists, on the engine's device.
        """


def load_program(source: Source, entry: ProgramEntry, inputs: Sequence[ProgramInput], names: Sequence[str], device: torch.device) -> Program:
    """Load a program.

    Args:
        source: its file, or, of a TorchScript or ONNX file that has nothing beside it, what that holds.
        entry: what the manifest tells of it; `require_fit` has found it fit.
        inputs: what it takes, in order.
        names: what its results are called, in order.
        device: where it runs.

    Raises:
        ArtifactError: a library is not installed, the format is not one that this release runs, or the file does not load.
        MissingDependencyError: a package that runs this format is not installed.
    """
    kinds: dict[str, Callable[[Any, Sequence[ProgramInput], Sequence[str], torch.device], Program]]
    kinds = {"torchscript": TorchScriptProgram, "aoti": CompiledProgram, "onnx": OnnxProgram}
    if entry.format not in kinds:
        raise ArtifactError(f"{entry.file}: programs of format {entry.format!r} are not supported; this release runs {', '.join(kinds)}")
    import_libraries(entry)
    try:
        return kinds[entry.format](source, inputs, names, device)
    except PROGRAM_FAILURES as error:
        raise ArtifactError(f"{entry.file}: the {entry.role} program does not load: {first_line(error)}") from error


class _Ordered:
    """What programs of all formats have alike: their results come in order.

    Args:
        inputs: what it takes, in order.
        names: what its results are called, in order.
    """

    def __init__(self, inputs: Sequence[ProgramInput], names: Sequence[str]) -> None:
        self._inputs = tuple(given.name for given in inputs)
        self.names = tuple(names)
        self.columns: Mapping[str, Columns] = {}

    def _named(self, results: Sequence[Tensor]) -> dict[str, Tensor]:
        if len(results) != len(self.names):
            raise ArtifactError(f"the program gives {len(results)} tensors, but the schema names {len(self.names)}: {', '.join(self.names)}")
        return dict(zip(self.names, results, strict=True))


class TorchScriptProgram(_Ordered):
    """A TorchScript file: runs on any device. See `load_program`."""

    def __init__(self, source: Source, inputs: Sequence[ProgramInput], names: Sequence[str], device: torch.device) -> None:
        super().__init__(inputs, names)
        file = io.BytesIO(source) if isinstance(source, bytes) else str(source)
        self._module: Any = torch.jit.load(file, map_location=device).eval()  # type: ignore[no-untyped-call]
        self.columns = columns_of(self._module.inlined_graph, inputs, names)

    def __call__(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Its results by name; see `Program`."""
        return self._named(self._module(*(inputs[name] for name in self._inputs)))


class CompiledProgram(_Ordered):
    """A file that AOTInductor compiled: machine code for one kind of device. See `load_program`."""

    def __init__(self, path: Path, inputs: Sequence[ProgramInput], names: Sequence[str], device: torch.device) -> None:
        super().__init__(inputs, names)
        self._run = CompiledCode(path, device)

    def __call__(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Its results by name; see `Program`."""
        return self._named(self._run([inputs[name] for name in self._inputs]))


class OnnxProgram(_Ordered):
    """An ONNX file, which onnxruntime runs. See `load_program`."""

    def __init__(self, source: Source, inputs: Sequence[ProgramInput], names: Sequence[str], device: torch.device) -> None:
        super().__init__(inputs, names)
        self._session = OnnxSession(source, device)

    def __call__(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Its results by name; see `Program`."""
        return self._named(self._session({name: inputs[name] for name in self._inputs}, self.names))


class CompiledCode:
    """Code that AOTInductor compiled: a list of tensors in, a list of tensors out.

    Args:
        path: the `.pt2` file. It is unpacked below the system's temporary folder for as long as it is loaded.
        device: where it runs.
    """

    def __init__(self, path: Path, device: torch.device) -> None:
        index = -1 if device.index is None else device.index
        self._loader = torch._C._aoti.AOTIModelPackageLoader(str(path), "model", False, 1, index)
        self._lock = threading.Lock()

    def __call__(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """One call after the other: a second one would wait inside for the first, holding the interpreter's lock, which the first may need."""
        # The code takes its inputs as one piece each, and does not look whether they are.
        ready = [tensor.contiguous() for tensor in inputs]
        with self._lock:
            return list(self._loader.run(ready))


class OnnxSession:
    """An ONNX file in onnxruntime: tensors by name in, tensors out.

    Args:
        source: the file, beside which are the numbers that it keeps apart; or what it holds, where it keeps none.
        device: where it runs. Inputs and answers cross the host's memory.

    Raises:
        MissingDependencyError: onnxruntime is not installed, or has no support for the device.
        RuntimeError: it cannot be loaded.
    """

    def __init__(self, source: Source, device: torch.device) -> None:
        try:
            import onnxruntime
        except ImportError as error:
            raise MissingDependencyError("programs of format 'onnx' need the package 'onnxruntime': `pip install onnxruntime`") from error
        provider = "CUDAExecutionProvider" if device.type == "cuda" else "CPUExecutionProvider"
        if provider not in onnxruntime.get_available_providers():
            raise MissingDependencyError(f"onnxruntime {onnxruntime.__version__} has no {provider}: `pip install onnxruntime-gpu`")
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = torch.get_num_threads()
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # threads that wait leave the cores to lookups
        self._device = device
        try:
            self._session = onnxruntime.InferenceSession(source if isinstance(source, bytes) else str(source), options, providers=[provider])
        except Exception as error:  # onnxruntime's errors have no common class
            raise RuntimeError(first_line(error)) from error
        self._takes = {given.name for given in self._session.get_inputs()}

    def __call__(self, inputs: Mapping[str, Tensor], names: Sequence[str]) -> list[Tensor]:
        """The results of these names, in order.

        Raises:
            RuntimeError: it fails.
        """
        given = {name: tensor.cpu().numpy() for name, tensor in inputs.items() if name in self._takes}
        try:
            found = self._session.run(list(names), given)
        except Exception as error:
            raise RuntimeError(f"onnxruntime: {first_line(error)}") from error
        return [torch.from_numpy(answer).to(self._device) for answer in found]
