"""From a checkpoint to a published artifact: the order of the work."""

import importlib.metadata
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

from torch import Tensor

import emberline
from emberline.encoding import EncodedColumns
from emberline.errors import ExportError, ParityError, RequestError
from emberline.export.answers import WantedAnswers
from emberline.export.cases import Case, odd_cases
from emberline.export.golden import GOLDEN_NAME, write_golden
from emberline.export.parity import ParityReport, run_gate
from emberline.export.program import write_programs
from emberline.export.publish import Build, publish, start_build
from emberline.export.remap import RemapParts, split_remaps
from emberline.export.rows import BATCH_ROWS, RealBatch, find_parity_rows, iterate_real_cases
from emberline.export.tables import write_tables
from emberline.export.unknown import UnknownPlan, plan_unknown
from emberline.manifest import ArtifactManifest, hash_file, hash_tree, write_manifest
from emberline.serving.engine import Engine
from emberline.serving.request import PackedRequest, pack_encoded
from emberline.train.checkpoint import Trained, load_trained

FORMATS = ("torchscript", "aoti", "onnx")
QUANTIZATIONS = ("fp32", "fp16", "bf16", "int8", "int4")
_SUPPORTED_FORMATS = ("torchscript",)
_SUPPORTED_QUANTIZATIONS = ("fp32",)
_PACKAGES = ("torch", "torchrec", "fbgemm-gpu-cpu", "fbgemm-gpu", "numpy", "safetensors")
_GOLDEN_ROWS = 8
_REAL_BATCHES = 16

Progress = Callable[[str], None]


def export_model(
    checkpoint: Path | str,
    models_dir: Path | str,
    name: str,
    format: str = "torchscript",
    quantize: str = "fp32",
    parity_rows: Path | str | None = None,
    version: int | None = None,
    progress: Progress | None = None,
    unknown: Sequence[str] = (),
) -> Path:
    """Write, check and publish an artifact of a trained model.

    Args:
        checkpoint: a `step-N` folder, or a run's folder, of which the newest complete step is taken.
        models_dir: the folder of all models; the artifact becomes `<models_dir>/<name>/<version>`.
        name: the model's name.
        format: of the programs; `torchscript`.
        quantize: of the tables; `fp32`, which leaves each table's number type as it is.
        parity_rows: a data file to compare model and artifact on; by default the evaluation, else the training data that the config names.
        version: 1 or more; by default one more than the largest that is there.
        progress: called with one line for each step.
        unknown: what is answered for ids that own no row: `POLICY` for all features, `FEATURE=POLICY` for one, with the policies of `UnknownIds`.

    Returns:
        The published folder.

    Raises:
        CheckpointError: the checkpoint is missing, incomplete or damaged.
        ExportError: an option is not supported or names what is not there, the model cannot be exported, or the version is taken: nothing is
            published.
        ParityError: the artifact answers otherwise than the trained model; nothing was published.
        DataError: a row of the parity data cannot be read.
    """
    tell = progress or (lambda line: None)
    _require_supported("format", format, FORMATS, _SUPPORTED_FORMATS)
    _require_supported("quantization", quantize, QUANTIZATIONS, _SUPPORTED_QUANTIZATIONS)
    trained = load_trained(Path(checkpoint))
    _require_no_sequences(trained)
    trained.model.eval()
    tell(f"checkpoint {trained.path} (step {trained.step})")
    remaps = split_remaps(trained.model)
    plan = plan_unknown(trained.model, remaps, unknown)
    data = find_parity_rows(trained.config, str(parity_rows) if parity_rows is not None else None)
    with start_build(Path(models_dir), name, version) as build:
        manifest = _build(build, _Source(trained, remaps, plan, data), name, tell)
        path = publish(build, manifest)
    tell(f"published {path}")
    return path


@dataclass(frozen=True, eq=False)
class _Source:
    """What an artifact is made of: the model, the maps of its raw ids, what unknown ids read, and the data of the parity gate (may be empty)."""

    trained: Trained
    remaps: Mapping[str, RemapParts]
    plan: UnknownPlan
    data: str

    @property
    def wanted(self) -> WantedAnswers:
        """What the artifact must answer."""
        return WantedAnswers(self.trained.model, self.plan)

    def batches(self, batch_rows: int) -> Iterator[RealBatch]:
        """Rows of data, if there are some."""
        return iterate_real_cases(self.trained.config.data, self.trained.features, self.data, batch_rows) if self.data else iter(())


def _build(build: Build, source: _Source, name: str, tell: Progress) -> ArtifactManifest:
    """Fill the hidden folder and let it pass the gate; returns the manifest, complete but for the version."""
    model, root = source.trained.model, build.path
    tables = write_tables(model, source.remaps, root, tell, source.plan.rows_of)
    programs = write_programs(model, root)
    tell(f"programs: {', '.join(f'{program.file} ({program.role})' for program in programs)}")
    made = _made_cases(source)
    write_golden(root, *_answered(source, made[0].encoded))
    draft = ArtifactManifest(
        name=name,
        version=build.version or 1,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        schema=source.plan.applied_to(model.schema()),
        tables=tables,
        programs=programs,
        golden=GOLDEN_NAME,
        parity={},
        versions=package_versions(),
        files=hash_tree(root),
    )
    # So far the golden sample has no rows: where answers differ, the gate says more than a failed replay.
    write_manifest(root, draft.to_dict())
    report = _pass_gate(source, root, made)
    write_golden(root, *_answered(source, _golden_rows(source, made)))
    parity = {"checkpoint_step": source.trained.step, "rows_from": source.data, **report.to_dict()}
    manifest = replace(draft, parity=parity, files={**draft.files, GOLDEN_NAME: hash_file(root / GOLDEN_NAME)})
    write_manifest(root, manifest.to_dict())
    Engine.open(root)
    for line in report.to_lines():
        tell(line)
    return manifest


def _made_cases(source: _Source) -> list[Case]:
    known = {table: parts.raw_ids.numpy() for table, parts in source.remaps.items()}
    starts = {table: parts.fallback_starts.numpy() for table, parts in source.remaps.items()}
    return odd_cases(source.trained.model.schema(), known, starts)


def _golden_rows(source: _Source, made: list[Case]) -> EncodedColumns:
    """A few real rows, or a made case where there is no data."""
    real = next(source.batches(_GOLDEN_ROWS), None)
    return (real.case if real is not None else next(case for case in made if case.name == "mixed lengths")).encoded


def _answered(source: _Source, encoded: EncodedColumns) -> tuple[PackedRequest, dict[str, Tensor], dict[str, Tensor]]:
    """A request, without ids that are refused, and the outputs and group tensors that it must get."""
    request = pack_encoded(source.trained.model.schema(), encoded.sparse, encoded.dense, encoded.num_rows)
    if source.wanted.refused(encoded):
        encoded, request = source.wanted.without_refused(encoded, request)
    return request, *source.wanted(encoded)


def _pass_gate(source: _Source, root: Path, made: list[Case]) -> ParityReport:
    engine = Engine.open(root, verify=False)
    batches = islice(source.batches(BATCH_ROWS), _REAL_BATCHES)
    return run_gate(source.trained.model, engine, source.wanted, made, ((batch.case, _encode_rows(engine, batch)) for batch in batches))


def _encode_rows(engine: Engine, batch: RealBatch) -> PackedRequest:
    """The request that the engine's own encoder makes of raw rows."""
    try:
        return engine.encode_rows(batch.rows)
    except RequestError as error:
        raise ParityError(f"{batch.case.name}: training reads these rows, but the artifact refuses them: {error}") from error


def package_versions() -> dict[str, str]:
    """Versions of what an artifact was made with, by package."""
    found = {"python": platform.python_version(), "emberline": emberline.__version__}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _require_no_sequences(trained: Trained) -> None:
    names = [feature.name for feature in trained.features if feature.is_sequence]
    if names or trained.model.embedding_group.has_sequences:
        found = f"it has the sequence features {', '.join(names)}" if names else "it has sequence groups"
        raise ExportError(f"{trained.path}: models with sequences can be trained, but not exported yet; {found}")


def _require_supported(what: str, value: str, known: tuple[str, ...], supported: tuple[str, ...]) -> None:
    if value not in known:
        raise ExportError(f"unknown {what} {value!r}; known: {', '.join(known)}")
    if value not in supported:
        raise ExportError(f"{what} {value!r} is not supported yet; supported: {', '.join(supported)}")
