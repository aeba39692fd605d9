"""Files behind a URL: object storage, a web server, or whatever else fsspec has a package for.

An object store has no folders and cannot rename. So a folder there is complete when its manifest is in it, which is written last; and what is read is
compared with that manifest.
"""

import hashlib
import importlib
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any, Self, TypeGuard

from emberline.errors import ConfigError, MissingDependencyError, StorageError
from emberline.manifest import MANIFEST_NAME, FileEntry, hash_file

Place = Path | str
"""A folder on this machine, or the URL of one elsewhere."""
_TELLING = ("ETag", "etag", "LastModified", "last_modified", "mtime", "updated", "created", "md5Hash", "generation")
"""What stores of several kinds tell of a file that changes with its bytes."""
_GONE = (404, 410)
"""What a web server answers that has no such file."""


def to_place(text: str) -> Place:
    """A command line's text: `file://` URLs and all that are no URLs become paths."""
    if text.startswith("file://") and "::" not in text:
        return Path(text.removeprefix("file://").removeprefix("localhost"))
    return text if is_url(text) else Path(text)


def is_url(place: Place) -> TypeGuard[str]:
    """Whether a text names a folder behind a URL, such as `s3://bucket/models` or `simplecache::https://host/models`."""
    return isinstance(place, str) and ("://" in place or "::" in place)


def join(place: Place, *names: str) -> Place:
    """A folder or file below a place."""
    return "/".join((place.rstrip("/"), *names)) if is_url(place) else Path(place).joinpath(*names)


class Storage:
    """A folder behind a URL.

    Args:
        files: fsspec's file system.
        root: the folder's path in it.
        url: what the user calls it.
    """

    def __init__(self, files: Any, root: str, url: str) -> None:
        self._files = files
        self._root = root.rstrip("/")
        self.url = url.rstrip("/")

    @classmethod
    def of(cls, url: str) -> Self:
        """The folder of a URL; nothing is read yet.

        Raises:
            MissingDependencyError: the package for that protocol is not installed.
            ConfigError: fsspec knows no such protocol.
        """
        try:
            core: Any = importlib.import_module("fsspec.core")
            files, root = core.url_to_fs(url)
        except ImportError as error:
            raise MissingDependencyError(
                f"{url}: {error}; install that package, such as s3fs for s3://, gcsfs for gs:// or adlfs for abfs://"
            ) from error
        except ValueError as error:
            raise ConfigError(f"{url}: {error}; fsspec knows protocols such as s3, gs, abfs, https, hdfs and sftp") from error
        return cls(files, str(root), url)

    def child(self, *names: str) -> Self:
        """A folder in this one."""
        return type(self)(self._files, "/".join((self._root, *names)), "/".join((self.url, *names)))

    def names(self) -> list[str]:
        """The names directly in this folder, sorted; none where there is no such folder."""
        with self._told(""), suppress(FileNotFoundError, NotADirectoryError):
            self._files.invalidate_cache(self._root)
            found = (str(item["name"]).rstrip("/").rpartition("/") for item in self._files.ls(self._root, detail=True))
            return sorted({name for parent, _, name in found if parent.endswith(self._root) and not _is_link(name)})
        return []

    def numbers(self) -> list[int]:
        """The complete folders in this one that are named by a whole number from 1 on, ascending."""
        return [number for number in numbers_among(self.names()) if self.has(f"{number}/{MANIFEST_NAME}")]

    def all_files(self) -> list[str]:
        """Every file in and below this folder, by its path in it, sorted."""
        with self._told(""), suppress(FileNotFoundError):
            self._files.invalidate_cache(self._root)
            found = (str(path).partition(f"{self._root}/")[2] for path in self._files.find(self._root))
            return sorted(path for path in found if not _is_link(path.rpartition("/")[2]))
        return []

    def has(self, path: str) -> bool:
        """Whether a file is there; a store that does not answer is an error, and not the same as one without the file."""
        return self._info(path) is not None

    def stamp(self, path: str) -> str | None:
        """What tells a file from one with other bytes: size, time and tag, as far as the store tells them, and else its digest; None where it is not
        there.
        """
        found = self._info(path)
        if found is None:
            return None
        told = {key: str(found[key]) for key in _TELLING if found.get(key) is not None}
        if told:
            return str(sorted({**told, "size": str(found.get("size"))}.items()))
        data = self.read(path)
        return None if data is None else hashlib.sha256(data).hexdigest()

    def _info(self, path: str) -> dict[str, Any] | None:
        with self._told(path):
            self._files.invalidate_cache(self._at(path).rpartition("/")[0])
            try:
                found: dict[str, Any] = self._files.info(self._at(path))
                return found if found["type"] == "file" else None
            except (FileNotFoundError, NotADirectoryError) as error:
                # fsspec's HTTP says so of every failure
                if (cause := error.__cause__) is not None and getattr(cause, "status", None) not in _GONE and not isinstance(cause, type(error)):
                    raise StorageError(f"{self.url}: {path} cannot be read: {type(cause).__name__}: {cause}") from cause
        return None

    def read(self, path: str) -> bytes | None:
        """A small file's bytes; None where it is not there."""
        with self._told(path), suppress(FileNotFoundError, NotADirectoryError):
            return bytes(self._files.cat_file(self._at(path)))
        return None

    def write(self, path: str, data: bytes) -> None:
        """Write a small file, whole."""
        with self._told(path):
            self._files.makedirs(self._at(path).rpartition("/")[0], exist_ok=True)
            self._files.pipe_file(self._at(path), data)

    def upload(self, local: Path, path: str) -> None:
        """Copy a file there."""
        with self._told(path):
            self._files.makedirs(self._at(path).rpartition("/")[0], exist_ok=True)
            self._files.put_file(str(local), self._at(path))

    def download(self, path: str, local: Path, entry: FileEntry) -> None:
        """Copy a file here, and compare it.

        Raises:
            StorageError: it is not what its manifest lists, or cannot be read.
        """
        local.parent.mkdir(parents=True, exist_ok=True)
        try:
            with self._told(path):
                self._files.get_file(self._at(path), str(local))
        except (FileNotFoundError, NotADirectoryError) as error:
            raise StorageError(f"{self.url}: {path} is missing") from error
        found = hash_file(local)
        if found != entry:
            what = f"has {found.bytes} bytes, not {entry.bytes}" if found.bytes != entry.bytes else "was changed: its sha256 differs"
            raise StorageError(f"{self.url}: {path} {what}")

    def remove(self, path: str) -> None:
        """Remove a file; it need not be there."""
        with self._told(path), suppress(FileNotFoundError):
            self._files.rm_file(self._at(path))

    def remove_all(self) -> None:
        """Remove this folder; its manifest first, so that it is complete until then and gone from then on."""
        self.remove(MANIFEST_NAME)
        with self._told(""), suppress(FileNotFoundError):
            self._files.rm(self._root, recursive=True)

    def _at(self, path: str) -> str:
        return f"{self._root}/{path}"

    @contextmanager
    def _told(self, path: str) -> Iterator[None]:
        """Whatever a protocol's package raises becomes one error; what is not there is left to the caller."""
        try:
            yield
        except (FileNotFoundError, NotADirectoryError, StorageError):
            raise
        except Exception as error:
            text = (str(error).strip().splitlines() or [""])[0]
            raise StorageError(f"{self.url}: {path or 'the folder'} cannot be read or written: {type(error).__name__}: {text}") from error


def numbers_among(names: Iterable[str]) -> list[int]:
    """Those of some names that are whole numbers from 1 on, ascending."""
    return sorted(int(name) for name in names if name.isascii() and name.isdecimal() and name == str(int(name)) and name != "0")


def _is_link(name: str) -> bool:
    """Whether a web server's listing names no file there, but the same listing in another order."""
    return name.startswith("?")


def require_plain_paths(files: Iterable[str], where: str) -> None:
    """Make sure that what is downloaded stays in its folder.

    Raises:
        StorageError: a path leads out of it.
    """
    for path in files:
        parts = PurePosixPath(path).parts
        if not parts or path != "/".join(parts) or parts[0] == "/" or ".." in parts or "\\" in path:
            raise StorageError(f"{where}: the file {json.dumps(path)} would not lie in the folder")
