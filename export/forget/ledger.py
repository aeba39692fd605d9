"""Who was forgotten: `<model>/forgotten.jsonl`, a line for each time, and the key that its tags are made with.

The first line names the key; each other tells time, who did it, feature, tables, tags of the ids, and which versions and deltas were changed. The ids
themselves are nowhere. The key lies in `<model>/.forgotten.key`, which only its owner may read, or wherever it was said; without it the list tells
nothing of an id, and nobody can look whether one is on it. Both files are written beside and renamed, so that they are there whole or not at all.
"""

import json
import os
import pwd
import secrets
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from emberline.building import flush_dir
from emberline.errors import ExportError
from emberline.export.forget.tags import KEY_BYTES, find_tagged, key_name, tags_of
from emberline.plain import from_plain
from emberline.schema import ModelSchema, TableKind, TableSpec
from emberline.storage import Storage

LEDGER_NAME = "forgotten.jsonl"
KEY_NAME = ".forgotten.key"
LEDGER_FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One time that ids were forgotten.

    Args:
        time: when, ISO 8601.
        by: who, `user@host`.
        feature: whose ids.
        tables: that the feature read, of all versions.
        tags: of each id, `<space>:<tag>`; the space is empty for raw ids, and the number of rows for the rows of a static table.
        versions: by number, what was changed: its deltas, by number; empty for the version alone.
        done: whether all versions are without these ids; else the work was ended before, and the next one does the rest.
    """

    time: str
    by: str
    feature: str
    tables: tuple[str, ...]
    tags: tuple[str, ...]
    versions: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    done: bool = False


@dataclass(frozen=True)
class Ledger:
    """The list of a model, as it was when it was read.

    Args:
        model_dir: `<models>/<name>`.
        secret: the key; empty where nobody was forgotten yet.
        entries: in order.
    """

    model_dir: Path
    secret: bytes = b""
    entries: tuple[Entry, ...] = ()

    @classmethod
    def read(cls, model_dir: Path, key_file: Path | None = None) -> Self:
        """The list of a model, with its key; an empty one where nobody was forgotten.

        Args:
            model_dir: the model's folder, which need not be there.
            key_file: where the key is; None for `.forgotten.key` in that folder.

        Raises:
            ExportError: the list cannot be read, or its key is not there or another one.
        """
        name, entries = read_entries(model_dir)
        if not entries:
            return cls(model_dir)
        return cls(model_dir, _read_key(model_dir, key_file, name), entries)

    def with_key(self, key_file: Path | None = None) -> Self:
        """The same; where there is no key yet, one is made and written, which only its owner may read.

        Raises:
            ExportError: it cannot be written, or what is there is no key.
        """
        if self.secret:
            return self
        path = key_file or self.model_dir / KEY_NAME
        try:
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                _write(path, secrets.token_bytes(KEY_BYTES), 0o600)
        except OSError as error:
            raise ExportError(f"the key cannot be written to {path}: {error.strerror}") from error
        return replace(self, secret=_read_key(self.model_dir, key_file, ""))

    def entry(self, feature: str, tables: Sequence[str], ids: Mapping[str, npt.NDArray[np.int64]]) -> Entry:
        """A new entry, of now.

        Args:
            feature: whose ids.
            tables: that it reads.
            ids: int64, by space.
        """
        tags = [f"{space}:{tag}" for space, own in ids.items() for tag in tags_of(self.secret, _space(feature, space), own)]
        now = datetime.now(UTC).isoformat(timespec="seconds")
        return Entry(time=now, by=_who(), feature=feature, tables=tuple(tables), tags=tuple(tags))

    def write(self, entries: Sequence[Entry]) -> Self:
        """Write the list with these entries instead.

        Raises:
            ExportError: it cannot be written.
        """
        lines: list[dict[str, Any]] = [{"format": LEDGER_FORMAT, "key": key_name(self.secret)}, *(asdict(entry) for entry in entries)]
        try:
            _write(self.model_dir / LEDGER_NAME, "".join(json.dumps(line) + "\n" for line in lines).encode(), 0o644)
        except OSError as error:
            raise ExportError(f"{self.model_dir / LEDGER_NAME} cannot be written: {error.strerror}") from error
        return replace(self, entries=tuple(entries))

    def require_unchanged(self) -> None:
        """Refuse to publish what was made before somebody was forgotten. The model's folder is to be held.

        Raises:
            ExportError: there are other tags by now.
        """
        if _all_tags(read_entries(self.model_dir)[1]) != _all_tags(self.entries):
            raise ExportError(f"{self.model_dir}: ids were forgotten meanwhile, and this export may still have them: export again")

    def find_gone(self, schema: ModelSchema, table: TableSpec, ids: Tensor) -> Tensor:
        """Which ids of a table were forgotten, for any feature that reads it: bool [N].

        Args:
            schema: says who reads it.
            table: it.
            ids: int64 [N], raw ids; of a static table the numbers of its rows.
        """
        space = space_of(table)
        found = np.zeros(ids.numel(), np.bool_)
        for feature in dict.fromkeys(read.feature for read in schema.reads if read.table == table.name):
            found |= find_tagged(self.secret, _space(feature, space), ids.numpy(), self._tags(feature, space))
        return torch.from_numpy(found)

    def _tags(self, feature: str, space: str) -> frozenset[str]:
        marks = [tag.rpartition(":") for entry in self.entries if entry.feature == feature for tag in entry.tags]
        return frozenset(tag for found, _, tag in marks if found == space)

    def may_concern(self, schema: ModelSchema, table: TableSpec) -> bool:
        """Whether an id of this table can be on the list."""
        return any(self._tags(read.feature, space_of(table)) for read in schema.reads if read.table == table.name)


def space_of(table: TableSpec) -> str:
    """The space of a table's ids: rows of a table of another size are other rows."""
    return str(table.rows) if table.kind is TableKind.STATIC else ""


def read_entries(model_dir: Path) -> tuple[str, tuple[Entry, ...]]:
    """The name of the key of a model's list, and its entries; nothing where there is no list.

    Raises:
        ExportError: it is damaged, or of a format that this release does not read.
    """
    path = model_dir / LEDGER_NAME
    try:
        head, *lines = [json.loads(line) for line in path.read_bytes().splitlines()]
        if head["format"] != LEDGER_FORMAT:
            raise ExportError(f"{path}: its format is {head['format']}; this release reads {LEDGER_FORMAT}: upgrade Emberline")
        return str(head["key"]), tuple(from_plain(Entry, line) for line in lines)
    except (FileNotFoundError, NotADirectoryError):
        return "", ()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ExportError(f"{path} cannot be read, so that nobody knows which ids may not come back: {error}") from error


def copy_stored(model: Storage, model_dir: Path) -> None:
    """Copy the list of a model behind a URL, and its key if it is there, for an export that is made here.

    Args:
        model: the model's folder.
        model_dir: where both are written; made.

    Raises:
        StorageError: they cannot be read.
    """
    model_dir.mkdir(parents=True, exist_ok=True)
    for name in (LEDGER_NAME, KEY_NAME):
        if (data := model.read(name)) is not None:
            _write(model_dir / name, data, 0o600)


def _read_key(model_dir: Path, key_file: Path | None, name: str) -> bytes:
    path = key_file or model_dir / KEY_NAME
    try:
        secret = path.read_bytes()
    except OSError as error:
        listed = f"{model_dir / LEDGER_NAME} lists ids that may not come back, and its key"
        raise ExportError(
            f"{listed} {path} cannot be read: {error.strerror}; name the key's file by --key-file, of an export by --forget-key"
        ) from error
    if len(secret) != KEY_BYTES or name not in ("", key_name(secret)):
        raise ExportError(f"{path} is not the key of {model_dir / LEDGER_NAME}; name its file by --key-file, of an export by --forget-key")
    return secret


def _write(path: Path, data: bytes, mode: int) -> None:
    """By rename, flushed to disk."""
    draft = path.with_name(f".{path.name.lstrip('.')}.part")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    draft.replace(path)
    flush_dir(path.parent)


def _all_tags(entries: Sequence[Entry]) -> set[tuple[str, str]]:
    return {(entry.feature, tag) for entry in entries for tag in entry.tags}


def _space(feature: str, space: str) -> str:
    return json.dumps([feature, space])


def _who() -> str:
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
