"""How an artifact comes to be there whole or not at all: built in a hidden folder beside its final place, then renamed once.

`<models>/<name>/.building-<random>/` is being written by a living process, which holds a lock on that folder. `<models>/<name>/<version>/` is
complete. A killed exporter's folder stays hidden, and the next exporter of that model removes it. No lock is needed for version
numbers: a rename onto a version that is there fails, and the exporter takes the next number. Deltas are built in the same way, in
`<version>/deltas/`; but one that finds its number taken was made for another state than there is now, and is given up.
"""

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from emberline.building import building_dir, flush_tree, rename_new
from emberline.delta_manifest import DeltaManifest
from emberline.errors import ExportError
from emberline.manifest import MANIFEST_NAME, ArtifactManifest, write_manifest
from emberline.serving.deltas import delta_path

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_VERSION = re.compile(r"[1-9][0-9]*")


@dataclass(frozen=True)
class Build:
    """An artifact that is being written.

    Args:
        path: the hidden folder to write files into.
        model_dir: `<models>/<name>`.
        version: the number that was asked for; None takes the next free one.
    """

    path: Path
    model_dir: Path
    version: int | None = None


def list_versions(model_dir: Path) -> list[int]:
    """The versions of a model that are there, ascending; a folder that is not a number is none."""
    if not model_dir.is_dir():
        return []
    return sorted(int(entry.name) for entry in model_dir.iterdir() if _VERSION.fullmatch(entry.name) and entry.is_dir())


@contextmanager
def start_build(models_dir: Path, name: str, version: int | None = None) -> Iterator[Build]:
    """A hidden folder to build a version of model `name` in; it is removed at the end, unless it was published.

    Raises:
        ExportError: the name cannot be a folder's, the version is not positive or is there already, or the folder cannot be made.
    """
    require_name(name)
    model_dir = models_dir / name
    if version is not None:
        _check_version(model_dir, version)
    with hidden_dir(model_dir) as path:
        yield Build(path, model_dir, version)


def require_version(version: int) -> None:
    """Refuse a number that no version may have.

    Raises:
        ExportError: it is below 1.
    """
    if version < 1:
        raise ExportError(f"version must be 1 or more, not {version}")


def require_name(name: str) -> None:
    """Refuse a name that cannot be a folder's everywhere.

    Raises:
        ExportError: it has other characters, or begins with another.
    """
    if not _NAME.fullmatch(name):
        raise ExportError(f"model name {name!r} must begin with a letter or digit and hold only letters, digits, '_', '-' and '.'")


@contextmanager
def hidden_dir(parent: Path) -> Iterator[Path]:
    """A hidden folder in `parent`, as `building_dir` makes it.

    Raises:
        ExportError: it cannot be made.
    """
    with ExitStack() as stack:
        try:
            path = stack.enter_context(building_dir(parent))
        except OSError as error:
            raise ExportError(f"cannot write to {parent}: {error}") from error
        yield path


def publish(build: Build, manifest: ArtifactManifest) -> Path:
    """Flush every file, write the manifest last and give the folder its final name.

    Args:
        manifest: complete but for its version, which is set here.

    Returns:
        `<models>/<name>/<version>`.

    Raises:
        ExportError: the version that was asked for has appeared meanwhile.
    """
    flush_tree(build.path)
    while True:
        version = build.version or max(list_versions(build.model_dir), default=0) + 1
        write_manifest(build.path, replace(manifest, version=version).to_dict())
        final = build.model_dir / str(version)
        if _rename(build.path, final):
            return final
        if build.version is not None:
            raise ExportError(f"version {version} is already there: {final}")


def publish_delta(path: Path, version_dir: Path, manifest: DeltaManifest) -> Path:
    """Flush every file, write the manifest last and give the folder its final name.

    Args:
        path: the hidden folder, in `<version_dir>/deltas`.
        version_dir: the artifact's folder.
        manifest: of the delta.

    Returns:
        `<version_dir>/deltas/<number>`.

    Raises:
        ExportError: there is a delta of that number by now, or half of one.
    """
    flush_tree(path)
    write_manifest(path, manifest.to_dict())
    final = delta_path(version_dir, manifest.number)
    if not _rename(path, final):
        if not (final / MANIFEST_NAME).is_file():
            raise ExportError(f"{final} is there without {MANIFEST_NAME}: finish copying it, or remove it")
        raise ExportError(f"{final} has appeared meanwhile, and this delta does not follow it: export again")
    return final


def _rename(path: Path, final: Path) -> bool:
    """As `rename_new`."""
    try:
        return rename_new(path, final)
    except OSError as error:
        raise ExportError(f"cannot publish {final}: {error}") from error


def _check_version(model_dir: Path, version: int) -> None:
    require_version(version)
    if (model_dir / str(version)).exists():
        raise ExportError(f"version {version} is already there: {model_dir / str(version)}; published versions never change")
