"""How an artifact comes to be there whole or not at all: built in a hidden folder beside its final place, then renamed once.

`<models>/<name>/.building-<random>/` is being written by a living process, which holds a lock on that folder. `<models>/<name>/<version>/` is
complete. A killed exporter's folder stays hidden, and the next exporter of that model removes it. No lock is needed for version
numbers: a rename onto a version that is there fails, and the exporter takes the next number. Deltas are built in the same way, in
`<version>/deltas/`; but one that finds its number taken was made for another state than there is now, and is given up.
"""

import errno
import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from emberline.delta_manifest import DeltaManifest
from emberline.errors import ExportError
from emberline.manifest import MANIFEST_NAME, ArtifactManifest, write_manifest
from emberline.serving.deltas import delta_path

BUILDING_PREFIX = ".building-"
REMOVING_PREFIX = ".removing-"
"""Of a version that is no more, and whose files are being deleted."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_VERSION = re.compile(r"[1-9][0-9]*")
_TAKEN = (errno.ENOTEMPTY, errno.EEXIST)


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
    if not _NAME.fullmatch(name):
        raise ExportError(f"model name {name!r} must begin with a letter or digit and hold only letters, digits, '_', '-' and '.'")
    model_dir = models_dir / name
    if version is not None:
        _check_version(model_dir, version)
    with building_dir(model_dir) as path:
        yield Build(path, model_dir, version)


@contextmanager
def building_dir(parent: Path) -> Iterator[Path]:
    """A hidden folder in `parent`, which is made too; removed at the end, unless it was renamed.

    Raises:
        ExportError: it cannot be made.
    """
    try:
        parent.mkdir(parents=True, exist_ok=True)
        remove_stale_builds(parent)
        path, lock = _make_locked_dir(parent)
    except OSError as error:
        raise ExportError(f"cannot write to {parent}: {error}") from error
    try:
        yield path
    finally:
        # Published: the path is gone and there is nothing to remove.
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def publish(build: Build, manifest: ArtifactManifest) -> Path:
    """Flush every file, write the manifest last and give the folder its final name.

    Args:
        manifest: complete but for its version, which is set here.

    Returns:
        `<models>/<name>/<version>`.

    Raises:
        ExportError: the version that was asked for has appeared meanwhile.
    """
    _flush_tree(build.path)
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
    _flush_tree(path)
    write_manifest(path, manifest.to_dict())
    final = delta_path(version_dir, manifest.number)
    if not _rename(path, final):
        if not (final / MANIFEST_NAME).is_file():
            raise ExportError(f"{final} is there without {MANIFEST_NAME}: finish copying it, or remove it")
        raise ExportError(f"{final} has appeared meanwhile, and this delta does not follow it: export again")
    return final


def _rename(path: Path, final: Path) -> bool:
    """Give a flushed folder its final name; false where that is taken."""
    flush_dir(path)
    try:
        path.rename(final)
    except OSError as error:
        if error.errno not in _TAKEN:
            raise ExportError(f"cannot publish {final}: {error}") from error
        return False
    flush_dir(final.parent)
    return True


def remove_stale_builds(model_dir: Path) -> list[Path]:
    """Remove what exporters that were killed left behind; a build whose process lives is left alone.

    Returns:
        The folders that were removed.
    """
    removed = sorted(model_dir.glob(REMOVING_PREFIX + "*"))
    for path in removed:
        shutil.rmtree(path, ignore_errors=True)
    for path in sorted(model_dir.glob(BUILDING_PREFIX + "*")):
        lock = _try_lock(path)
        if lock is None:
            continue
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)
        removed.append(path)
    return removed


def _check_version(model_dir: Path, version: int) -> None:
    if version < 1:
        raise ExportError(f"version must be 1 or more, not {version}")
    if (model_dir / str(version)).exists():
        raise ExportError(f"version {version} is already there: {model_dir / str(version)}; published versions never change")


def _make_locked_dir(parent: Path) -> tuple[Path, int]:
    """A new hidden folder and the descriptor that holds its lock.

    Another exporter may take a folder that is not locked yet for a stale one and remove it: then a new one is made.
    """
    while True:
        path = parent / (BUILDING_PREFIX + secrets.token_hex(8))
        path.mkdir()
        lock = _try_lock(path)
        if lock is None:
            continue
        with suppress(FileNotFoundError):
            if path.stat().st_ino == os.fstat(lock).st_ino:
                return path, lock
        os.close(lock)


def _try_lock(path: Path) -> int | None:
    """A descriptor that holds the folder's lock until it is closed or its process ends; None where another holds it or the folder is gone."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _flush_tree(root: Path) -> None:
    """Wait until every file and folder below `root` is on disk."""
    for path in root.rglob("*"):
        if path.is_dir():
            flush_dir(path)
            continue
        with path.open("rb") as stream:
            os.fsync(stream.fileno())


def flush_dir(path: Path) -> None:
    """Wait until the names in a folder are on disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
