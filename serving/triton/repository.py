"""The folder that Triton reads: for each model a `config.pbtxt` and `<version>/model.py`, which opens the artifact where it lies."""

from collections.abc import Sequence
from pathlib import Path

from emberline.errors import ArtifactError
from emberline.serving.artifact import load_manifest
from emberline.serving.deltas.watcher import DEFAULT_PERIOD_S
from emberline.serving.triton.config import config_text
from emberline.serving.versions import served_version

MODEL_SOURCE = '''"""The same for every model: config.pbtxt says which artifact is served."""

from emberline.serving.triton.backend import TritonPythonModel

__all__ = ["TritonPythonModel"]
'''

BLOCKER_TEXT = "A file in the place of Python's byte-code folder: what is written beside model.py looks to Triton like a new model.\n"


def find_models(models_dir: Path) -> dict[Path, int]:
    """The folders below `models_dir` that hold at least one complete version, by name, each with the version that is served.

    Raises:
        ArtifactError: there is none, or the `served.json` of one names none.
    """
    if not models_dir.is_dir():
        raise ArtifactError(f"{models_dir}: there is no such folder")
    served = {path: served_version(path) for path in sorted(models_dir.iterdir())}
    found = {path: version for path, version in served.items() if version is not None}
    if not found:
        raise ArtifactError(f"{models_dir}: no models here: expected <name>/<version>/manifest.json")
    return found


def write_repository(
    models_dir: Path, repository: Path, *, instances: int = 1, num_threads: int | None = None, delta_poll_s: float = DEFAULT_PERIOD_S
) -> Sequence[str]:
    """Lay out a Triton repository over the version that is served of each model.

    Args:
        models_dir: holds `<name>/<version>/` artifacts; nothing in it changes.
        repository: an empty or missing folder.
        instances: processes for each model.
        num_threads: threads of each process; None leaves torch's choice.
        delta_poll_s: seconds between two looks for new deltas; 0 never looks.

    Returns:
        The models' names.

    Raises:
        ArtifactError: there is no model, or one's manifest is damaged or of another name than its folder.
    """
    names = []
    for model_dir, version in find_models(models_dir.resolve()).items():
        manifest = load_manifest(model_dir / str(version))
        if (manifest.name, manifest.version) != (model_dir.name, version):
            raise ArtifactError(f"{model_dir / str(version)}: the manifest tells of {manifest.name!r} version {manifest.version}, not of this folder")
        target = repository / model_dir.name
        (target / str(version)).mkdir(parents=True)
        (target / str(version) / "model.py").write_text(MODEL_SOURCE)
        (target / str(version) / "__pycache__").write_text(BLOCKER_TEXT)
        text = config_text(manifest, model_dir, instances=instances, num_threads=num_threads, delta_poll_s=delta_poll_s)
        (target / "config.pbtxt").write_text(text)
        names.append(model_dir.name)
    return names
