"""A manifest that contradicts itself is refused before any file is opened: everything behind it builds on what is checked here."""

from pathlib import Path

from emberline.errors import ArtifactError
from emberline.manifest import MANIFEST_NAME, ArtifactManifest
from emberline.program_inputs import LOOKUP_PREFIX
from emberline.schema import ModelSchema, TableKind, UnknownIds

KNOWN = "known"
"""The answer that tells for each id whether it has a row of its own."""


def require_consistent(root: Path, manifest: ArtifactManifest) -> None:
    """Compare the parts of the manifest of the artifact in `root` with each other.

    Raises:
        ArtifactError: two of them do not fit together.
    """
    _check_tables(root, manifest)
    _check_schema(root, manifest.schema)
    _check_unknown_rows(root, manifest.schema)


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
