"""From a checkpoint to a published artifact: the order of the work."""

import importlib.metadata
import platform
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import emberline
from emberline.export.evaluation import DEFAULT_ROWS
from emberline.export.forget.ledger import Ledger
from emberline.export.formats.needs import require_needs
from emberline.export.full import full_source
from emberline.export.golden import GOLDEN_NAME
from emberline.export.keeping import locked, remove_old_versions, require_kept, tell_of_pin, tell_of_removed
from emberline.export.opened import DEFAULT_MEMORY, open_checkpoint
from emberline.export.program import write_programs
from emberline.export.program_options import ProgramOptions
from emberline.export.publish import Build, publish, start_build
from emberline.export.source import Progress, Source
from emberline.export.table_storage import StorageOptions
from emberline.export.tables import write_tables
from emberline.manifest import ArtifactManifest
from emberline.serving.engine import Engine
from emberline.serving.versions import pinned_version

_PACKAGES = ("torch", "torchrec", "fbgemm-gpu-cpu", "fbgemm-gpu", "numpy", "safetensors", "onnx", "onnxscript", "onnxruntime")


def export_model(
    checkpoint: Path | str,
    models_dir: Path | str,
    name: str,
    format: str | Sequence[str] = "torchscript",
    quantize: str | Sequence[str] = (),
    parity_rows: Path | str | None = None,
    version: int | None = None,
    progress: Progress | None = None,
    unknown: Sequence[str] = (),
    keep: int | None = None,
    precision: str = "fp32",
    full: bool = False,
    device: str = "cpu",
    memory: int = DEFAULT_MEMORY,
    tower: str = "",
    quality_rows: int = DEFAULT_ROWS,
    max_auc_drop: float | None = None,
    tile: bool = False,
    memory_budget: int | None = None,
    forget_key: Path | None = None,
) -> Path:
    """Write, check and publish an artifact of a trained model.

    Args:
        checkpoint: a `step-N` folder, or a run's folder, of which the newest complete step is taken.
        models_dir: the folder of all models; the artifact becomes `<models_dir>/<name>/<version>`.
        name: the model's name.
        format: of the programs: `torchscript`, `aoti` or `onnx`, or several of them.
        quantize: number types of tables: `TYPE` for all, `TABLE=TYPE` for one; one text or several. `fp32`, or nothing, leaves a table in the type
            that it was trained in. `auto` chooses a type for each table that is not named, for `memory_budget` or `max_auc_drop`.
        parity_rows: a data file to compare model and artifact on; by default the evaluation, else the training data that the config names.
        version: 1 or more; by default one more than the largest that is there.
        progress: called with one line for each step.
        unknown: what is answered for ids that own no row: `POLICY` for all features, `FEATURE=POLICY` for one, with the policies of `UnknownIds`.
        keep: how many of the newest versions stay; the oldest are removed once this one is published. None keeps all.
        precision: number type of the matrix products of the programs that give outputs: `fp32`, `bf16` or `fp16`.
        full: also write programs of the whole model over rows of tables, with the tables inside.
        device: what `aoti` compiles for: `cpu` or `cuda`.
        memory: bytes that blocks of tables may take together, beside the model without its tables and the maps of raw ids.
        tower: the part of the model to export, such as `user` or `item`: its features, tables and output, and no others. Empty for all of it.
        quality_rows: rows that the trained model's metrics and the artifact's are taken on, at most, where a table is stored in another type; of
            `parity_rows`, else of the config's evaluation data. 0 for no metrics.
        max_auc_drop: by how much an AUC may fall; None for any.
        tile: also write programs for tiled requests, which reckon once for each user what is the user's alone.
        memory_budget: bytes that rows of tables and the index of their raw ids may take: number types are chosen, those that harm least.
        forget_key: the key of the model's list of forgotten ids, which are left out; None for the one in the model's folder.

    Returns:
        The published folder.

    Raises:
        CheckpointError: the checkpoint is missing, incomplete or damaged, or its model has no such tower.
        ExportError: an option is not supported or names what is not there, the model cannot be exported, or the version is taken: nothing is
            published.
        ParityError: the artifact answers otherwise than the trained model with its tables as they are stored; nothing was published.
        QualityError: an AUC falls by more than `max_auc_drop`; nothing was published.
        DataError: a row of the parity data cannot be read.
        MissingDependencyError: a format needs a package that is not installed.
    """
    tell = progress or (lambda line: None)
    require_kept(keep)
    forgotten = Ledger.read(Path(models_dir) / name, forget_key)
    options = ProgramOptions.of(format, precision=precision, full=full, device=device, tile=tile)
    require_needs(options.formats)
    types = [quantize] if isinstance(quantize, str) else quantize
    storage = StorageOptions(quantize=types, quality_rows=quality_rows, max_auc_drop=max_auc_drop, memory_budget=memory_budget)
    with open_checkpoint(Path(checkpoint), tower) as opened:
        tell(f"checkpoint {opened.trained.path} (step {opened.trained.step})" + (f", tower {tower}" if tower else ""))
        options.require_sides(opened.trained.model.schema())
        source = Source.of(opened, unknown, parity_rows, memory, storage, tell=tell, forgotten=forgotten)
        with start_build(Path(models_dir), name, version) as build:
            manifest = _build(build, source, name, options, tell)
            with locked(build.model_dir):
                forgotten.require_unchanged()
                path = publish(build, replace(manifest, tower=tower))
    _finish(path, keep, tell)
    return path


def _finish(path: Path, keep: int | None, tell: Progress) -> None:
    """Tell of what was published, and remove what is not to be kept."""
    tell(f"published {path}")
    tell_of_pin(pinned_version(path.parent), int(path.name), tell)
    if keep is not None:
        tell_of_removed(remove_old_versions(path.parent, keep, int(path.name)), tell)


def _build(build: Build, source: Source, name: str, options: ProgramOptions, tell: Progress) -> ArtifactManifest:
    """Fill the hidden folder and let it pass the gate; returns the manifest, complete but for the version."""
    model, root = source.trained.model, build.path
    tables, files = write_tables(source.tables, source.remaps, root, tell)
    schema = source.schema
    programs = write_programs(model, root, options, tell, more=full_source(model, schema, source.tables, options))
    draft = ArtifactManifest(
        name=name,
        version=build.version or 1,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        schema=schema,
        tables=tables,
        programs=programs,
        golden=GOLDEN_NAME,
        parity={},
        versions=package_versions(),
        files=files,
    )

    def opened(format: str) -> Engine:
        return Engine.open(root, verify=False, format=format, device=options.device_of(format), tables="disk")

    return source.complete(root, draft, options.formats, opened, tell)


def package_versions() -> dict[str, str]:
    """Versions of what an artifact was made with, by package."""
    found = {"python": platform.python_version(), "emberline": emberline.__version__}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
