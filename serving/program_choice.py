"""Which of an artifact's programs an engine runs: those of one format, the one asked for or the first that runs here."""

import importlib.util
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from emberline.errors import ArtifactError, MissingDependencyError
from emberline.program_inputs import TILED, full_inputs, program_inputs, program_outputs, tiled_inputs
from emberline.serving.artifact import Artifact
from emberline.serving.compatibility import require_fit
from emberline.serving.golden import tolerance_of
from emberline.serving.program import FORMATS, Program, load_program

ROLES = ("outputs", "groups")
"""The roles of programs that engines run."""
TILED_ROLES = tuple(TILED + role for role in ROLES)
"""The roles of those for tiled requests, that an artifact may have besides; without them, the others answer such requests too."""
_ALL_ROLES = (*ROLES, *TILED_ROLES)
_LOG = logging.getLogger(__name__)
_NEEDS = {"onnx": "onnxruntime"}


@dataclass(frozen=True)
class Programs:
    """The programs of one format, loaded.

    Args:
        format: all of them have it.
        by_role: each program.
        bounds: how far each one's answers may be from the trained model's, absolute below 1 and relative above.
    """

    format: str
    by_role: Mapping[str, Program]
    bounds: Mapping[str, float]

    @property
    def are_tiled(self) -> bool:
        """Whether there are programs for tiled requests."""
        return any(role in self.by_role for role in TILED_ROLES)

    def run(self, inputs: Mapping[str, Tensor], names: Collection[str], roles: Sequence[str]) -> dict[str, Tensor]:
        """What the programs of some roles give that some of the names are of."""
        found: dict[str, Tensor] = {}
        for role in roles:
            program = self.by_role.get(role)
            if program is not None and any(name in program.names for name in names):
                found.update(program(inputs))
        return found

    def after(self, artifact: Artifact, device: torch.device, changed: Collection[str]) -> "Programs":
        """The programs of an artifact that has one more delta: those of changed roles are loaded anew.

        Raises:
            ArtifactError: one is missing, cannot run here or does not load.
        """
        later = _load(artifact, device, self.format, changed)
        return Programs(self.format, {**self.by_role, **later.by_role}, {**self.bounds, **later.bounds})


def load_programs(artifact: Artifact, device: torch.device, format: str | None = None) -> Programs:
    """Load the programs that the schema needs.

    Args:
        artifact: what they belong to.
        device: where they run.
        format: one of `FORMATS`; None takes the first of them that the artifact has and that can run here.

    Raises:
        ArtifactError: the artifact has none of that format, none can run here, or one does not load.
        MissingDependencyError: a package that runs the format is not installed.
    """
    there = [name for name in FORMATS if any(kind == name and role in ROLES for role, kind in artifact.programs)]
    if not there and not any(role in ROLES for role, _ in artifact.programs):
        role = next((role for role in ROLES if program_outputs(artifact.schema, role)), "groups")
        raise ArtifactError(f"{artifact.root}: the artifact has no program for the model's {role}")
    if format is not None:
        if format not in there:
            raise ArtifactError(f"{artifact.root}: the artifact has no programs of format {format!r}; it has {', '.join(there)}")
        return _load(artifact, device, format)
    reasons = {name: _reason_against(artifact, device, name) for name in there}
    usable = next((name for name in there if reasons[name] is None), None)
    if usable is None:
        raise next(filter(None, reasons.values()), ArtifactError(f"{artifact.root}: the artifact has no programs of a format that this release runs"))
    for name in there[: there.index(usable)]:
        _LOG.warning("model %s, version %d: runs its %s programs: %s", artifact.manifest.name, artifact.manifest.version, usable, reasons[name])
    return _load(artifact, device, usable)


def load_full(artifact: Artifact, device: torch.device, format: str) -> Program | None:
    """The program of the whole model with its tables inside, which no engine runs; None where the artifact has none of that format.

    Raises:
        ArtifactError: it cannot run here, or does not load.
    """
    if ("full", format) not in artifact.programs:
        return None
    path, entry = artifact.programs["full", format]
    require_fit(entry, device)
    return load_program(path, entry, full_inputs(artifact.schema), program_outputs(artifact.schema, "full"), device)


def _reason_against(artifact: Artifact, device: torch.device, format: str) -> Exception | None:
    """Why the programs of a format cannot run here; None where they can."""
    needed = _NEEDS.get(format)
    if needed is not None and importlib.util.find_spec(needed) is None:
        return MissingDependencyError(f"programs of format {format!r} need the package {needed!r}: `pip install {needed}`")
    for (role, kind), (_, entry) in artifact.programs.items():
        if kind == format and role in _ALL_ROLES:
            try:
                require_fit(entry, device)
            except ArtifactError as error:
                return error
    return None


def _load(artifact: Artifact, device: torch.device, format: str, roles: Collection[str] = _ALL_ROLES) -> Programs:
    loaded, bounds, there = dict[str, Program](), dict[str, float](), artifact.programs
    tiled = any((role, format) in there for role in TILED_ROLES)
    for role in _ALL_ROLES if tiled else ROLES:
        names = program_outputs(artifact.schema, role)
        if not names or role not in roles:
            continue
        if (role, format) not in there:
            raise ArtifactError(f"{artifact.root}: the artifact has no program for the model's {role} of format {format!r}")
        path, entry = there[role, format]
        for note in require_fit(entry, device):
            _LOG.warning("model %s, version %d: %s", artifact.manifest.name, artifact.manifest.version, note)
        inputs = tiled_inputs(artifact.schema) if role in TILED_ROLES else program_inputs(artifact.schema)
        in_memory = format in ("torchscript", "onnx") and entry.data_file is None  # what is compared is what is loaded
        loaded[role] = load_program(artifact.read(path) if in_memory else path, entry, inputs, names, device)
        bounds[role] = max(entry.bound, tolerance_of(artifact.schema.group_dtype))
    return Programs(format, loaded, bounds)
