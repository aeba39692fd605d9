"""Manifests of artifacts and of deltas, as they lie on disk."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from emberline.errors import ArtifactError
from emberline.manifest import MANIFEST_NAME, manifest_digest, read_manifest

Manifest = TypeVar("Manifest")


def list_numbered(parent: Path) -> list[int]:
    """The complete folders in `parent`, named by a whole number and with a manifest, ascending; none where there is no such folder."""
    if not parent.is_dir():
        return []
    names = [path.name for path in parent.iterdir() if path.name.isascii() and path.name.isdigit() and path.name == str(int(path.name))]
    return sorted(int(name) for name in names if (parent / name / MANIFEST_NAME).is_file())


def load_described(
    root: Path, what: str, build: Callable[[Mapping[str, Any]], Manifest], format_version: int, refuse: Callable[[Mapping[str, Any]], str | None]
) -> tuple[Manifest, str]:
    """The manifest in a folder, and its digest.

    Args:
        root: the folder.
        what: `artifact` or `delta`.
        build: makes the manifest of its data; raises ValueError, which names the field that is wrong.
        format_version: the one that is read.
        refuse: says why the data describe something else, or None.

    Raises:
        ArtifactError: it is missing, changed, or of something or a format that this release does not read.
    """
    try:
        data = read_manifest(root)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ArtifactError(f"{root}: {MANIFEST_NAME} is missing, so this is no complete {what}") from error
    except (OSError, ValueError) as error:
        raise ArtifactError(f"{root}: {MANIFEST_NAME} cannot be read: {error}") from error
    if (reason := refuse(data)) is not None:
        raise ArtifactError(f"{root}: {reason}")
    if (found := data.get("format_version")) != format_version:
        raise ArtifactError(f"{root}: the {what}'s format is {found}; this release reads {format_version}: upgrade Emberline or export again")
    try:
        return build(data), manifest_digest(data)
    except ValueError as error:
        article = "an" if what[0] in "aeiou" else "a"
        raise ArtifactError(f"{root}: {MANIFEST_NAME} does not describe {article} {what}: {error}") from error
