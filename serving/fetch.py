"""An artifact behind a URL, copied to this machine by its manifest, each file compared, into a cache folder that its digest names.

`<cache>/<digest>/<version>/` is complete or not there, like any version's folder. What is there already is not copied again; what no process has
open may be removed at any time, and a server removes old versions of what it serves.
"""

import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from emberline.building import building_dir, flush_tree, hide, rename_new
from emberline.delta_manifest import DELTAS_NAME
from emberline.errors import ArtifactError, StorageError
from emberline.manifest import MANIFEST_NAME, FileEntry, find_damage
from emberline.serving.artifact import load_with_digest
from emberline.serving.deltas.files import load_delta_manifest
from emberline.serving.leases import Lease
from emberline.serving.versions import SERVED_NAME, choose_version, parse_pin
from emberline.storage import Place, Storage, is_url, require_plain_paths

Read = Callable[[Path], tuple[Mapping[str, FileEntry], str, int]]
"""Reads the manifest in a folder: the files that it lists, its digest, and its number."""


@dataclass(frozen=True)
class Fetched:
    """An artifact that was copied.

    Args:
        root: where it is now.
        storage: where it came from.
        deltas: how many it has there.
        lease: keeps it in the cache while it is in use.
    """

    root: Path
    storage: Storage
    deltas: int
    lease: Lease

    def most_deltas(self, wanted: int | None) -> int:
        """How many deltas to open: as many as are wanted, or all that are there; what was copied once and is there no more does not count.

        Raises:
            ArtifactError: there are fewer than wanted.
        """
        if wanted is not None and wanted > self.deltas:
            raise ArtifactError(f"{self.storage.url}: there are {self.deltas} deltas, fewer than {wanted}")
        return self.deltas if wanted is None else wanted

    def newer_deltas(self, number: int) -> None:
        """Copy the deltas after that number, up to the first gap.

        Raises:
            StorageError: one cannot be read, or is not what its manifest lists.
        """
        folder = self.storage.child(DELTAS_NAME)
        while folder.has(f"{number + 1}/{MANIFEST_NAME}"):
            number += 1
            _fetch_folder(folder.child(str(number)), self.root / DELTAS_NAME, _read_delta)


def default_cache() -> Path:
    """Where artifacts are kept unless a folder is named: in the user's home, or the system's folder for temporary files where there is none."""
    try:
        return Path.home() / ".cache" / "emberline" / "artifacts"
    except RuntimeError:
        return Path(tempfile.gettempdir()) / "emberline-artifacts"


def fetch(url: str, cache: Path | None = None) -> Fetched:
    """Copy an artifact with its deltas, unless it is there already.

    Args:
        url: of an artifact, or of a model's folder, of which the version that is served is taken.
        cache: the folder of all that was copied; None for `default_cache()`.

    Raises:
        StorageError: it cannot be read, or a file is not what the manifest lists.
        ArtifactError: there is no artifact.
        MissingDependencyError: the package for that protocol is not installed.
        ConfigError: there is no such protocol.
    """
    storage = find_stored(Storage.of(url))
    while (found := _held(_fetch_folder(storage, cache or default_cache(), _read_artifact))) is None:
        pass  # somebody removed it before it was held
    target, lease = found
    return Fetched(target, storage, _fetch_deltas(storage, target), lease)


def _held(target: Path) -> tuple[Path, Lease] | None:
    with suppress(FileNotFoundError):
        lease = Lease(target)
        return (target, lease) if (target / MANIFEST_NAME).is_file() else None
    return None


def find_stored(storage: Storage) -> Storage:
    """The folder itself where it is an artifact; else, of a model's folder, the version that is served.

    Raises:
        ArtifactError: there is no artifact, or `served.json` names none.
    """
    if storage.has(MANIFEST_NAME):
        return storage
    version = stored_version(storage)
    if version is None:
        raise ArtifactError(f"{storage.url}: no artifact here: neither {MANIFEST_NAME} nor a version folder (1, 2, ...) that has one")
    return storage.child(str(version))


def stored_version(storage: Storage) -> int | None:
    """The version of a model's folder that is served; None where there is no complete one.

    Raises:
        ArtifactError: `served.json` is no such file, or names a version that is not there.
    """
    return choose_version(storage.numbers(), stored_pin(storage), storage.url)


def stored_pin(storage: Storage) -> int | None:
    """The version that `served.json` of a model's folder names, which need not be there; None where there is no such file.

    Raises:
        ArtifactError: the file names no version.
    """
    text = storage.read(SERVED_NAME)
    return None if text is None else parse_pin(text.decode(errors="replace"), f"{storage.url}/{SERVED_NAME}")


def find_stored_models(storage: Storage) -> list[str]:
    """The URL of the artifact that is served of each model in a folder; of a model's folder or an artifact, that one.

    Raises:
        ArtifactError: there is none.
    """
    if storage.has(MANIFEST_NAME) or stored_version(storage) is not None:
        return [find_stored(storage).url]
    models = [storage.child(name) for name in storage.names() if not name.startswith(".")]
    found = [(model, stored_version(model)) for model in models]
    if not (urls := [model.child(str(version)).url for model, version in found if version is not None]):
        raise ArtifactError(f"{storage.url}: no models here: expected <name>/<version>/{MANIFEST_NAME}")
    return urls


def _fetch_deltas(storage: Storage, root: Path) -> int:
    """Copy the deltas that are not there yet, or are others of that number; returns how many there are."""
    folder = storage.child(DELTAS_NAME)
    numbers = folder.numbers()
    if missing := [number for number in range(1, len(numbers) + 1) if number not in numbers]:
        raise ArtifactError(f"{folder.url}: delta {missing[0]} is missing: there are {', '.join(map(str, numbers))}; copy it again")
    for number in numbers:
        _fetch_folder(folder.child(str(number)), root / DELTAS_NAME, _read_delta)
    return len(numbers)


def _fetch_folder(storage: Storage, parent: Path, read: Read) -> Path:
    """Copy one folder by its manifest, to `<parent>/<number>` for a delta and `<parent>/<digest>/<number>` for an artifact."""
    text = storage.read(MANIFEST_NAME)
    if text is None:
        raise StorageError(f"{storage.url}: {MANIFEST_NAME} is missing")
    try:
        with building_dir(parent) as draft:
            (draft / MANIFEST_NAME).write_bytes(text)
            try:
                files, digest, number = read(draft)
            except ArtifactError as error:
                raise StorageError(str(error).replace(str(draft), storage.url)) from error
            if (name := storage.url.rpartition("/")[2]).isdecimal() and int(name) != number:
                raise StorageError(f"{storage.url}: the folder says {name}, {MANIFEST_NAME} says {number}")
            final = (parent / digest[:32] if read is _read_artifact else parent) / str(number)
            if _is_there(final, text, files):
                return final
            require_plain_paths(files, storage.url)
            for path, entry in files.items():
                storage.download(path, draft / path, entry)
            flush_tree(draft)
            final.parent.mkdir(exist_ok=True)
            while not rename_new(draft, final) and not _is_there(final, text, files):
                if (damaged := hide(final, parent)) is not None:  # or of another content
                    shutil.rmtree(damaged, ignore_errors=True)
            return final
    except OSError as error:
        raise StorageError(f"{storage.url}: cannot be copied to {parent}: {error}; name another folder for the cache") from error


def _is_there(final: Path, text: bytes, files: Mapping[str, FileEntry]) -> bool:
    """Whether a folder has this manifest and files of the right sizes; their contents are compared when it is opened."""
    path = final / MANIFEST_NAME
    return path.is_file() and path.read_bytes() == text and not find_damage(final, files, contents=False, apart=DELTAS_NAME)


def _read_artifact(root: Path) -> tuple[Mapping[str, FileEntry], str, int]:
    manifest, digest = load_with_digest(root)
    return manifest.files, digest, manifest.version


def _read_delta(root: Path) -> tuple[Mapping[str, FileEntry], str, int]:
    manifest, digest = load_delta_manifest(root)
    return manifest.files, digest, manifest.number


def localise(place: Place, cache: Path | None = None) -> Path:
    """The folder of an artifact on this machine: itself, or copied from its URL, as `fetch` does."""
    return fetch(place, cache).root if is_url(place) else Path(place)
