"""Which files a reader reads."""

import glob
from collections.abc import Sequence
from pathlib import Path

from emberline.errors import DataError

Paths = str | Path | Sequence[str | Path]
_MAGIC = frozenset("*?[")


def find_files(paths: Paths, suffixes: Sequence[str]) -> list[Path]:
    """The files that `paths` names, in a stable order: as given, each pattern's and each folder's files by name.

    Args:
        paths: files, folders (their files with one of `suffixes`, not those of folders within) and glob patterns (`**` enters folders): one, a
            comma-separated text, or a sequence.
        suffixes: such as `.parquet`, for folders.

    Raises:
        DataError: nothing is there under a name, or one file comes twice.
    """
    return list(find_named(paths, suffixes))


def find_named(paths: Paths, suffixes: Sequence[str]) -> dict[Path, str]:
    """The same files, and what each is called below the folder, or below the part of the pattern before its first star.

    Raises:
        DataError: as `find_files`.
    """
    texts = [part.strip() for part in paths.split(",")] if isinstance(paths, str) else [paths] if isinstance(paths, Path) else list(paths)
    files: dict[Path, str] = {}
    seen: set[Path] = set()
    for text in texts:
        if not str(text):
            raise DataError(f"an empty name among the data files: {paths!r}")
        for file in _expand(text, suffixes):
            if file.resolve() in seen:
                raise DataError(f"{file} is given twice")
            seen.add(file.resolve())
            files[file] = file.relative_to(_fixed_part(Path(text))).as_posix()
    if not files:
        raise DataError("no data files are given")
    return files


def _fixed_part(path: Path) -> Path:
    """The folder that all files of a name lie in."""
    if path.is_dir():
        return path
    parents = [parent for parent in path.parents if path.is_file() or not _MAGIC & set(str(parent))]
    return parents[0]


def _expand(text: str | Path, suffixes: Sequence[str]) -> list[Path]:
    path = Path(text)
    if path.is_file():
        return [path]
    if path.is_dir():
        found = sorted(file for file in path.iterdir() if file.is_file() and file.suffix in suffixes and not file.name.startswith((".", "_")))
        if not found:
            raise DataError(f"{path} has no {' or '.join(suffixes)} files")
        return found
    if _MAGIC & set(str(text)):
        found = sorted(file for file in map(Path, glob.glob(str(text), recursive=True)) if file.is_file())  # noqa: PTH207 - absolute patterns
        if not found:
            raise DataError(f"no file matches {str(text)!r}")
        return found
    raise DataError(f"{path} does not exist")
