"""What is known of data files without reading their rows, so that a run that goes on sees whether they are still the same."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from emberline.errors import DataError
from emberline.train.data.paths import Paths, find_named
from emberline.train.data.source import Source


@dataclass(frozen=True, kw_only=True)
class DataFile:
    """One file.

    Args:
        name: below the folder or the fixed part of the pattern that was given; a moved folder has the same names.
        bytes: its size.
        rows: None where only reading it tells (CSV).
    """

    name: str
    bytes: int
    rows: int | None = None

    def __str__(self) -> str:
        return f"{self.bytes} bytes" if self.rows is None else f"{self.rows} rows in {self.bytes} bytes"


def list_files(paths: Paths, suffixes: Sequence[str], source: Source | None = None) -> tuple[DataFile, ...]:
    """The files that a reader reads, in its order.

    Args:
        paths: see `find_files`.
        suffixes: likewise.
        source: of these files, opened; None where their rows do not matter.

    Raises:
        DataError: a file is gone.
    """
    rows = None if source is None else _rows_by_file(source)
    found = []
    for path, name in find_named(paths, suffixes).items():
        try:
            size = path.stat().st_size
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror}") from error
        found.append(DataFile(name=name, bytes=size, rows=None if rows is None else rows.get(path, 0)))
    return tuple(found)


def file_changes(before: Sequence[DataFile], now: Sequence[DataFile]) -> list[str]:
    """A sentence for each file that is gone, new or of another size; none where they are the same in the same order."""
    old, new = _by_name(before), _by_name(now)
    found = [f"{name} is gone" for name in old if name not in new]
    found += [f"{name} is new, with {file}" for name, file in new.items() if name not in old]
    found += [f"{name} had {file}, and has {new[name]}" for name, file in old.items() if name in new and new[name] != file]
    return found if found or list(old) == list(new) else ["the order of the files changed"]


def _rows_by_file(source: Source) -> Mapping[Path, int] | None:
    """None where some are not known; a file without rows may have no fragment."""
    rows: dict[Path, int] = {}
    for fragment in source.fragments:
        if fragment.num_rows is None:
            return None
        rows[fragment.path] = rows.get(fragment.path, 0) + fragment.num_rows
    return rows


def _by_name(files: Sequence[DataFile]) -> dict[str, DataFile]:
    """Several folders may have files of one name: the second is `name (2)`."""
    found: dict[str, DataFile] = {}
    counts: dict[str, int] = {}
    for file in files:
        counts[file.name] = count = counts.get(file.name, 0) + 1
        found[file.name if count == 1 else f"{file.name} ({count})"] = file
    return found
