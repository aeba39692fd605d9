"""What a user reads of a thing on disk, in lines for a terminal: an artifact or a checkpoint, by its manifest, or a config."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from emberline.errors import ArtifactError, CheckpointError, MissingDependencyError
from emberline.export.describe_config import config_lines, is_config, rounding_lines
from emberline.export.quality import summary_lines
from emberline.export.unknown import features_with_unknown_ids
from emberline.manifest import MANIFEST_NAME, ArtifactManifest, FileEntry
from emberline.schema import FeatureKind, ModelSchema
from emberline.serving.artifact import load_manifest
from emberline.serving.compatibility import require_fit
from emberline.serving.deltas.files import find_deltas, load_delta_manifest
from emberline.serving.engine import Engine
from emberline.serving.program_choice import ROLES, TILED_ROLES
from emberline.serving.quantized import stored_bytes
from emberline.serving.versions import find_version, list_versions, pinned_version
from emberline.text_table import columns
from emberline.train.checkpoint.keeping import BEST_NAME, best_checkpoint
from emberline.train.checkpoint.report import checkpoint_lines
from emberline.train.checkpoint.store import (
    CheckpointInfo,
    find_checkpoint,
    is_step_path,
    list_steps,
    read_checkpoint,
    step_path,
    verify_checkpoint,
)
from emberline.train.checkpoint.verify_increments import verify_increments


def is_checkpoint(path: Path) -> bool:
    """Whether `path` is a training run's folder or one checkpoint in it, complete or not; else it is taken for an artifact."""
    if is_step_path(path):
        return True
    if (path / MANIFEST_NAME).is_file():
        try:
            read_checkpoint(path)
        except CheckpointError:
            return False
        return True
    return path.is_dir() and any(map(is_step_path, path.iterdir())) and not list_versions(path)


def describe(path: Path) -> list[str]:
    """What an artifact (or the one of a model's folder that is served), a checkpoint (or the newest of a run's folder) or a config holds.

    Raises:
        ArtifactError: there is none of them.
        CheckpointError: the checkpoint cannot be read.
        ConfigError: a file that is no config, or a wrong one; with every problem found.
    """
    if is_config(path):
        return config_lines(path)
    if is_checkpoint(path):
        return _checkpoint_lines(read_checkpoint(find_checkpoint(path)))
    root = find_version(path)
    return _artifact_lines(root, load_manifest(root), list_versions(path), pinned_version(path))


def verify(path: Path, device: str = "cpu") -> Iterator[str]:
    """Read every byte of an artifact or checkpoint and compare it with the manifest; an artifact is then opened and its golden sample replayed,
    by the programs of each format that can run here.

    Args:
        path: the folder. Of a run's folder it is all complete checkpoints and increments, of a model's folder the version that is served.
        device: where an artifact is opened, as torch names it.

    Yields:
        A line for each that says what was read, as soon as it was.

    Raises:
        ArtifactError: it is incomplete, changed, or does not answer as it did when it was exported; names the file.
        CheckpointError: the same, for a checkpoint; of several, when all were read.
    """
    if is_checkpoint(path):
        if path.is_dir() and list_steps(path):
            yield from _verify_run(path)
        else:
            yield _as_written(verify_checkpoint(find_checkpoint(path)))
        return
    root = find_version(path)
    engine = Engine.open(root, device=device, tables="disk")
    files = dict(engine.artifact.manifest.files)
    for delta in engine.artifact.deltas:
        files |= {f"{delta.root.name}/{file}": entry for file, entry in delta.manifest.files.items()}
    deltas = f" with {engine.delta} delta{'s' if engine.delta > 1 else ''}" if engine.delta else ""
    yield f"{root}{deltas}: {_count(files)}, all as they were published; the golden sample gives the same answers"
    for format in sorted({format for role, format in engine.artifact.programs if role in ROLES} - {engine.format}):
        yield f"  {format}: {_replay(engine, format)}"


def _replay(engine: Engine, format: str) -> str:
    """What comes of the golden sample with the programs of another format; those that cannot run here are told of."""
    programs = [entry for (role, kind), (_, entry) in engine.artifact.programs.items() if kind == format and role in (*ROLES, *TILED_ROLES)]
    try:
        for entry in programs:
            require_fit(entry, engine.device)
    except ArtifactError as error:
        return f"not tried: {error}"
    try:
        Engine.open(engine.artifact.root, device=str(engine.device), verify=False, deltas=engine.delta, format=format, tables="disk")
    except MissingDependencyError as error:
        return f"not tried: {error}"
    return "the same answers"


def _verify_run(run: Path) -> Iterator[str]:
    """All checkpoints of a run, the link to its best one, and its increments."""
    steps, bad = list_steps(run), dict[str, str]()
    best = best_checkpoint(run) if (run / BEST_NAME).is_symlink() else None
    for step in steps:
        path = step_path(run, step)
        try:
            yield _as_written(verify_checkpoint(path)) + ("; the best" if path == best else "")
        except CheckpointError as error:
            if not path.exists():  # the run goes on, and keeps the newest
                yield f"{path}: removed in the meantime"
                continue
            bad[path.name] = str(error)
            yield str(error) + ("; it was the best" if path == best else "")
    yield from (f"{path}: left out, as it has no {MANIFEST_NAME}" for path in sorted(run.iterdir()) if is_step_path(path) and not _is_whole(path))
    increments = verify_increments(run)
    yield from increments.lines
    problems = [f"{len(bad)} of {len(steps)} checkpoints are damaged: {', '.join(bad)}", *bad.values()] if bad else []
    if increments.problems:
        problems += [f"{len(increments.problems)} of {increments.text()}, can't be applied", *increments.problems]
    problems += [f"{BEST_NAME} points at {best.name}, which is no complete checkpoint"] if best and not _is_whole(best) else []
    if problems:
        raise CheckpointError(f"{run}: {'; '.join(problems)}")
    also = f"; {increments.text()}, each leads on" if increments.count else ""
    yield f"{run}: {len(steps)} checkpoint{'s' if len(steps) > 1 else ''}, none damaged{also}"


def _is_whole(path: Path) -> bool:
    return (path / MANIFEST_NAME).is_file()


def _as_written(info: CheckpointInfo) -> str:
    return f"{info.path}: {_count(info.files)}, all as they were written"


def _artifact_lines(root: Path, manifest: ArtifactManifest, versions: Sequence[int], pinned: int | None) -> list[str]:
    schema = manifest.schema
    part = f", tower {manifest.tower}" if manifest.tower else ""
    lines = [f"artifact {manifest.name}, version {manifest.version}{part}, made {manifest.created}", f"  {root}: {_count(manifest.files)}"]
    lines += [*version_lines(versions, pinned), *_delta_lines(root)]
    lines += ["", *_table_lines(manifest), "", *_feature_lines(schema), ""]
    lines += columns([("group", "kind", "width"), *((group.name, group.kind.value, str(group.dim) if group.dim else "-") for group in schema.groups)])
    lines += rounding_lines(schema.group_dtype)
    lines += ["", *columns([("output", "shape"), *((out.name, f"[rows, {out.width}]" if out.width else "[rows]") for out in schema.outputs)])]
    lines += ["", *columns([("program", "role", "format", "device", "needs"), *_program_rows(manifest)])]
    lines += ["", "made with: " + ", ".join(f"{name} {version}" for name, version in manifest.versions.items())]
    return lines + _parity_lines(manifest) + (summary_lines(manifest.quality) if manifest.quality else [])


def version_lines(versions: Sequence[int], pinned: int | None) -> list[str]:
    """Which versions of a model there are, and whether it was rolled back; nothing where there is one only."""
    if len(versions) < 2:
        return []
    return [f"  versions there: {', '.join(map(str, versions))}" + (f"; {pinned} is served, as it was rolled back" if pinned else "")]


def _delta_lines(root: Path) -> list[str]:
    """What each delta changed, by its manifest; nothing where there are none."""
    folders = find_deltas(root)
    if not folders:
        return []
    rows = [("delta", "made", "step", "rows changed", "ids came or moved", "ids went", "programs", "bytes")]
    for folder in folders:
        manifest, _ = load_delta_manifest(folder)
        ids = [change.ids for change in manifest.tables if change.ids is not None]
        changed, came, went = sum(change.rows for change in manifest.tables), sum(one.came for one in ids), sum(one.went for one in ids)
        programs = ", ".join(program.role for program in manifest.programs) or "-"
        size = sum(entry.bytes for entry in manifest.files.values())
        step = manifest.parity.get("checkpoint_step", "-")
        rows.append((str(manifest.number), manifest.created, str(step), f"{changed:,}", f"{came:,}", f"{went:,}", programs, f"{size:,}"))
    return ["", f"deltas: {len(folders)}; what follows is the artifact before them", *columns(rows)]


def _table_lines(manifest: ArtifactManifest) -> list[str]:
    specs = {spec.name: spec for spec in manifest.schema.tables}
    rows = [("table", "kind", "rows", "dim", "trained", "stored", "raw ids", "bytes", "bytes as trained")]
    for entry in manifest.tables:
        spec = specs[entry.table]
        ids = str(entry.remap.num_ids) if entry.remap is not None else "-"
        ids += f", {entry.remap.spare_rows} rows spare" if entry.remap is not None and entry.remap.spare_rows else ""
        size = manifest.files[entry.file].bytes + (manifest.files[entry.remap.file].bytes if entry.remap is not None else 0)
        trained = size + stored_bytes(spec.rows, spec.dim, spec.dtype) - stored_bytes(spec.rows, spec.dim, entry.dtype)
        rows.append((spec.name, spec.kind.value, str(spec.rows), str(spec.dim), spec.dtype, entry.dtype, ids, f"{size:,}", f"{trained:,}"))
    return columns(rows)


def _feature_lines(schema: ModelSchema) -> list[str]:
    rows = [("feature", "side", "columns", "encoding", "reads")]
    having_unknown_ids = features_with_unknown_ids(schema)
    for feature in schema.features:
        tables = [f"{lookup.table} ({lookup.pooling.value})" for lookup in schema.lookups if lookup.feature == feature.name]
        tables += [f"{lookup.table} (per step)" for lookup in schema.sequence_lookups if lookup.feature == feature.name]
        width = f" x {feature.value_dim}" if feature.kind is FeatureKind.DENSE else ""
        notes = {"sequence": feature.sequence, "weighted": feature.weighted, "encoded": feature.encoded}
        encoding = ", ".join([feature.encoder.type + width, *(note for note, applies in notes.items() if applies)])
        reads = ", ".join(tables) or "-"
        if feature.name in having_unknown_ids:
            reads += f"; unknown ids: {feature.unknown_ids}"
        rows.append((feature.name, feature.side or "-", ", ".join(feature.columns), encoding, reads))
    return columns(rows)


def _program_rows(manifest: ArtifactManifest) -> Iterable[tuple[str, ...]]:
    for program in manifest.programs:
        needs = [f"{name} {program.versions.get(name, '')}".strip() for name in ("torch", *program.libraries)]
        device = f"{program.device} {program.arch}" if program.device == "cuda" else program.device
        yield program.file, program.role, program.format, device, ", ".join(needs)


def _parity_lines(manifest: ArtifactManifest) -> list[str]:
    parity = manifest.parity
    told = parity.get("forgotten")
    forgotten = [f"ids were forgotten {told['times']} time{'s' if told['times'] > 1 else ''}, the last {told['last']}"] if told else []
    if "real_rows" not in parity:
        return forgotten
    tiled = f", {parity['tiled_rows']} rows in tiled requests" if parity.get("tiled_rows") else ""
    lines = [f"parity with the trained model: {parity['real_rows']} real rows, {parity['made_rows']} made rows{tiled}, bound {parity['bound']:g}"]
    formats = parity.get("formats") or {"": {"max_abs_difference": parity["max_abs_difference"]}}
    for format, found in formats.items():
        where = f" ({format}, bound {found['bounds']['output']:g})" if len(formats) > 1 else ""
        lines += [f"  {name}: largest difference {value:.3g}{where}" for name, value in found["max_abs_difference"].items()]
    return lines + forgotten


def _checkpoint_lines(info: CheckpointInfo) -> list[str]:
    lines = [f"checkpoint of step {info.step}", f"  {info.path}: {_count(info.files)}", *checkpoint_lines(info), ""]
    lines.append("made with: " + ", ".join(f"{name} {version}" for name, version in info.versions.items()))
    if info.imported is not None:
        lines.append("imported: " + "; ".join(f"{name.replace('_', ' ')}: {_listed(value)}" for name, value in info.imported.items() if value))
    return [*lines, "", *columns([("file", "bytes"), *((path, f"{entry.bytes:,}") for path, entry in sorted(info.files.items()))])]


def _listed(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _count(files: Mapping[str, FileEntry]) -> str:
    return f"{len(files)} files, {sum(entry.bytes for entry in files.values()):,} bytes"
