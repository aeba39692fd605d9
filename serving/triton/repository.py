"""The folder that Triton reads: for each model a `config.pbtxt` and `<version>/model.py`, which opens the artifact where it lies."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from emberline.errors import ArtifactError
from emberline.manifest import ArtifactManifest
from emberline.serving.artifact import load_manifest
from emberline.serving.fetch import fetch, find_stored_models
from emberline.serving.triton.config import config_text
from emberline.serving.triton.settings import DEFAULTS, TritonSettings
from emberline.serving.versions import served_version
from emberline.storage import Place, Storage, is_url, join

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


def _described_models(models_dir: Place, cache: Path | None) -> Iterator[tuple[Place, int, ArtifactManifest]]:
    """The folder of each model, the version that is served, and its manifest; what is behind a URL is copied to the cache."""
    if not is_url(models_dir):
        for folder, served in find_models(Path(models_dir).resolve()).items():
            yield folder, served, load_manifest(folder / str(served))
        return
    for url in find_stored_models(Storage.of(models_dir)):
        model, _, version = url.rpartition("/")
        if not version.isdecimal():
            raise ArtifactError(f"{url}: name a folder of models, a model's folder or a version; Triton goes by <name>/<version>")
        yield model, int(version), load_manifest(fetch(url, cache).root)


def write_repository(models_dir: Place, repository: Path, settings: TritonSettings = DEFAULTS) -> Mapping[str, int]:
    """Lay out a Triton repository over the version that is served of each model, or bring one up to date.

    A Triton that reads the folder meanwhile finds what was there or what comes: a version's folder is there before the config that names it.

    Args:
        models_dir: holds `<name>/<version>/` artifacts, here or behind a URL; nothing in it changes.
        repository: an empty or missing folder, or one that was laid out so before; folders of models that are gone stay.
        settings: how they are served.

    Returns:
        The models' names, and the version of each.

    Raises:
        ArtifactError: there is no model, or one's manifest is damaged or of another name than its folder.
    """
    found = list(_described_models(models_dir, settings.cache))
    for model_dir, version, manifest in found:
        if (manifest.name, manifest.version) != (str(model_dir).rpartition("/")[2], version):
            place = join(model_dir, str(version))
            raise ArtifactError(f"{place}: the manifest tells of {manifest.name!r} version {manifest.version}, not of this folder")
    for model_dir, version, manifest in found:
        _write_version(repository / manifest.name / str(version))
        _replace(repository / manifest.name / "config.pbtxt", config_text(manifest, model_dir, settings))
    return {manifest.name: version for _, version, manifest in found}


def _write_version(folder: Path) -> None:
    """What every version has, unless it is there."""
    if folder.is_dir():
        return
    folder.mkdir(parents=True)
    (folder / "__pycache__").write_text(BLOCKER_TEXT)
    _replace(folder / "model.py", MODEL_SOURCE)


def _replace(path: Path, text: str) -> None:
    """Write a file in one step, unless it holds that text."""
    if path.is_file() and path.read_text() == text:
        return
    draft = path.with_name(f".{path.name}")
    draft.write_text(text)
    draft.rename(path)
