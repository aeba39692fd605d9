"""A look at a folder of models: which version of each is to be served. Names and `served.json` are read, and a manifest where it is a new one."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from emberline.errors import ArtifactError
from emberline.manifest import MANIFEST_NAME
from emberline.serving.artifact import load_with_digest
from emberline.serving.live.identity import Identity
from emberline.serving.live.pacing import Files, files_below
from emberline.serving.versions import served_version

_Stamp = tuple[int, int, int]


@dataclass(frozen=True)
class Wanted:
    """The version of a model that is to be served.

    Args:
        version: its number.
        place: its folder.
        stamp: tells whether its manifest is the same as before.
    """

    version: int
    place: Path
    stamp: _Stamp

    def files(self) -> Files:
        """What it is made of now."""
        return files_below(self.place)


class ModelsFolder:
    """A folder of models, or of the versions of one, or one artifact.

    Args:
        root: the folder.
        names: of the models that are served: where the folder is one model's, it is the only one.
    """

    def __init__(self, root: Path, names: frozenset[str]) -> None:
        self._root = root
        self._only = next(iter(names)) if len(names) == 1 else None
        self._read: dict[Path, tuple[_Stamp, Identity]] = {}

    def look(self) -> Mapping[str, Wanted | ArtifactError]:
        """What is to be served of each model that has a complete version, by name; what is wrong where its `served.json` names none.

        Raises:
            OSError: the folder cannot be read.
        """
        if (self._root / MANIFEST_NAME).is_file():
            found = self._artifact(self._root)
            return {} if self._only is None or found is None else {self._only: found}
        folders = {path.name: path for path in sorted(self._root.iterdir()) if not path.name.startswith(".") and path.is_dir()}
        if self._only is not None and any(name.isdecimal() and (path / MANIFEST_NAME).is_file() for name, path in folders.items()):
            folders = {self._only: self._root}
        seen = {name: self._model(folder) for name, folder in folders.items()}
        return {name: found for name, found in seen.items() if found is not None}

    def identity(self, wanted: Wanted) -> Identity:
        """Which artifact it is.

        Raises:
            ArtifactError: its manifest is damaged, or of a format that this release does not read.
        """
        known = self._read.get(wanted.place)
        if known is None or known[0] != wanted.stamp:
            manifest, digest = load_with_digest(wanted.place)
            known = self._read[wanted.place] = wanted.stamp, Identity(manifest.version, digest)
        return known[1]

    def _model(self, folder: Path) -> Wanted | ArtifactError | None:
        try:
            version = served_version(folder)
            return None if version is None else self._artifact(folder / str(version), version)
        except ArtifactError as error:
            return error
        except OSError:  # it is being removed
            return None

    def _artifact(self, place: Path, version: int | None = None) -> Wanted | ArtifactError | None:
        try:
            stat = (place / MANIFEST_NAME).stat()
            found = Wanted(version or 0, place, (stat.st_mtime_ns, stat.st_size, stat.st_ino))
            return found if version is not None else replace(found, version=self.identity(found).version)
        except ArtifactError as error:
            return error
        except OSError:
            return None
