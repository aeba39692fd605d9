"""The versions of a model in `<models>/<name>/`, and which of them is served.

The newest complete one is, unless `<models>/<name>/served.json`, as `emberline export --rollback` writes it, names another.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from emberline.errors import ArtifactError
from emberline.manifest import MANIFEST_NAME
from emberline.serving.manifests import list_numbered

SERVED_NAME = "served.json"
"""Holds `{"version": K}`."""


def list_versions(model_dir: Path) -> list[int]:
    """The complete versions (folders named by a whole number, with a manifest) of one model, ascending."""
    return list_numbered(model_dir)


def pinned_version(model_dir: Path) -> int | None:
    """The version that `served.json` names, which need not be there; None where there is no such file.

    Raises:
        ArtifactError: the file names no version.
    """
    path = model_dir / SERVED_NAME
    try:
        text = path.read_text()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ArtifactError(f"{path} cannot be read: {error}") from error
    return parse_pin(text, str(path))


def parse_pin(text: str, path: str) -> int:
    """The version that the text of a `served.json` names.

    Raises:
        ArtifactError: it names none.
    """
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    version = found.get("version") if isinstance(found, dict) else None
    if type(version) is not int or version < 0:
        raise ArtifactError(
            f'{path} should hold {{"version": K}}, a version that is there; write it by `emberline export --rollback K`, or remove it'
        )
    return version


def choose_version(versions: Sequence[int], pinned: int | None, place: str) -> int | None:
    """The version that is served of those that are there; None where there are none.

    Args:
        versions: ascending.
        pinned: what `served.json` names.
        place: the model's folder, for the message.

    Raises:
        ArtifactError: the pinned one is not there.
    """
    if pinned is None:
        return versions[-1] if versions else None
    if pinned not in versions:
        found = f"there are {', '.join(map(str, versions))}" if versions else "there are none"
        raise ArtifactError(f"{place}: {SERVED_NAME} says that version {pinned} is served, which is not there: {found}; name one by --rollback K")
    return pinned


def served_version(model_dir: Path) -> int | None:
    """The version of a model that is served; None where there is no complete one.

    Raises:
        ArtifactError: `served.json` is no such file, or names a version that is not there.
    """
    return choose_version(list_versions(model_dir), pinned_version(model_dir), str(model_dir))


def find_version(path: Path) -> Path:
    """`path` itself where it is an artifact; else, of a model's folder, the version that is served.

    Raises:
        ArtifactError: there is no artifact, or `served.json` names none.
    """
    if (path / MANIFEST_NAME).is_file():
        return path
    if not path.is_dir():
        raise ArtifactError(f"{path}: there is no such folder")
    version = served_version(path)
    if version is None:
        raise ArtifactError(f"{path}: no artifact here: neither {MANIFEST_NAME} nor a version folder (1, 2, ...) that has one")
    return path / str(version)
