"""An artifact as the engine sees it: the manifest checked, tables and remaps mapped, programs and golden sample by path.

`<models>/<name>/<version>/` holds `manifest.json`, `tables/`, `remap/`, `programs/` and `golden.safetensors`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from emberline.errors import ArtifactError
from emberline.manifest import FORMAT_VERSION, MANIFEST_NAME, ArtifactManifest, find_damage, read_manifest
from emberline.schema import ModelSchema, TableKind, UnknownIds
from emberline.serving.files import map_tensors
from emberline.serving.remap import RemapIndex, read_remap
from emberline.serving.tables import take_in_table

KNOWN = "known"
"""The answer that tells for each id whether it has a row of its own."""
LOOKUP_PREFIX = "lookup."
"""A group tensor's name among a model's answers is `lookup.<group>`."""


def list_versions(model_dir: Path) -> list[int]:
    """The complete versions (folders named by a whole number, with a manifest) of one model, ascending."""
    if not model_dir.is_dir():
        return []
    folders = [path for path in model_dir.iterdir() if path.name.isascii() and path.name.isdigit() and path.name == str(int(path.name))]
    return sorted(int(path.name) for path in folders if (path / MANIFEST_NAME).is_file())


def find_version(path: Path) -> Path:
    """`path` itself where it is an artifact; else its newest version.

    Raises:
        ArtifactError: there is no artifact.
    """
    if (path / MANIFEST_NAME).is_file():
        return path
    if not path.is_dir():
        raise ArtifactError(f"{path}: there is no such folder")
    versions = list_versions(path)
    if not versions:
        raise ArtifactError(f"{path}: no artifact here: neither {MANIFEST_NAME} nor a version folder (1, 2, ...) that has one")
    return path / str(versions[-1])


def load_manifest(root: Path) -> ArtifactManifest:
    """Read and check `root/manifest.json`.

    Raises:
        ArtifactError: it is missing, changed, or of a format that this release does not read.
    """
    try:
        data = read_manifest(root)
    except FileNotFoundError as error:
        raise ArtifactError(f"{root}: {MANIFEST_NAME} is missing, so this is no complete artifact") from error
    except ValueError as error:
        raise ArtifactError(f"{root}: {MANIFEST_NAME} cannot be read: {error}") from error
    if data.get("format_version") != FORMAT_VERSION:
        found = data.get("format_version")
        raise ArtifactError(f"{root}: the artifact's format is {found}; this release reads {FORMAT_VERSION}: upgrade Emberline or export again")
    try:
        return ArtifactManifest.from_dict(data)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ArtifactError(f"{root}: {MANIFEST_NAME} does not describe an artifact: {error!r}") from error


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """One version of one model, opened: nothing in it changes.

    Args:
        root: its folder.
        manifest: what it says of itself.
        tables: rows [rows, dim] of each table.
        remaps: raw id -> row, for each ZCH or dynamic table.
    """

    root: Path
    manifest: ArtifactManifest
    tables: Mapping[str, Tensor]
    remaps: Mapping[str, RemapIndex]

    @property
    def schema(self) -> ModelSchema:
        """The model's description."""
        return self.manifest.schema

    @classmethod
    def open(cls, path: Path | str, *, device: torch.device | str = "cpu", verify: bool = True) -> Self:
        """Check an artifact and take in its tables.

        Args:
            path: an artifact's folder, or a model's, of which the newest version is taken.
            device: where lookups will run.
            verify: read every byte and compare its sha256 with the manifest's; else names and sizes only.

        Raises:
            ArtifactError: it is missing, incomplete, damaged, or does not fit its own description; the message names the file.
        """
        root = find_version(Path(path))
        manifest = load_manifest(root)
        if damage := find_damage(root, manifest.files, contents=verify):
            raise ArtifactError(f"{root}: the artifact is damaged: {'; '.join(damage)}")
        _check_tables(root, manifest)
        _check_schema(root, manifest.schema)
        _check_unknown_rows(root, manifest.schema)
        specs = {spec.name: spec for spec in manifest.schema.tables}
        place = torch.device(device)
        tables, remaps = {}, {}
        for entry in manifest.tables:
            spec = specs[entry.table]
            tables[entry.table] = take_in_table(_member(root, manifest, entry.file), spec, entry, place)
            if entry.remap is not None:
                remaps[entry.table] = read_remap(_member(root, manifest, entry.remap.file), spec, entry.remap, place, contents=verify)
        return cls(root=root, manifest=manifest, tables=tables, remaps=remaps)

    def member(self, file: str) -> Path:
        """The path of one file that the manifest lists."""
        return _member(self.root, self.manifest, file)

    def golden(self) -> dict[str, Tensor]:
        """The sample request and its answers, by tensor name."""
        return map_tensors(self.member(self.manifest.golden))


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
    for lookup in schema.lookups:
        policy, table = features[lookup.feature].unknown_ids, tables[lookup.table]
        wanted = table.kind is not TableKind.STATIC and policy in (UnknownIds.ZEROS, UnknownIds.MEAN)
        if wanted != (lookup.unknown_row is not None) or not 0 <= (lookup.unknown_row or 0) < table.rows:
            found = f"row {lookup.unknown_row} of {table.rows}" if lookup.unknown_row is not None else "no row"
            raise ArtifactError(f"{root}: lookup {lookup.key!r}: unknown ids are to be answered by {policy!s}, but it has {found} for them")


def _check_schema(root: Path, schema: ModelSchema) -> None:
    """What the engine builds on: lookups of features and tables that are there, and no two answers of one name."""
    features = {feature.name for feature in schema.sparse_features}
    tables = {table.name: table for table in schema.tables}
    for lookup in schema.lookups:
        if lookup.feature not in features or lookup.table not in tables:
            raise ArtifactError(f"{root}: lookup {lookup.key!r} reads table {lookup.table!r} by feature {lookup.feature!r}: one of them is not there")
        if lookup.dim != tables[lookup.table].dim:
            raise ArtifactError(f"{root}: lookup {lookup.key!r} is {lookup.dim} wide, but its table {lookup.table!r} {tables[lookup.table].dim}")
    names = [output.name for output in schema.outputs] + [LOOKUP_PREFIX + group.name for group in schema.groups] + [KNOWN]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise ArtifactError(f"{root}: two answers are called {', '.join(repeated)}; {KNOWN!r} and names that begin with {LOOKUP_PREFIX!r} are taken")
