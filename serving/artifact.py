"""An artifact as the engine sees it: the manifest checked, tables and remaps mapped, programs and golden sample by path.

`<models>/<name>/<version>/` holds `manifest.json`, `tables/`, `remap/`, `programs/` and `golden.safetensors`; `deltas/` what changed since.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from emberline.delta_manifest import DELTAS_NAME, DeltaManifest
from emberline.errors import ArtifactError
from emberline.manifest import FORMAT_VERSION, MANIFEST_NAME, ArtifactManifest, ProgramEntry, TableEntry, find_damage
from emberline.schema import ModelSchema, TableSpec
from emberline.serving.consistency import KNOWN, require_consistent
from emberline.serving.deltas import Delta, find_deltas, find_strays, merge_ids, open_delta
from emberline.serving.files import load_tensors
from emberline.serving.manifests import load_described
from emberline.serving.overlaid_rows import OverlaidRows
from emberline.serving.remap import LINES, RemapIndex, RemapParts, read_remap, require_sound_values
from emberline.serving.row_layout import DEFAULT_GROWTH
from emberline.serving.rows_on_disk import RowsOnDisk, TableRows
from emberline.serving.stored_files import StoredFile, Tensors, read_whole, take_in
from emberline.serving.tables import MAPPED, ON_DISK, PRIVATE, growth_of, leave_table, require_memory, require_table
from emberline.serving.versions import find_version

__all__ = ["KNOWN", "Artifact", "load_manifest", "load_with_digest"]


def load_manifest(root: Path) -> ArtifactManifest:
    """Read and check `root/manifest.json`.

    Raises:
        ArtifactError: it is missing, changed, or of a format that this release does not read.
    """
    return load_with_digest(root)[0]


def load_with_digest(root: Path) -> tuple[ArtifactManifest, str]:
    """As `load_manifest`, with the manifest's digest."""
    return load_described(root, "artifact", ArtifactManifest.from_dict, FORMAT_VERSION, _delta_instead)


def _delta_instead(data: Mapping[str, Any]) -> str | None:
    """Why a delta's manifest is refused."""
    if data.get("kind") != "delta":
        return None
    return f"this is a delta of {data.get('name')!r} version {data.get('version')}; give the folder of that version"


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """One version of one model, opened, with the deltas that were added to it: nothing in it changes.

    Args:
        root: its folder.
        manifest: what it says of itself, without its deltas.
        digest: of that manifest.
        device: where its tables are.
        memory: where its tables are, of `TABLE_MEMORIES`.
        tables: stored rows of each table: [rows, dim], or bytes [rows, stored_width] where `table_types` says `int8` or `int4`; none for `disk`.
        ids: raw ids and their rows on the CPU, for each ZCH or dynamic table.
        remaps: raw id -> row, the same.
        deltas: those that it has, from the first on, without the rows and ids that they changed.
        rows_on_disk: instead of `tables`, where rows stay in their files; else None.
        overlaid: of tables whose changed rows are beside `tables`: all of them, as they are now.
        verified: whether what is read of it is compared with its manifest.
        row_growth: by what share private tables may be larger than their files; see `row_layout`.
    """

    root: Path
    manifest: ArtifactManifest
    digest: str
    device: torch.device
    memory: str
    tables: Mapping[str, Tensor]
    ids: Mapping[str, RemapParts]
    remaps: Mapping[str, RemapIndex]
    deltas: tuple[Delta, ...] = ()
    rows_on_disk: Mapping[str, RowsOnDisk] | None = None
    overlaid: Mapping[str, OverlaidRows] = field(default_factory=dict)
    verified: bool = True
    row_growth: float = DEFAULT_GROWTH

    @property
    def schema(self) -> ModelSchema:
        """The model's description."""
        return self.manifest.schema

    @property
    def rows(self) -> Mapping[str, TableRows]:
        """What lookups read of each table."""
        return {**self.tables, **self.overlaid} if self.rows_on_disk is None else self.rows_on_disk

    @property
    def table_types(self) -> dict[str, str]:
        """The number type that each table is stored in."""
        return {entry.table: entry.dtype for entry in self.manifest.tables}

    @property
    def programs(self) -> dict[tuple[str, str], tuple[Path, ProgramEntry]]:
        """The file and entry of each program, by role and format. Of a role that a delta has, only the delta's programs count."""
        found = {(entry.role, entry.format): (self.member(entry.file), entry) for entry in self.manifest.programs}
        for delta in self.deltas:
            changed = {entry.role for entry in delta.manifest.programs}
            found = {key: program for key, program in found.items() if key[0] not in changed}
            found |= {(entry.role, entry.format): (delta.root / entry.file, entry) for entry in delta.manifest.programs}
        return found

    @property
    def golden_path(self) -> Path:
        """The file of the sample request and its answers."""
        if self.deltas:
            return self.deltas[-1].root / self.deltas[-1].manifest.golden
        return self.member(self.manifest.golden)

    @classmethod
    def open(
        cls,
        path: Path | str,
        *,
        device: torch.device | str = "cpu",
        verify: bool = True,
        deltas: int | None = None,
        tables: str = MAPPED,
        row_growth: float | None = None,
    ) -> Self:
        """Check an artifact and take in its tables, with its deltas.

        Args:
            path: an artifact's folder, or a model's, of which the version that is served is taken.
            device: where lookups will run.
            verify: read every byte and compare its digest with the manifest's, of tables and maps the faster one where there is one, and with `disk`
                all that there are; else names and sizes only.
            deltas: how many of them to add, from the first on; None for all that are there.
            tables: where they are to be: `private`, in memory of their own; `mapped`, in the pages of their files; or `disk`: no table is taken in,
                and rows are read from their files when they are needed.
            row_growth: by what share private tables on a CPU may be larger than their files, so that rows straddle fewer lines of the cache; None for
                the usual.

        Raises:
            ConfigError: tables cannot be there, or cannot grow so.
            ArtifactError: it, or a delta, is missing, incomplete, damaged, or does not fit its own description; the message names the file.
        """
        place = torch.device(device)
        require_memory(tables, place.type)
        growth = growth_of(row_growth, tables, place.type)
        root = find_version(Path(path))
        manifest, digest = load_with_digest(root)
        if root.name.isdecimal() and int(root.name) != manifest.version:
            raise ArtifactError(f"{root}: the folder says version {root.name}, {MANIFEST_NAME} says {manifest.version}")
        used = [file for entry in manifest.tables for file in (entry.file, entry.remap.file if entry.remap else None) if file is not None]
        later = [] if tables == ON_DISK else used
        damage = find_damage(root, manifest.files, contents=verify, apart=DELTAS_NAME, compared_later=later)
        _require_sound(root, damage + (find_strays(root) if deltas is None else []))
        require_consistent(root, manifest)
        empty = cls(root=root, manifest=manifest, digest=digest, device=place, memory=tables, tables={}, ids={}, remaps={})
        whole = replace(empty, verified=verify, row_growth=growth)._take_in()
        return whole._with(find_deltas(root, deltas), verify, in_place=tables == PRIVATE)

    def with_delta(self, path: Path, *, verify: bool = True) -> Self:
        """The artifact after one more delta; this one stays as it is. They share what did not change: rows that did lie beside the tables.

        Args:
            path: the delta's folder.
            verify: as for `open`.

        Raises:
            ArtifactError: it is damaged, is not the next delta of this artifact, or does not fit it.
        """
        return self._with([path], verify)

    def settled(self) -> Self:
        """The same with the rows of deltas written into its tables. Nobody may be reading what these rows were before.

        Of other artifacts that have these tables, only the one with the same deltas is of use from now on.
        """
        assert self.memory == PRIVATE, self.memory
        return replace(self, tables={**self.tables, **{table: rows.settle() for table, rows in self.overlaid.items()}}, overlaid={})

    def member(self, file: str) -> Path:
        """The path of one file that the manifest lists."""
        return _member(self.root, self.manifest, file)

    def read(self, path: Path) -> bytes:
        """What a small file that the manifest or a delta's lists holds, compared with it where all is.

        Raises:
            ArtifactError: it was changed, or cannot be read.
        """
        delta = next((delta for delta in reversed(self.deltas) if path.is_relative_to(delta.root)), None)
        root, files = (self.root, self.manifest.files) if delta is None else (delta.root, delta.manifest.files)
        return read_whole(path, files[path.relative_to(root).as_posix()] if self.verified else None)

    def golden(self) -> Tensors:
        """The sample request and its answers, by tensor name."""
        return load_tensors(self.read(self.golden_path), self.golden_path.name)

    def _take_in(self) -> Self:
        """The artifact with its tables and ids, all that is read of their files compared; of tables on disk only the places of their rows."""
        specs = {spec.name: spec for spec in self.schema.tables}
        maps = [(specs[entry.table], entry.remap) for entry in self.manifest.tables if entry.remap is not None]
        try:
            found, damage = take_in(self._stored_files(specs))
        except ArtifactError:  # of a file that is no table or map; that it was changed tells more
            _require_sound(self.root, find_damage(self.root, self.manifest.files, contents=self.verified, apart=DELTAS_NAME, fast=True))
            raise
        except OSError as error:
            raise ArtifactError(f"{self.root}: a table cannot be read: {error}") from error
        except MemoryError as error:
            raise ArtifactError(f"{self.root}: there is not enough memory: {error}; tables that are mapped need none of their own") from error
        _require_sound(self.root, damage)
        ids = {spec.name: read_remap(found[spec.name, "ids"], spec, remap) for spec, remap in maps}
        for spec, remap in maps if self.verified else []:
            require_sound_values(ids[spec.name], spec, remap, rebuild=self.memory == ON_DISK)
        if self.memory == ON_DISK:
            return replace(self, ids=ids, rows_on_disk={table: self._left(table) for table in specs})
        return replace(self, ids=ids, tables={table: found[table, "rows"]["rows"].to(self.device) for table in specs})

    def _stored_files(self, specs: Mapping[str, TableSpec]) -> dict[tuple[str, str], StoredFile]:
        """The files of all tables, unless they stay on disk, and of all maps, by table and what is in them."""
        own, found = self.memory == PRIVATE and self.device.type == "cpu", dict[tuple[str, str], StoredFile]()
        for entry in self.manifest.tables:
            spec = specs[entry.table]
            if self.memory != ON_DISK:
                found[spec.name, "rows"] = self._stored(
                    entry.file, ["rows"] if own else [], partial(require_table, spec=spec, entry=entry), self.row_growth
                )
            if entry.remap is not None:
                lines = [LINES] if own and entry.remap.seed is not None else []
                found[spec.name, "ids"] = self._stored(entry.remap.file, lines, partial(read_remap, spec=spec, entry=entry.remap))
        return found

    def _stored(self, file: str, own: Sequence[str], check: Callable[[Mapping[str, Tensor]], object], row_growth: float = 0) -> StoredFile:
        path = self.member(file)
        return StoredFile(path, file, self.manifest.files[file] if self.verified else None, own, row_growth, check)

    def _with(self, folders: Sequence[Path], verify: bool, *, in_place: bool = False) -> Self:
        """The artifact with further deltas; remaps that are new or change are made. Where nobody has its tables yet, they are changed `in_place`."""
        specs, ids = {spec.name: spec for spec in self.schema.tables}, dict(self.ids)
        chain = self.deltas
        for folder in folders:
            delta = open_delta(folder, self.manifest, partial(self._require_next, chain, folder), verify=verify, slowly=self.memory == ON_DISK)
            for table, change in delta.ids.items():
                try:
                    ids[table] = merge_ids(ids[table], change, specs[table].rows, specs[table].kind)
                    delta.require_count(table, ids[table].raw_ids.numel())
                except ValueError as error:
                    raise ArtifactError(f"{delta.root}: table {table!r}: the change of its ids does not fit: {error}") from error
            chain = (*chain, delta)
        remaps = dict(self.remaps)
        for table in ids:
            if table not in remaps or ids[table] is not self.ids[table]:
                remaps[table] = ids[table].index(specs[table].rows, self.device)
        new = chain[len(self.deltas) :]
        taken_in = (replace(delta, rows={}, ids={}) for delta in new)  # maps of all their files would add up
        whole = replace(self, ids=ids, remaps=remaps, deltas=(*self.deltas, *taken_in))
        changes = [(table, delta) for delta in new for table in delta.rows]
        if self.rows_on_disk is not None:
            return replace(whole, rows_on_disk=_changed_on_disk(self.rows_on_disk, changes))
        overlaid = dict(self.overlaid)
        for table, delta in changes:
            rows = delta.rows[table]
            if in_place:
                rows.write_to(self.tables[table])
            else:
                overlaid[table] = OverlaidRows.over(overlaid.get(table, self.tables[table]), rows.places, rows.rows)
        return replace(whole, overlaid=overlaid)

    def _described(self, table: str) -> tuple[TableSpec, TableEntry]:
        entry = next(entry for entry in self.manifest.tables if entry.table == table)
        return next(spec for spec in self.schema.tables if spec.name == table), entry

    def _left(self, table: str) -> RowsOnDisk:
        spec, entry = self._described(table)
        return leave_table(self.member(entry.file), spec, entry)

    def _require_next(self, before: Sequence[Delta], root: Path, manifest: DeltaManifest) -> None:
        """A delta is added once, after the one that it was made for, to the artifact that it was made for."""
        number = len(before)
        this = f"{self.manifest.name!r} version {self.manifest.version}"
        if manifest.base != self.digest:
            made_for = f"{manifest.name!r} version {manifest.version}"
            raise ArtifactError(f"{root}: this delta was made for {made_for + ', ' if made_for != this else ''}another artifact than {self.root}")
        if manifest.number <= number:
            raise ArtifactError(f"{root}: {this} has delta {manifest.number} already; it is at {number}")
        if manifest.number > number + 1:
            raise ArtifactError(f"{root}: this is delta {manifest.number}, but {this} is at {number}: add delta {number + 1} first")
        if manifest.previous != (before[-1].digest if before else self.digest):
            raise ArtifactError(f"{root}: this delta was made to follow another delta {number} than the one that {this} has")


def _require_sound(root: Path, damage: Sequence[str]) -> None:
    if damage:
        raise ArtifactError(f"{root}: the artifact is damaged: {'; '.join(damage)}")


def _changed_on_disk(tables: Mapping[str, RowsOnDisk], changes: Sequence[tuple[str, Delta]]) -> dict[str, RowsOnDisk]:
    """Where rows are after some deltas, each with a table that it changes."""
    found = dict(tables)
    for table, delta in changes:
        change = next(change for change in delta.manifest.tables if change.table == table)
        assert change.file is not None
        found[table] = found[table].with_changes([(delta.rows[table].places, RowsOnDisk.find(delta.root / change.file, f"{change.prefix}rows"))])
    return found


def _member(root: Path, manifest: ArtifactManifest, file: str) -> Path:
    """Only listed files are ever opened: the damage check has seen each of them below `root`."""
    if file not in manifest.files:
        raise ArtifactError(f"{root}: {file} is used but not listed in {MANIFEST_NAME}")
    return root / file
