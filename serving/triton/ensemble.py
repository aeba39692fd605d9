"""A model in several Triton models: lookups in the Python backend, the dense program in a backend of Triton's own, and an ensemble that joins them.

    <name>           ensemble: takes and gives what the model takes and gives, so that clients see no difference
    <name>_lookup    Python backend: a request's ids and numbers -> what the dense program takes
    <name>_dense     ONNX Runtime or PyTorch backend: the program that gives the model's outputs, as the artifact has it

Requests are not merged here, so no model has a batch dimension of Triton's: shapes are whole, with the leading 1 that requests have everywhere.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emberline.building import building_dir
from emberline.errors import ArtifactError, ConfigError, MissingDependencyError
from emberline.manifest import ArtifactManifest, ProgramEntry
from emberline.program_inputs import ProgramInput, program_inputs
from emberline.serving.artifact import Artifact
from emberline.serving.fetch import localise
from emberline.serving.protocol.wire import TILE_INPUTS, WireTensor, wire_inputs
from emberline.serving.triton.config import (
    ARTIFACT_PARAMETER,
    DELTAS_PARAMETER,
    SCHEMA_PARAMETER,
    VERSION_PARAMETER,
    config_text,
    parameters_text,
    quote,
    settings_parameters,
)
from emberline.serving.triton.repository import BLOCKER_TEXT, MODEL_SOURCE
from emberline.serving.triton.settings import DEFAULTS, TritonSettings
from emberline.storage import Place, is_url

LOOKUP_SOURCE = MODEL_SOURCE.replace("import TritonPythonModel", "import TritonLookupModel as TritonPythonModel")
PYTHON = "python"


@dataclass(frozen=True)
class DenseBackend:
    """A backend of Triton's own that runs dense programs.

    Args:
        platform: its name in a config.
        format: of the programs that it runs.
        file: what Triton calls them.
        indexed: tensors are called `<name>__<place>`, as programs have no names for them.
    """

    platform: str
    format: str
    file: str
    indexed: bool

    def name(self, tensor: str, place: int) -> str:
        """What a tensor is called in the dense model's config."""
        return f"{tensor}__{place}" if self.indexed else tensor


BACKENDS: Mapping[str, DenseBackend] = {
    "onnxruntime": DenseBackend("onnxruntime_onnx", "onnx", "model.onnx", indexed=False),
    "pytorch": DenseBackend("pytorch_libtorch", "torchscript", "model.pt", indexed=True),
}


def write_triton_models(version: Place, repository: Path, backend: str = PYTHON, settings: TritonSettings = DEFAULTS) -> list[str]:
    """Write the folders of one artifact for a Triton model repository.

    Args:
        version: `<models>/<name>/<version>`, here or behind a URL: Triton opens it there.
        repository: the folder that Triton reads. Folders of the same names in it are replaced; others stay.
        backend: what runs the dense program: `python`, all in one model that has lookups too, or one of `BACKENDS`.
        settings: how they are served; of several models, the one that has the lookups.

    Returns:
        The models' names.

    Raises:
        ConfigError: the settings have what an ensemble cannot do.
        ArtifactError: the artifact is damaged, or has no program that the backend runs.
    """
    if backend != PYTHON:
        require_plain(settings)
    root = localise(version, settings.cache)
    artifact = Artifact.open(root, tables="disk")
    manifest = artifact.manifest
    model_dir = str(version).rstrip("/").rpartition("/")[0] if is_url(version) else str(Path(version).resolve().parent)
    with building_dir(repository) as draft:
        if backend == PYTHON:
            _write(draft / manifest.name, config_text(manifest, model_dir, settings), manifest.version, {"model.py": MODEL_SOURCE})
        else:
            _write_parts(draft, artifact, model_dir, BACKENDS[backend], settings)
        names = sorted(path.name for path in draft.iterdir())
        for name in names:
            _require_own(repository / name)
        for name in names:
            if (repository / name).exists():
                shutil.rmtree(repository / name)
            (draft / name).rename(repository / name)
    return names


def require_plain(settings: TritonSettings) -> None:
    """An ensemble's inputs must all be there, its requests are not merged, and its program is a copy of one format that no delta changes.

    Raises:
        ConfigError: the settings have what an ensemble cannot do.
    """
    for name in ("by_feature", "timeout_s", "max_waiting", "max_merged_requests", "delta_poll_s", "model_control", "format"):
        if getattr(settings, name) != getattr(DEFAULTS, name):
            raise ConfigError(f"TritonSettings: {name} is for the Python backend alone; an ensemble of several backends cannot have it")


def _write_parts(draft: Path, artifact: Artifact, model_dir: str, backend: DenseBackend, settings: TritonSettings) -> None:
    manifest = artifact.manifest
    found = artifact.programs.get(("outputs", backend.format))
    if found is None:
        raise ArtifactError(
            f"{artifact.root}: {backend.platform} runs programs of format {backend.format!r}, and the artifact has none for the model's outputs:"
            f" export with --format {backend.format}"
        )
    path, entry = found
    if entry.libraries:
        raise ArtifactError(f"{entry.file}: needs {', '.join(entry.libraries)}, which {backend.platform} does not load: take the Python backend")
    inputs = [given for given in program_inputs(manifest.schema) if 0 not in given.dims or backend.indexed]
    name, version = manifest.name, manifest.version
    _write(draft / f"{name}_lookup", _lookup_config(artifact, model_dir, inputs, settings), version, {"model.py": LOOKUP_SOURCE})
    _write(draft / f"{name}_dense", _dense_config(manifest, backend, inputs), version, {})
    _copy_program(path, entry, draft / f"{name}_dense" / str(version), backend, {given.name for given in inputs})
    _write(draft / name, _ensemble_config(manifest, backend, inputs), version, {"README": "An ensemble has no files of its own.\n"})


def _write(folder: Path, config: str, version: int, files: Mapping[str, str]) -> None:
    (folder / str(version)).mkdir(parents=True)
    (folder / "config.pbtxt").write_text(config)
    for name, text in files.items():
        (folder / str(version) / name).write_text(text)
        if name == "model.py":
            (folder / str(version) / "__pycache__").write_text(BLOCKER_TEXT)


def _require_own(final: Path) -> None:
    """A folder in the place of a model's must be one that was written so: it is replaced."""
    config = final / "config.pbtxt"
    if final.exists() and not (config.is_file() and VERSION_PARAMETER in config.read_text(errors="replace")):
        raise ArtifactError(f"{final} is no folder that Emberline wrote: choose another --triton folder, or remove it")


def _copy_program(path: Path, entry: ProgramEntry, target: Path, backend: DenseBackend, names: set[str]) -> None:
    """Copy the program under the name that Triton knows; ONNX without inputs that have no width, which no config can describe."""
    shutil.copyfile(path, target / backend.file)
    if entry.data_file is not None:
        shutil.copyfile(path.parent / Path(entry.data_file).name, target / Path(entry.data_file).name)
    if backend.format == "onnx":
        _drop_inputs(target / backend.file, names)


def _drop_inputs(path: Path, names: set[str]) -> None:
    try:
        import onnx
    except ImportError as error:
        raise MissingDependencyError("models for ONNX Runtime need the package 'onnx': `pip install onnx`") from error
    model: Any = onnx.load(str(path), load_external_data=False)
    dropped = [given for given in model.graph.input if given.name not in names]
    if not dropped:
        return
    read = {name for node in model.graph.node for name in node.input}
    for given in dropped:
        if given.name in read:
            raise ArtifactError(f"{path.name}: reads {given.name!r}, which has no numbers in this model: take the Python backend")
        model.graph.input.remove(given)
    onnx.save(model, str(path))


def _lookup_config(artifact: Artifact, model_dir: str, inputs: Sequence[ProgramInput], settings: TritonSettings) -> str:
    manifest = artifact.manifest
    parameters = _parameters(manifest) | {ARTIFACT_PARAMETER: model_dir, DELTAS_PARAMETER: str(len(artifact.deltas))} | settings_parameters(settings)
    sections = [
        f"name: {quote(manifest.name + '_lookup')}",
        'backend: "python"',
        _tensors("input", [(tensor.name, tensor.datatypes[0], (1, *tensor.dims), None) for tensor in _wire(manifest)]),
        _tensors("output", [(given.name, _type(given), _dims(given), None) for given in inputs]),
        settings.instance_group,
    ]
    return _config(sections, manifest, parameters)


def _dense_config(manifest: ArtifactManifest, backend: DenseBackend, inputs: Sequence[ProgramInput]) -> str:
    outputs = _outputs(manifest)
    sections = [
        f"name: {quote(manifest.name + '_dense')}",
        f"platform: {quote(backend.platform)}",
        _tensors("input", [(backend.name(given.name, place), _type(given), _dims(given), None) for place, given in enumerate(inputs)]),
        _tensors("output", [(backend.name(name, place), "FP32", (1, *dims), dims) for place, (name, dims) in enumerate(outputs)]),
    ]
    return _config(sections, manifest, {VERSION_PARAMETER: str(manifest.version)})


def _ensemble_config(manifest: ArtifactManifest, backend: DenseBackend, inputs: Sequence[ProgramInput]) -> str:
    wire, outputs = _wire(manifest), _outputs(manifest)
    lookup = _step(f"{manifest.name}_lookup", manifest.version, {t.name: t.name for t in wire}, {given.name: _inner(given.name) for given in inputs})
    dense = _step(
        f"{manifest.name}_dense",
        manifest.version,
        {backend.name(given.name, place): _inner(given.name) for place, given in enumerate(inputs)},
        {backend.name(name, place): name for place, (name, _) in enumerate(outputs)},
    )
    sections = [
        f"name: {quote(manifest.name)}",
        'platform: "ensemble"',
        _tensors("input", [(tensor.name, tensor.datatypes[0], (1, *tensor.dims), None) for tensor in wire]),
        _tensors("output", [(name, "FP32", (1, *dims), None) for name, dims in outputs]),
        f"ensemble_scheduling {{\n{lookup}{dense}}}",
    ]
    return _config(sections, manifest, _parameters(manifest))


def _config(sections: Sequence[str], manifest: ArtifactManifest, parameters: Mapping[str, str]) -> str:
    policy = f"version_policy {{ specific {{ versions: [ {manifest.version} ] }} }}"
    return "\n".join([sections[0], sections[1], "max_batch_size: 0", *sections[2:], policy, parameters_text(parameters)]) + "\n"


def _parameters(manifest: ArtifactManifest) -> dict[str, str]:
    return {SCHEMA_PARAMETER: json.dumps(manifest.schema.to_dict(), separators=(",", ":")), VERSION_PARAMETER: str(manifest.version)}


def _wire(manifest: ArtifactManifest) -> list[WireTensor]:
    """What the model takes, untiled: an ensemble has no optional inputs."""
    return [tensor for tensor in wire_inputs(manifest.schema) if tensor.name not in TILE_INPUTS]


def _outputs(manifest: ArtifactManifest) -> list[tuple[str, tuple[int, ...]]]:
    """The model's outputs with their shapes."""
    return [(output.name, (-1, output.width) if output.width else (-1,)) for output in manifest.schema.outputs]


def _inner(name: str) -> str:
    """What a tensor between two steps is called, apart from all that the model takes and gives."""
    return f"program.{name}"


def _type(given: ProgramInput) -> str:
    return {"float32": "FP32", "int64": "INT64"}[given.dtype]


def _dims(given: ProgramInput) -> tuple[int, ...]:
    """A config cannot say that a dimension is 0, only that it may be any."""
    return tuple(-1 if isinstance(size, str) or size == 0 else size for size in given.dims)


def _step(model: str, version: int, inputs: Mapping[str, str], outputs: Mapping[str, str]) -> str:
    lines = [f"    model_name: {quote(model)}", f"    model_version: {version}"]
    lines += [f"    input_map {{ key: {quote(key)} value: {quote(value)} }}" for key, value in inputs.items()]
    lines += [f"    output_map {{ key: {quote(key)} value: {quote(value)} }}" for key, value in outputs.items()]
    return "  step {\n" + "\n".join(lines) + "\n  }\n"


def _tensors(section: str, tensors: Sequence[tuple[str, str, Sequence[int], Sequence[int] | None]]) -> str:
    """Name, type, shape, and the shape that the program itself gives where that is another."""
    lines = []
    for name, datatype, dims, shape in tensors:
        reshape = f" reshape {{ shape: [ {_listed(shape)} ] }}" if shape is not None else ""
        lines.append(f"  {{ name: {quote(name)} data_type: TYPE_{datatype} dims: [ {_listed(dims)} ]{reshape} }}")
    return f"{section} [\n" + ",\n".join(lines) + "\n]"


def _listed(dims: Sequence[int]) -> str:
    return ", ".join(map(str, dims))
