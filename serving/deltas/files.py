"""A delta on disk: `<version>/deltas/<number>/` with `manifest.json`, files of rows and ids, `programs/` and `golden.safetensors`.

A folder without a manifest does not exist for anyone.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from emberline.delta_manifest import DELTA_FORMAT_VERSION, DELTAS_NAME, DeltaManifest, TableChange
from emberline.errors import ArtifactError
from emberline.manifest import MANIFEST_NAME, ArtifactManifest, find_damage
from emberline.schema import TableKind, TableSpec
from emberline.serving.deltas.changes import ChangedIds, ChangedRows
from emberline.serving.manifests import list_numbered, load_described
from emberline.serving.stored_files import StoredFile, Tensors, take_in
from emberline.serving.tables import stored_layout


@dataclass(frozen=True, eq=False)
class Delta:
    """One delta, opened: its tensors are mapped.

    Args:
        root: its folder.
        manifest: what it says of itself.
        digest: of that manifest.
        rows: what became of rows, by table; tables of which no row changed are not there.
        ids: the same of raw ids.
    """

    root: Path
    manifest: DeltaManifest
    digest: str
    rows: Mapping[str, ChangedRows]
    ids: Mapping[str, ChangedIds]

    def require_count(self, table: str, num_ids: int) -> None:
        """Compare the number of a table's ids after the delta.

        Raises:
            ValueError: the manifest tells of another.
        """
        told = next(change.ids.num_ids for change in self.manifest.tables if change.table == table and change.ids is not None)
        if told != num_ids:
            raise ValueError(f"{num_ids} ids would own a row, not {told}")


def delta_path(root: Path, number: int) -> Path:
    """Where delta `number` of the artifact in `root` is."""
    return root / DELTAS_NAME / str(number)


def list_deltas(root: Path) -> list[int]:
    """The numbers of the complete deltas of the artifact in `root`, ascending."""
    return [number for number in list_numbered(root / DELTAS_NAME) if number > 0]


def find_deltas(root: Path, most: int | None = None) -> list[Path]:
    """The folders of an artifact's deltas, in order.

    Args:
        root: the artifact's folder.
        most: how many from the first on; None for all.

    Raises:
        ArtifactError: one is missing among them, or there are fewer than `most`, or it is below 0.
    """
    if most is not None and most < 0:
        raise ArtifactError(f"{root}: {most} deltas cannot be opened; name how many, from 0 on")
    numbers = list_deltas(root)
    wanted = range(1, (numbers[-1] if numbers else 0) + 1) if most is None else range(1, most + 1)
    missing = next((number for number in wanted if number not in numbers), None)
    if missing is not None:
        there = f"there are {', '.join(map(str, numbers))}" if numbers else "there are none"
        raise ArtifactError(f"{root / DELTAS_NAME}: delta {missing} is missing: {there}; copy it again, or open fewer")
    return [delta_path(root, number) for number in wanted]


def find_strays(root: Path) -> list[str]:
    """What lies in an artifact's folder of deltas and is of none: one sentence for each. Hidden folders are being written, and left out."""
    parent = root / DELTAS_NAME
    if not parent.is_dir():
        return []
    numbers, problems = {str(number) for number in list_deltas(root)}, []
    for top in sorted(path for path in parent.iterdir() if path.name not in numbers and not path.name.startswith(".")):
        inside = [path.relative_to(root).as_posix() for path in sorted([top, *top.rglob("*")]) if not path.is_dir()]
        if inside and top.is_dir() and re.fullmatch("[1-9][0-9]*", top.name):
            problems.append(f"{DELTAS_NAME}/{top.name}/{MANIFEST_NAME} is missing: finish copying that delta, or remove its folder")
        else:
            problems += [f"{path} is not listed in any manifest" for path in inside]
    return problems


def load_delta_manifest(root: Path) -> tuple[DeltaManifest, str]:
    """The manifest of the delta in `root`, and its digest.

    Raises:
        ArtifactError: it is missing, changed, or of a format that this release does not read.
    """
    return load_described(root, "delta", DeltaManifest.from_dict, DELTA_FORMAT_VERSION, _no_delta)


def _no_delta(data: Mapping[str, Any]) -> str | None:
    """Why another manifest is refused."""
    return None if data.get("kind") == "delta" else f"this is no delta; a delta is a folder <version>/{DELTAS_NAME}/<number>"


def open_delta(
    root: Path, base: ArtifactManifest, require_next: Callable[[DeltaManifest], None], *, verify: bool = True, slowly: bool = False
) -> Delta:
    """Check a delta and map what is in it.

    Args:
        root: its folder.
        base: of the artifact that it is to be added to.
        require_next: called with its manifest before any other file is read; raises ArtifactError where it is not the next one.
        verify: read every byte and compare its digest with the manifest's; else names and sizes only.
        slowly: compare every digest that there is; else of files with rows and ids the fastest one.

    Raises:
        ArtifactError: it is missing, incomplete, damaged, or does not fit the artifact; the message names the file.
    """
    manifest, digest = load_delta_manifest(root)
    require_next(manifest)
    used = sorted({file for change in manifest.tables for file in (change.file, change.ids.file if change.ids else None) if file is not None})
    _require_whole(root, find_damage(root, manifest.files, contents=verify, compared_later=() if slowly else used))
    for file in [*used, *(program.file for program in manifest.programs), manifest.golden]:
        if file not in manifest.files:
            raise ArtifactError(f"{root}: {file} is used but not listed in {MANIFEST_NAME}")
    found = _take_in(root, manifest, used, verify)
    specs, entries = {spec.name: spec for spec in base.schema.tables}, {entry.table: entry for entry in base.tables}
    rows: dict[str, ChangedRows] = {}
    ids: dict[str, ChangedIds] = {}
    for change in manifest.tables:
        spec = specs.get(change.table)
        if spec is None or (change.ids is not None and spec.kind is TableKind.STATIC) or change.table in [*rows, *ids]:
            raise ArtifactError(f"{root}: {MANIFEST_NAME} tells of changes of {change.table!r} that such a table of the artifact cannot have")
        if change.file is not None:
            part = _Part(root / change.file, found[change.file], change)
            rows[spec.name] = _read_rows(part, spec, *stored_layout(spec, entries[spec.name]))
        if change.ids is not None:
            ids[spec.name] = _read_ids(_Part(root / change.ids.file, found[change.ids.file], change))
            if (ids[spec.name].came_ids.numel(), ids[spec.name].went_ids.numel()) != (change.ids.came, change.ids.went):
                raise ArtifactError(f"{root / change.ids.file}: there are not as many ids as {MANIFEST_NAME} tells")
    return Delta(root, manifest, digest, rows, ids)


@dataclass(frozen=True, eq=False)
class _Part:
    """What of a file is of one table."""

    path: Path
    tensors: Mapping[str, Tensor]
    change: TableChange

    def take(self, wanted: Mapping[str, torch.dtype]) -> Tensors:
        """The tensors of these names and types. A file that tables share holds others too."""
        prefix = self.change.prefix
        mine = {name.removeprefix(prefix): part for name, part in self.tensors.items() if name.startswith(prefix)}
        found = {name: part for name, part in mine.items() if not prefix or name in wanted}
        if {name: part.dtype for name, part in found.items()} != wanted:
            told = ", ".join(f"{prefix}{name} of {kind}" for name, kind in wanted.items())
            raise ArtifactError(f"{self.path}: table {self.change.table!r} needs {told}; found {sorted(self.tensors)}")
        return found


def _take_in(root: Path, manifest: DeltaManifest, used: Collection[str], verify: bool) -> dict[str, Tensors]:
    """The tensors of some files, mapped."""
    try:
        found, damage = take_in({file: StoredFile(root / file, file, manifest.files[file] if verify else None) for file in used})
    except ArtifactError:  # that a file was changed tells more
        _require_whole(root, find_damage(root, manifest.files, contents=verify, fast=True))
        raise
    except OSError as error:
        raise ArtifactError(f"{root}: the delta cannot be read: {error}") from error
    _require_whole(root, damage)
    return found


def _require_whole(root: Path, damage: Sequence[str]) -> None:
    if damage:
        raise ArtifactError(f"{root}: the delta is damaged: {'; '.join(damage)}")


def _read_rows(part: _Part, spec: TableSpec, width: int, dtype: torch.dtype) -> ChangedRows:
    found, path, num_rows = part.take({"places": torch.int64, "rows": dtype}), part.path, part.change.rows
    places, rows = found["places"], found["rows"]
    if places.shape != (num_rows,) or rows.shape != (num_rows, width):
        raise ArtifactError(f"{path}: table {spec.name!r} should have {num_rows} changed rows of {width}, found {list(rows.shape)}")
    ascending = bool((places[1:] > places[:-1]).all())
    if not ascending or (num_rows and not 0 <= int(places[0]) <= int(places[-1]) < spec.rows):
        raise ArtifactError(f"{path}: the changed rows of table {spec.name!r} are not ascending, or beyond its {spec.rows}")
    return ChangedRows(places, rows)


def _read_ids(part: _Part) -> ChangedIds:
    found = part.take(dict.fromkeys(("came_ids", "came_rows", "went_ids"), torch.int64))
    if any(ids.dim() != 1 for ids in found.values()) or found["came_ids"].shape != found["came_rows"].shape:
        raise ArtifactError(f"{part.path}: table {part.change.table!r}: came_ids and came_rows are not two lists of one length")
    return ChangedIds(**found)
