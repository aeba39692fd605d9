"""Old versions in the cache of what was copied from URLs: they go once newer ones are served."""

import logging
import shutil
from collections.abc import Collection
from pathlib import Path

from emberline.building import hide
from emberline.errors import ArtifactError
from emberline.serving.artifact import load_manifest
from emberline.serving.leases import unless_leased
from emberline.serving.versions import list_versions

_log = logging.getLogger(__name__)
KEPT = 2
"""Versions of a model that stay in the cache: the one that is served, and one to roll back to."""


def remove_old(cache: Path, name: str, used: Collection[Path]) -> list[Path]:
    """Remove the versions of a model from a cache, but for those that are used, and as many of the newest others as make `KEPT`.

    What any process has open stays, too, as does what cannot be removed.

    Args:
        cache: holds `<digest>/<version>/`.
        name: the model's.
        used: folders of versions that are to stay.

    Returns:
        The folders that were removed.
    """
    found = sorted(_versions_of(cache, name), reverse=True)
    others = [path for _, _, path in found if path not in used]
    removed = []
    for path in others[max(0, KEPT - len(found) + len(others)) :]:
        try:
            with unless_leased(path) as is_free:
                if is_free and (hidden := hide(path, cache)) is not None:
                    shutil.rmtree(hidden, ignore_errors=True)
                    path.parent.rmdir()
                    removed.append(path)
        except OSError as error:
            _log.warning("%s is not used any more, and cannot be removed: %s", path, error)
    if removed:
        _log.info("model %s: removed from the cache: %s", name, ", ".join(str(path) for path in removed))
    return removed


def _versions_of(cache: Path, name: str) -> list[tuple[int, float, Path]]:
    """The complete versions of a model: number, time of the manifest, and folder."""
    found = []
    for parent in cache.iterdir() if cache.is_dir() else ():
        if parent.name.startswith("."):
            continue
        for version in list_versions(parent):
            path = parent / str(version)
            try:
                if load_manifest(path).name == name:
                    found.append((version, (path / "manifest.json").stat().st_mtime, path))
            except (ArtifactError, OSError):
                continue
    return found
