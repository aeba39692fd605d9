"""Which versions of a model stay, and which of them is served: `--keep` and `--rollback`.

A version is removed as it came: by one rename, to `.removing-<version>-<random>`, which nobody takes for a version; only then are its files deleted.
Servers that have it open go on, as an open file lives until it is closed. What a kill leaves of it is hidden, and the next export removes it.
"""

import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from emberline.building import REMOVING_PREFIX, flush_dir
from emberline.errors import ExportError
from emberline.serving.artifact import Artifact
from emberline.serving.versions import SERVED_NAME, list_versions, pinned_version


def remove_old_versions(model_dir: Path, keep: int, published: int) -> list[int]:
    """Remove the oldest versions of a model, with their deltas.

    Args:
        model_dir: `<models>/<name>`.
        keep: how many of the newest stay, at least 1.
        published: a version that stays whatever its number; so does the one that `served.json` names.

    Returns:
        Those that were removed, ascending.

    Raises:
        ArtifactError: `served.json` names no version: nothing was removed.
    """
    hidden: dict[int, Path] = {}
    with _locked(model_dir):
        versions = list_versions(model_dir)
        stay = {*versions[-keep:], published, pinned_version(model_dir)}
        for version in versions:
            target = model_dir / f"{REMOVING_PREFIX}{version}-{secrets.token_hex(8)}"
            if version not in stay:
                with suppress(FileNotFoundError):
                    (model_dir / str(version)).rename(target)
                    hidden[version] = target
        flush_dir(model_dir)
    for path in hidden.values():
        shutil.rmtree(path, ignore_errors=True)
    return list(hidden)


def roll_back(models_dir: Path, name: str, version: int | None = None) -> int:
    """Make another version of a model the one that is served. Servers take it when they start.

    Args:
        models_dir: the folder of all models.
        name: the model's.
        version: that is there and undamaged; by default the one before that which is served now. With the newest one, new versions are served
            again as they come.

    Returns:
        The version that is served from now on.

    Raises:
        ExportError: there is no such version, or none before.
        ArtifactError: it is damaged; nothing was changed.
    """
    model_dir = models_dir / name
    versions = list_versions(model_dir)
    if not versions:
        raise ExportError(f"{model_dir}: there are no versions to roll back to")
    there = f"there are {', '.join(map(str, versions))}"
    if version is None:
        pinned = pinned_version(model_dir)
        now = versions[-1] if pinned is None else pinned
        version = max((one for one in versions if one < now), default=None)
        if version is None:
            raise ExportError(f"{model_dir}: no version is before {now}, which is served: {there}")
    if version not in versions:
        raise ExportError(f"{model_dir}: there is no version {version}: {there}")
    Artifact.open(model_dir / str(version))
    with _locked(model_dir):
        versions = list_versions(model_dir)
        if version not in versions:
            raise ExportError(f"{model_dir}: version {version} was removed meanwhile")
        if version == versions[-1]:
            (model_dir / SERVED_NAME).unlink(missing_ok=True)
        else:
            _write_pin(model_dir, version)
        flush_dir(model_dir)
    return version


def _write_pin(model_dir: Path, version: int) -> None:
    """By rename, flushed to disk: whoever reads it meanwhile sees the old or the new one."""
    draft = model_dir / f".{SERVED_NAME}.part"
    with draft.open("w") as stream:
        stream.write(json.dumps({"version": version}) + "\n")
        stream.flush()
        os.fsync(stream.fileno())
    draft.replace(model_dir / SERVED_NAME)


@contextmanager
def _locked(model_dir: Path) -> Iterator[None]:
    """Hold the model's folder: versions are removed and chosen by one process at a time."""
    descriptor = os.open(model_dir, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
