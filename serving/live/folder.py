"""A look at a folder of models: which version of each is to be served. Names and `served.json` are read, and a manifest where it is a new one."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from emberline.errors import ArtifactError, StorageError
from emberline.manifest import MANIFEST_NAME, manifest_digest, parse_manifest
from emberline.serving.artifact import load_with_digest
from emberline.serving.fetch import stored_pin
from emberline.serving.live.identity import Identity
from emberline.serving.live.pacing import Files, files_below
from emberline.serving.versions import SERVED_NAME, served_version
from emberline.storage import Place, Storage, is_url, numbers_among


@dataclass(frozen=True)
class Wanted:
    """The version of a model that is to be served.

    Args:
        version: its number; of an artifact that lies in no folder of versions, what its manifest says.
        place: its folder.
        stamp: tells whether its manifest is the same as before.
    """

    version: int
    place: Place
    stamp: str

    def has_changed(self) -> bool:
        """Whether it is gone or another by now, where that costs little to know."""
        return not is_url(self.place) and _wanted(self.version, Path(self.place)) != self

    def files(self) -> Files:
        """What it is made of now, as far as that costs little."""
        return {self.stamp: (0, 0)} if is_url(self.place) else files_below(Path(self.place))


Found = Wanted | ArtifactError
"""What is to be served of a model, or why that cannot be told: its `served.json` names nothing that is there, or the store does not answer."""


class Looker(ABC):
    """Looks into a place that holds models, or the versions of one, or one artifact.

    Args:
        names: of the models that are served: where the place is one model's, it is the only one.
    """

    def __init__(self, names: frozenset[str]) -> None:
        self._only = next(iter(names)) if len(names) == 1 else None
        self._read: dict[Place, tuple[str, Identity]] = {}

    @staticmethod
    def of(place: Place, names: frozenset[str]) -> "Looker":
        """The one for a folder or a URL."""
        return _StoredLooker(place, names) if is_url(place) else _FolderLooker(Path(place), names)

    @abstractmethod
    def look(self) -> Mapping[str, Found]:
        """What is to be served of each model that has a complete version, by name.

        Raises:
            StorageError: the place cannot be read.
            OSError: the same.
        """

    def identity(self, wanted: Wanted) -> Identity:
        """Which artifact it is.

        Raises:
            ArtifactError: its manifest is damaged, or cannot be read.
        """
        return self._told(wanted)._replace(version=wanted.version)

    def _told(self, wanted: Wanted) -> Identity:
        """What the manifest says; it is read once."""
        known = self._read.get(wanted.place)
        if known is None or known[0] != wanted.stamp:
            known = self._read[wanted.place] = wanted.stamp, self._identity(wanted.place)
        return known[1]

    @abstractmethod
    def _identity(self, place: Place) -> Identity: ...

    def _single(self, wanted: Wanted | None) -> dict[str, Found]:
        """What is found where the place is an artifact."""
        if self._only is None or wanted is None:
            return {}
        try:
            return {self._only: replace(wanted, version=self._told(wanted).version)}
        except ArtifactError as error:
            return {self._only: error}


class _FolderLooker(Looker):
    def __init__(self, root: Path, names: frozenset[str]) -> None:
        super().__init__(names)
        self._root = root

    def look(self) -> Mapping[str, Found]:
        if (self._root / MANIFEST_NAME).is_file():
            return self._single(_wanted(0, self._root))
        folders = {path.name: path for path in sorted(self._root.iterdir()) if not path.name.startswith(".") and path.is_dir()}
        if self._only is not None and any(name.isdecimal() and (path / MANIFEST_NAME).is_file() for name, path in folders.items()):
            folders = {self._only: self._root}
        seen = {name: _model_in(folder) for name, folder in folders.items()}
        return {name: found for name, found in seen.items() if found is not None}

    def _identity(self, place: Place) -> Identity:
        manifest, digest = load_with_digest(Path(place))
        return Identity(manifest.version, digest)


def _model_in(folder: Path) -> Found | None:
    try:
        version = served_version(folder)
        return None if version is None else _wanted(version, folder / str(version))
    except ArtifactError as error:
        return error
    except OSError:  # it is being removed
        return None


def _wanted(version: int, place: Path) -> Wanted | None:
    try:
        stat = (place / MANIFEST_NAME).stat()
    except OSError:
        return None
    return Wanted(version, place, f"{stat.st_mtime_ns} {stat.st_size} {stat.st_ino}")


class _StoredLooker(Looker):
    """Asks for names, one manifest and `served.json`: of a store each question costs time, and maybe money."""

    def __init__(self, url: str, names: frozenset[str]) -> None:
        super().__init__(names)
        self._storage = Storage.of(url)

    def look(self) -> Mapping[str, Found]:
        root, names = self._storage, self._storage.names()
        if MANIFEST_NAME in names:
            return self._single(_stored(0, root))
        models = {name: root.child(name) for name in names if not name.startswith(".")}
        if self._only is not None and any(name.isdecimal() and root.has(f"{name}/{MANIFEST_NAME}") for name in names):
            models = {self._only: root}
        seen = {name: _stored_model(model) for name, model in models.items()}
        return {name: found for name, found in seen.items() if found is not None}

    def _identity(self, place: Place) -> Identity:
        text = Storage.of(str(place)).read(MANIFEST_NAME)
        try:
            data = parse_manifest(text or b"")
            return Identity(int(data["version"]), manifest_digest(data))
        except (ValueError, TypeError, KeyError) as error:
            raise StorageError(f"{place}: {MANIFEST_NAME} cannot be read: {error!r}") from error


def _stored_model(model: Storage) -> Found | None:
    try:
        names = model.names()
        pinned = stored_pin(model) if SERVED_NAME in names else None
        for number in reversed(numbers_among(names)) if pinned is None else [pinned]:
            if (found := _stored(number, model.child(str(number)))) is not None:
                return found
        return None if pinned is None else ArtifactError(f"{model.url}: {SERVED_NAME} says that version {pinned} is served, which is not there")
    except ArtifactError as error:
        return error


def _stored(version: int, place: Storage) -> Wanted | None:
    stamp = place.stamp(MANIFEST_NAME)
    return None if stamp is None else Wanted(version, place.url, stamp)
