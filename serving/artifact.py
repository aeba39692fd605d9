"""An artifact as the engine sees it: the manifest checked, tables and remaps mapped, programs and golden sample by path.

`<models>/<name>/<version>/` holds `manifest.json`, `tables/`, `remap/`, `programs/` and `golden.safetensors`; `deltas/` what changed since.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from emberline.delta_manifest import DELTAS_NAME, DeltaManifest
from emberline.errors import ArtifactError
from emberline.manifest import FORMAT_VERSION, MANIFEST_NAME, ArtifactManifest, ProgramEntry, TableEntry, find_damage
from emberline.program_inputs import LOOKUP_PREFIX
from emberline.schema import ModelSchema, TableKind, TableSpec, UnknownIds
from emberline.serving.deltas import Delta, find_deltas, find_strays, merge_ids, open_delta
from emberline.serving.files import map_tensors
from emberline.serving.manifests import load_described
from emberline.serving.remap import RemapIndex, RemapParts, read_remap
from emberline.serving.rows_on_disk import RowsOnDisk
from emberline.serving.tables import leave_table, take_in_table
from emberline.serving.versions import find_version

KNOWN = "known"
"""The answer that tells for each id whether it has a row of its own."""


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
        tables: stored rows of each table: [rows, dim], or bytes [rows, stored_width] where `table_types` says `int8` or `int4`.
        ids: raw ids and their rows on the CPU, for each ZCH or dynamic table.
        remaps: raw id -> row, the same.
        deltas: those that it has, from the first on.
        rows_on_disk: instead of `tables`, where rows stay in their files; else None.
    """

    root: Path
    manifest: ArtifactManifest
    digest: str
    device: torch.device
    tables: Mapping[str, Tensor]
    ids: Mapping[str, RemapParts]
    remaps: Mapping[str, RemapIndex]
    deltas: tuple[Delta, ...] = ()
    rows_on_disk: Mapping[str, RowsOnDisk] | None = None

    @property
    def schema(self) -> ModelSchema:
        """The model's description."""
        return self.manifest.schema

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
        cls, path: Path | str, *, device: torch.device | str = "cpu", verify: bool = True, deltas: int | None = None, on_disk: bool = False
    ) -> Self:
        """Check an artifact and take in its tables, with its deltas.

        Args:
            path: an artifact's folder, or a model's, of which the version that is served is taken.
            device: where lookups will run.
            verify: read every byte and compare its sha256 with the manifest's; else names and sizes only.
            deltas: how many of them to add, from the first on; None for all that are there.
            on_disk: take in no table: leave rows in their files, and read those that are needed.

        Raises:
            ArtifactError: it, or a delta, is missing, incomplete, damaged, or does not fit its own description; the message names the file.
        """
        root = find_version(Path(path))
        manifest, digest = load_with_digest(root)
        if root.name.isdecimal() and int(root.name) != manifest.version:
            raise ArtifactError(f"{root}: the folder says version {root.name}, {MANIFEST_NAME} says {manifest.version}")
        damage = find_damage(root, manifest.files, contents=verify, apart=DELTAS_NAME)
        if damage := damage + (find_strays(root) if deltas is None else []):
            raise ArtifactError(f"{root}: the artifact is damaged: {'; '.join(damage)}")
        _check_tables(root, manifest)
        _check_schema(root, manifest.schema)
        _check_unknown_rows(root, manifest.schema)
        place, specs = torch.device(device), {spec.name: spec for spec in manifest.schema.tables}
        ids = {
            entry.table: read_remap(_member(root, manifest, entry.remap.file), specs[entry.table], entry.remap, contents=verify)
            for entry in manifest.tables
            if entry.remap is not None
        }
        empty = cls(root=root, manifest=manifest, digest=digest, device=place, tables={}, ids=ids, remaps={}, rows_on_disk={} if on_disk else None)
        return empty._with(find_deltas(root, deltas), verify)

    def with_delta(self, path: Path, *, verify: bool = True) -> Self:
        """The artifact after one more delta; this one stays as it is. They share what did not change.

        Args:
            path: the delta's folder.
            verify: as for `open`.

        Raises:
            ArtifactError: it is damaged, is not the next delta of this artifact, or does not fit it.
        """
        return self._with([path], verify)

    def member(self, file: str) -> Path:
        """The path of one file that the manifest lists."""
        return _member(self.root, self.manifest, file)

    def golden(self) -> dict[str, Tensor]:
        """The sample request and its answers, by tensor name."""
        return map_tensors(self.golden_path)

    def _with(self, folders: Sequence[Path], verify: bool) -> Self:
        """The artifact with further deltas; tables and remaps that are new or change are taken in."""
        specs, ids = {spec.name: spec for spec in self.schema.tables}, dict(self.ids)
        chain = self.deltas
        for folder in folders:
            delta = open_delta(folder, self.manifest, partial(self._require_next, chain, folder), verify=verify)
            for table, change in delta.ids.items():
                try:
                    ids[table] = merge_ids(ids[table], change, specs[table].rows)
                    delta.require_count(table, ids[table].raw_ids.numel())
                except ValueError as error:
                    raise ArtifactError(f"{delta.root}: table {table!r}: the change of its ids does not fit: {error}") from error
            chain = (*chain, delta)
        tables, remaps, on_disk = dict(self.tables), dict(self.remaps), None if self.rows_on_disk is None else dict(self.rows_on_disk)
        for table, spec in specs.items():
            if table not in (tables if on_disk is None else on_disk) or any(table in delta.rows for delta in chain[len(self.deltas) :]):
                if on_disk is None:
                    tables[table] = self._take_in(table, chain)
                else:
                    on_disk[table] = self._find_rows(table, chain)
            if table in ids and (table not in self.remaps or ids[table] is not self.ids[table]):
                remaps[table] = ids[table].index(spec.rows, self.device)
        return replace(self, tables=tables, ids=ids, remaps=remaps, deltas=chain, rows_on_disk=on_disk)

    def _described(self, table: str) -> tuple[TableSpec, TableEntry]:
        entry = next(entry for entry in self.manifest.tables if entry.table == table)
        return next(spec for spec in self.schema.tables if spec.name == table), entry

    def _find_rows(self, table: str, deltas: Sequence[Delta]) -> RowsOnDisk:
        """Where a table's rows are after some deltas."""
        spec, entry = self._described(table)
        rows = leave_table(self.member(entry.file), spec, entry)
        files = [(delta, change.file) for delta in deltas for change in delta.manifest.tables if change.table == table]
        return rows.with_changes((delta.rows[table].places, RowsOnDisk.find(delta.root / file)) for delta, file in files if file is not None)

    def _take_in(self, table: str, deltas: Sequence[Delta]) -> Tensor:
        """A table's rows after some deltas, apart from all that were taken in before."""
        spec, entry = self._described(table)
        rows = take_in_table(self.member(entry.file), spec, entry, self.device)
        for delta in deltas:
            if table in delta.rows:
                delta.rows[table].write_to(rows)
        return rows

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


def _member(root: Path, manifest: ArtifactManifest, file: str) -> Path:
    """Only listed files are ever opened: the damage check has seen each of them below `root`."""
    if file not in manifest.files:
        raise ArtifactError(f"{root}: {file} is used but not listed in {MANIFEST_NAME}")
    return root / file


def _check_tables(root: Path, manifest: ArtifactManifest) -> None:
    """Each table of the schema has exactly one entry, with a remap exactly where its ids are raw."""
    want = [spec.name for spec in manifest.schema.tables]
    have = [entry.table for entry in manifest.tables]
    if sorted(want) != sorted(have):
        raise ArtifactError(f"{root}: the schema's tables are {sorted(want)}, but {MANIFEST_NAME} has files for {sorted(have)}")
    entries = {entry.table: entry for entry in manifest.tables}
    for spec in manifest.schema.tables:
        raw = spec.kind is not TableKind.STATIC
        if raw != (entries[spec.name].remap is not None):
            raise ArtifactError(f"{root}: table {spec.name!r} of kind {spec.kind} {'has no remap file' if raw else 'has a remap file'}")


def _check_unknown_rows(root: Path, schema: ModelSchema) -> None:
    """A lookup names a row for unknown ids exactly where its feature's policy is one of its own vectors and its table has raw ids."""
    features = {feature.name: feature for feature in schema.features}
    tables = {table.name: table for table in schema.tables}
    for lookup in schema.reads:
        policy, table = features[lookup.feature].unknown_ids, tables[lookup.table]
        wanted = table.kind is not TableKind.STATIC and policy in (UnknownIds.ZEROS, UnknownIds.MEAN)
        if wanted != (lookup.unknown_row is not None) or not 0 <= (lookup.unknown_row or 0) < table.rows:
            found = f"row {lookup.unknown_row} of {table.rows}" if lookup.unknown_row is not None else "no row"
            raise ArtifactError(f"{root}: lookup {lookup.key!r}: unknown ids are to be answered by {policy!s}, but it has {found} for them")


def _check_schema(root: Path, schema: ModelSchema) -> None:
    """What the engine builds on: lookups of features and tables that are there, and no two answers of one name."""
    features = {feature.name for feature in schema.sparse_features}
    tables = {table.name: table for table in schema.tables}
    for lookup in schema.reads:
        if lookup.feature not in features or lookup.table not in tables:
            raise ArtifactError(f"{root}: lookup {lookup.key!r} reads table {lookup.table!r} by feature {lookup.feature!r}: one of them is not there")
        if lookup.dim != tables[lookup.table].dim:
            raise ArtifactError(f"{root}: lookup {lookup.key!r} is {lookup.dim} wide, but its table {lookup.table!r} {tables[lookup.table].dim}")
    _check_streams(root, schema)
    names = [output.name for output in schema.outputs] + [LOOKUP_PREFIX + group.name for group in schema.groups] + [KNOWN]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise ArtifactError(f"{root}: two answers are called {', '.join(repeated)}; {KNOWN!r} and names that begin with {LOOKUP_PREFIX!r} are taken")


def _check_streams(root: Path, schema: ModelSchema) -> None:
    """Each stream is of sequences that no other has, and whatever keeps or counts steps names one."""
    sequences, seen = {feature.name for feature in schema.sequences}, list[str]()
    for stream in schema.streams:
        seen += stream.features
        if not stream.features or not sequences.issuperset(stream.features):
            raise ArtifactError(f"{root}: a stream of sequences has {list(stream.features)}; the model's sequences are {sorted(sequences)}")
    if len(set(seen)) != len(seen):
        raise ArtifactError(f"{root}: {', '.join(sorted({name for name in seen if seen.count(name) > 1}))} is in two streams of sequences")
    streams = {stream.name for stream in schema.streams}
    wrong = [lookup.key for lookup in schema.sequence_lookups if lookup.feature not in seen]
    wrong += [group.name for group in schema.groups if group.stream and group.stream not in streams]
    if wrong:
        raise ArtifactError(f"{root}: {', '.join(wrong)} has steps of a sequence that no stream has")
