"""Which versions of a model stay, and which of them is served: `--keep` and `--rollback`.

A version is removed as it came: by one rename, to `.removing-<version>-<random>`, which nobody takes for a version; only then are its files deleted.
Servers that have it open go on, as an open file lives until it is closed. What a kill leaves of it is hidden, and the next export removes it.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from emberline.building import flush_dir, hide
from emberline.errors import ExportError
from emberline.serving.artifact import Artifact
from emberline.serving.versions import SERVED_NAME, list_versions, pinned_version, served_version


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
    with locked(model_dir):
        for version in versions_to_remove(list_versions(model_dir), keep, {published, pinned_version(model_dir)}):
            if (path := hide(model_dir / str(version), model_dir)) is not None:
                hidden[version] = path
        flush_dir(model_dir)
    for path in hidden.values():
        shutil.rmtree(path, ignore_errors=True)
    return list(hidden)


def tell_of_pin(pinned: int | None, published: int, tell: Callable[[str], None]) -> None:
    """Say so where another version than the one just published was named: servers do not take the new one."""
    if pinned not in (None, published):
        tell(f"version {pinned} is still the one that is served: `emberline export --rollback {published}` with this --output and --name changes it")


def tell_of_removed(removed: Sequence[int], tell: Callable[[str], None]) -> None:
    """Say which versions were removed, if any."""
    if removed:
        tell(f"removed version{'s' if len(removed) > 1 else ''} {', '.join(map(str, removed))}")


def require_kept(keep: int | None) -> None:
    """Refuse to keep no version.

    Raises:
        ExportError: fewer than one is to be kept.
    """
    if keep is not None and keep < 1:
        raise ExportError(f"at least one version must be kept, not {keep}")


def versions_to_remove(versions: Sequence[int], keep: int, spared: Collection[int | None]) -> list[int]:
    """All versions but the `keep` newest, of `versions` in ascending order, and those that are spared."""
    return [version for version in versions[:-keep] if version not in spared]


def choose_rollback(versions: Sequence[int], pinned: int | None, version: int | None, place: str) -> int:
    """The version that a rollback is to.

    Args:
        versions: that are there, ascending.
        pinned: what `served.json` names.
        version: what was asked for; None for the one before that which is served.
        place: the model's folder, for the message.

    Raises:
        ExportError: there is no such version, or none before.
    """
    if not versions:
        raise ExportError(f"{place}: there are no versions to roll back to")
    there = f"there are {', '.join(map(str, versions))}"
    now = versions[-1] if pinned is None else pinned
    if version is None and not (before := [one for one in versions if one < now]):
        raise ExportError(f"{place}: no version is before {now}, which is served: {there}")
    chosen = before[-1] if version is None else version
    if chosen not in versions:
        raise ExportError(f"{place}: there is no version {version}: {there}")
    return chosen


def pin_text(version: int) -> str:
    """What a `served.json` that names a version holds."""
    return json.dumps({"version": version}) + "\n"


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
    pinned = pinned_version(model_dir) if version is None else None  # a file that is broken is no hindrance to write another
    chosen = choose_rollback(list_versions(model_dir), pinned, version, str(model_dir))
    Artifact.open(model_dir / str(chosen), tables="disk")
    with locked(model_dir):
        versions = list_versions(model_dir)
        if chosen not in versions:
            raise ExportError(f"{model_dir}: version {chosen} was removed meanwhile")
        if chosen == versions[-1]:
            (model_dir / SERVED_NAME).unlink(missing_ok=True)
        else:
            _write_pin(model_dir, chosen)
        flush_dir(model_dir)
    return chosen


def _write_pin(model_dir: Path, version: int) -> None:
    """By rename, flushed to disk: whoever reads it meanwhile sees the old or the new one."""
    draft = model_dir / f".{SERVED_NAME}.part"
    with draft.open("w") as stream:
        stream.write(pin_text(version))
        stream.flush()
        os.fsync(stream.fileno())
    draft.replace(model_dir / SERVED_NAME)


@contextmanager
def as_candidate(model_dir: Path) -> Iterator[None]:
    """Have the version that is served now served on, whatever is published meanwhile: `served.json` names it.

    Where nothing is published after all, the file is as it was.

    Args:
        model_dir: the model's folder.

    Raises:
        ExportError: it has no version yet, so any would be served.
        ArtifactError: `served.json` names none that is there.
    """
    served = served_version(model_dir) if model_dir.is_dir() else None
    if served is None:
        raise ExportError(f"{model_dir}: no version is served yet, so this one would be: leave out --candidate")
    with locked(model_dir):
        was_free = pinned_version(model_dir) is None
        if was_free:
            _write_pin(model_dir, served)
            flush_dir(model_dir)
    try:
        yield
    except BaseException:
        if was_free:
            with locked(model_dir):
                if pinned_version(model_dir) == served:
                    (model_dir / SERVED_NAME).unlink()
        raise


@contextmanager
def locked(model_dir: Path, waiting: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Hold the model's folder: versions are removed, chosen, changed and published by one process at a time.

    Args:
        model_dir: the folder.
        waiting: called where another holds it.
    """
    descriptor = os.open(model_dir, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
