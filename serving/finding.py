"""Where the artifacts of models lie in a folder `<models>/<name>/<version>/`, in one model's folder, or behind a URL of either."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from emberline.errors import ArtifactError, EmberlineError
from emberline.manifest import MANIFEST_NAME
from emberline.serving.artifact import load_manifest
from emberline.serving.fetch import find_stored, find_stored_models, stored_pin, stored_version
from emberline.serving.versions import list_versions, pinned_version, served_version
from emberline.storage import Place, Storage, is_url

_log = logging.getLogger(__name__)


def find_artifacts(models_dir: Place) -> Sequence[Place]:
    """The artifact that is served of each model in a folder, or the URL of each where that is a URL.

    Raises:
        ArtifactError: there is none, a model's folder has version folders but none that is complete, or its `served.json` names none.
    """
    if is_url(models_dir):
        return find_stored_models(Storage.of(models_dir))
    models_dir = Path(models_dir)
    if not models_dir.is_dir():
        raise ArtifactError(f"{models_dir}: there is no such folder; `emberline export --output {models_dir} ...` makes one")
    if (single := _single(models_dir)) is not None:
        return [single]
    found = []
    for folder in _model_folders(models_dir).values():
        if (version := served_version(folder)) is not None:
            found.append(folder / str(version))
        elif any(path.name.isdigit() for path in folder.iterdir() if path.is_dir()):
            raise ArtifactError(f"{folder}: none of its versions is complete: no {MANIFEST_NAME} in any; export or copy it again, or remove it")
    if not found:
        raise ArtifactError(f"{models_dir}: no models here; `emberline export --output {models_dir} ...` writes <name>/<version>/{MANIFEST_NAME}")
    return found


def find_versions(models_dir: Place, versions: Mapping[str, int]) -> Sequence[Place]:
    """The artifacts of some versions of some models; of a model without that version, the one that is to be served.

    Raises:
        ArtifactError: there is no such model.
    """
    found: list[Place] = []
    for name, version in versions.items():
        path = find_version_of(models_dir, name, version) or find_artifact(models_dir, name)
        if path is None:
            raise ArtifactError(f"{models_dir}: there is no model {name!r} any more")
        found.append(path)
    return found


def find_version_of(models_dir: Place, name: str, version: int) -> Place | None:
    """The artifact of a version of a model; None where there is none. Of one model's folder or artifact, the name is left to who opens it."""
    if is_url(models_dir):
        storage = Storage.of(models_dir)
        if storage.has(MANIFEST_NAME):
            return storage.url
        if not storage.numbers():
            if name.startswith(".") or name not in storage.names():
                return None
            storage = storage.child(name)
        return storage.child(str(version)).url if storage.has(f"{version}/{MANIFEST_NAME}") else None
    root = Path(models_dir)
    if (root / MANIFEST_NAME).is_file():
        return root
    folder = root if list_versions(root) else _model_folders(root).get(name)
    return folder / str(version) if folder is not None and version in list_versions(folder) else None


def find_artifact(models_dir: Place, name: str) -> Place | None:
    """As `find_artifacts`, the one of a model; None where there is no such model. The name is looked for among those there are: it is no path.

    Raises:
        ArtifactError: its `served.json` names no version that is there.
    """
    if is_url(models_dir):
        return _stored_artifact(Storage.of(models_dir), name)
    if (single := _single(Path(models_dir))) is not None:
        return single if load_manifest(single).name == name else None
    folder = _model_folders(Path(models_dir)).get(name)
    version = None if folder is None else served_version(folder)
    return None if folder is None or version is None else folder / str(version)


def _stored_artifact(storage: Storage, name: str) -> Place | None:
    if storage.has(MANIFEST_NAME) or stored_version(storage) is not None:
        single = find_stored(storage)
        return single.url if single.url.rstrip("/").split("/")[-2] == name else None
    if name.startswith(".") or name not in storage.names():
        return None
    version = stored_version(storage.child(name))
    return None if version is None else storage.child(name).child(str(version)).url


def list_names(models_dir: Place) -> list[str]:
    """The names of the models in a folder that have a complete version; none where it cannot be read, or is a single model's."""
    try:
        if is_url(models_dir):
            storage = Storage.of(models_dir)
            if storage.has(MANIFEST_NAME) or stored_version(storage) is not None:
                return []
            return [name for name in storage.names() if not name.startswith(".") and storage.child(name).numbers()]
        if _single(Path(models_dir)) is not None:
            return []
        return [name for name, folder in _model_folders(Path(models_dir)).items() if list_versions(folder)]
    except (EmberlineError, OSError) as error:
        _log.error("the models folder cannot be read: %s", error)
        return []


def _single(models_dir: Path) -> Path | None:
    """The artifact that is served where the folder is one's, or a model's."""
    if (models_dir / MANIFEST_NAME).is_file():
        return models_dir
    version = served_version(models_dir)
    return None if version is None else models_dir / str(version)


def _model_folders(models_dir: Path) -> dict[str, Path]:
    """The folders that may be models', by name."""
    return {path.name: path for path in sorted(models_dir.iterdir()) if path.is_dir() and not path.name.startswith(".")}


def older_versions(path: Place) -> Sequence[Place]:
    """The complete versions of a model that are older than that of an artifact, newest first; none where `served.json` chose that one."""
    if is_url(path):
        url, _, name = path.rstrip("/").rpartition("/")
        folder = Storage.of(url)
        older = [] if not name.isdecimal() or stored_pin(folder) is not None else [number for number in folder.numbers() if number < int(name)]
        return [folder.child(str(number)).url for number in reversed(older)]
    parent, name = Path(path).parent, Path(path).name
    if not name.isdecimal() or pinned_version(parent) is not None:
        return []
    return [parent / str(number) for number in reversed(list_versions(parent)) if number < int(name)]
