"""From a checkpoint to a delta: what differs between an artifact as it is, with the deltas that it has, and the model as it was trained since."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from emberline.delta_manifest import DELTAS_NAME, DeltaManifest, TableChange
from emberline.errors import EmberlineError, ExportError
from emberline.export.changes import Changes, find_changed_rows, find_id_changes, write_changes
from emberline.export.evaluation import DEFAULT_ROWS
from emberline.export.export import package_versions
from emberline.export.forget.ledger import Ledger
from emberline.export.full import full_source
from emberline.export.golden import GOLDEN_NAME
from emberline.export.keeping import locked
from emberline.export.opened import DEFAULT_MEMORY, open_checkpoint
from emberline.export.program import write_programs
from emberline.export.program_options import ProgramOptions
from emberline.export.publish import hidden_dir, list_versions, publish_delta
from emberline.export.remap import require_sound_map
from emberline.export.same_shape import find_differences
from emberline.export.source import Progress, Source
from emberline.export.table_storage import StorageOptions
from emberline.export.unknown import features_with_unknown_ids
from emberline.manifest import FileEntry, ProgramEntry
from emberline.schema import ModelSchema, TableKind
from emberline.serving.artifact import Artifact, load_with_digest
from emberline.serving.engine import Engine
from emberline.serving.remap import RemapParts

CHANGES_NAME = "changes.safetensors"
"""The file of a delta that has the rows and ids that changed, of all tables."""


def export_delta(
    checkpoint: Path | str,
    models_dir: Path | str,
    name: str,
    version: int,
    parity_rows: Path | str | None = None,
    progress: Progress | None = None,
    memory: int = DEFAULT_MEMORY,
    quality_rows: int = DEFAULT_ROWS,
    max_auc_drop: float | None = None,
    forget_key: Path | None = None,
) -> Path:
    """Write, check and publish what changed since a version and its deltas were exported.

    The artifact with the delta answers as an export of the whole checkpoint would: every row and id is compared, bit by bit. What is answered for
    unknown ids, and the number types that tables are stored in, stay as the version has them.

    Args:
        checkpoint: a `step-N` folder, or a run's folder, of which the newest complete step is taken.
        models_dir: the folder of all models.
        name: the model's name.
        version: the version that the delta is added to.
        parity_rows: as for `export_model`.
        progress: called with one line for each step.
        memory: as for `export_model`; blocks of the version count too.
        quality_rows: as for `export_model`.
        max_auc_drop: as for `export_model`.
        forget_key: as for `export_model`.

    Returns:
        `<models_dir>/<name>/<version>/deltas/<number>`.

    Raises:
        ArtifactError: the version or one of its deltas is damaged.
        CheckpointError: the checkpoint is missing, incomplete or damaged.
        ExportError: there is no such version, the model has another shape than it, or another delta was published meanwhile, or a table that grows
            has more new ids than the version has rows for.
        ParityError: the artifact would answer otherwise than the trained model; nothing was published.
        QualityError: an AUC would be smaller than the trained model's by more than `max_auc_drop`; nothing was published.
        DataError: a row of the parity data cannot be read.
        MissingDependencyError: a format of the version needs a package that is not installed: to run its programs, or to write one that changed.
    """
    tell = progress or (lambda line: None)
    root = Path(models_dir) / name / str(version)
    if version not in (there := list_versions(root.parent)):
        found = f"there are {', '.join(map(str, there))}" if there else "there are no versions"
        raise ExportError(f"{root}: no version to make a delta of: {found}; export a whole one first")
    forgotten = Ledger.read(root.parent, forget_key)
    base = Engine.open(root, tables="disk").artifact
    options = ProgramOptions.as_in(entry for _, entry in base.programs.values())
    with open_checkpoint(Path(checkpoint), base.manifest.tower) as opened:
        trained = opened.trained
        tell(f"checkpoint {trained.path} (step {trained.step})")
        schema = trained.model.schema()
        storage = StorageOptions(quantize=_kept_types(base, schema), quality_rows=quality_rows, max_auc_drop=max_auc_drop)
        source = Source.of(opened, _kept_policies(base, schema), parity_rows, memory, storage, _maps_to_grow(base), tell, forgotten)
        if differences := find_differences(base, source):
            raise ExportError(f"{trained.path} cannot become a delta of {root}: {'; '.join(differences)}; export a whole version instead")
        with _unless_exchanged(base), hidden_dir(root / DELTAS_NAME) as path:
            manifest = _build(path, source, base, options, tell)
            with locked(root.parent):
                forgotten.require_unchanged()
                _require_same(base)
                final = publish_delta(path, root, manifest)
    tell(f"published {final}")
    return final


@contextmanager
def _unless_exchanged(base: Artifact) -> Iterator[None]:
    """Say so where work fails because the version was exchanged for another meanwhile, with the folder that the delta was being written to."""
    try:
        yield
    except (OSError, EmberlineError):
        _require_same(base)
        raise


def _require_same(base: Artifact) -> None:
    if load_with_digest(base.root)[1] != base.digest:
        raise ExportError(f"{base.root}: ids were forgotten meanwhile, so that this delta does not follow it: export again")


def _kept_policies(base: Artifact, now: ModelSchema) -> list[str]:
    """What the artifact answers for unknown ids, as `--unknown` would say it, of the features that can have some now."""
    having = features_with_unknown_ids(now)
    return [f"{feature.name}={feature.unknown_ids}" for feature in base.schema.sparse_features if feature.name in having]


def _maps_to_grow(base: Artifact) -> dict[str, RemapParts]:
    """The artifact's maps of tables that grow."""
    return {table.name: base.ids[table.name] for table in base.schema.tables if table.kind is TableKind.DYNAMIC}


def _kept_types(base: Artifact, now: ModelSchema) -> list[str]:
    """How the artifact stores tables, as `--quantize` would say it, of those that there are now."""
    return [f"{table.name}={base.table_types[table.name]}" for table in now.tables if table.name in base.table_types]


def _build(root: Path, source: Source, base: Artifact, options: ProgramOptions, tell: Progress) -> DeltaManifest:
    """Fill the hidden folder and let what it makes of the artifact pass the gate; returns the manifest."""
    tables, files = _write_tables(root, source, base, tell)
    programs = _write_programs(root, source, base, options, tell)
    if not programs:
        tell("programs: as before")
    draft = DeltaManifest(
        name=base.manifest.name,
        version=base.manifest.version,
        number=len(base.deltas) + 1,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        base=base.digest,
        previous=base.deltas[-1].digest if base.deltas else base.digest,
        tables=tables,
        programs=programs,
        golden=GOLDEN_NAME,
        parity={},
        versions=package_versions(),
        files=files,
    )

    def with_delta(format: str) -> Engine:
        opened = Engine.open(base.root, verify=False, deltas=len(base.deltas), format=format, device=options.device_of(format), tables="disk")
        opened.apply_delta(root, verify=False)
        return opened

    return source.complete(root, draft, options.formats, with_delta, tell)


def _write_tables(root: Path, source: Source, base: Artifact, tell: Progress) -> tuple[tuple[TableChange, ...], dict[str, FileEntry]]:
    """Write what changed in each table; those in which nothing did are left out. Also what the file holds."""
    assert base.rows_on_disk is not None
    changes: list[Changes] = []
    for now in source.tables:
        spec = now.spec
        entry = next(entry for entry in base.manifest.tables if entry.table == spec.name)
        found = Changes(now, find_changed_rows(base.rows_on_disk[spec.name], now))
        if entry.remap is not None:
            require_sound_map(source.remaps[spec.name], spec)
            ids = find_id_changes(base.ids[spec.name], source.remaps[spec.name])
            if ids.came_ids.numel() or ids.went_ids.numel():
                found = replace(found, ids=ids, num_ids=source.remaps[spec.name].raw_ids.numel())
        if not found.places.numel() and found.ids is None:
            continue
        changes.append(found)
        told = f", {found.ids.came_ids.numel()} ids came or moved, {found.ids.went_ids.numel()} went" if found.ids is not None else ""
        tell(f"table {spec.name}: {found.places.numel()} of {now.num_rows} rows changed{told}")
    if not changes:
        tell("tables: nothing changed")
        return (), {}
    return tuple(change.described(CHANGES_NAME) for change in changes), {CHANGES_NAME: write_changes(root / CHANGES_NAME, changes)}


def _write_programs(root: Path, source: Source, base: Artifact, options: ProgramOptions, tell: Progress) -> tuple[ProgramEntry, ...]:
    """The programs that are not those that the artifact has, each in all of its formats."""

    def is_there(role: str, digest: str) -> bool:
        there = [entry for _, entry in base.programs.values() if entry.role == role]
        return bool(there) and all(entry.source == digest for entry in there)

    more = full_source(source.trained.model, base.schema, source.tables, options)
    return write_programs(source.trained.model, root, options, tell, is_there, more)
