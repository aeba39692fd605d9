"""What an export is made of: a trained model, the maps of its raw ids, what unknown ids read, and rows to compare answers on."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Self, TypeVar

from emberline.delta_manifest import DeltaManifest
from emberline.errors import ExportError, ParityError, RequestError
from emberline.export.answers import WantedAnswers
from emberline.export.cases import Case, odd_cases_of
from emberline.export.forget.leaving_out import leave_out
from emberline.export.forget.ledger import Ledger
from emberline.export.golden import GOLDEN_NAME, Sample, write_golden
from emberline.export.opened import LEAST_MEMORY, OpenedCheckpoint
from emberline.export.parity import ParityReport, run_gate
from emberline.export.quality import QualityReport
from emberline.export.remap import dynamic_remaps
from emberline.export.row_source import RowSource
from emberline.export.rows import BATCH_ROWS, RealBatch, find_parity_rows, iterate_real_cases
from emberline.export.table_rows import TableRows
from emberline.export.table_storage import StorageOptions, TableStorage
from emberline.export.tiling import tiled_cases
from emberline.export.unknown import UnknownPlan, plan_unknown
from emberline.manifest import ArtifactManifest, hash_file, hash_tree, write_manifest
from emberline.schema import ModelSchema, TableKind, TableSpec
from emberline.serving.encoded import pack_encoded
from emberline.serving.engine import Engine
from emberline.serving.remap import RemapParts
from emberline.serving.request import PackedRequest
from emberline.train.checkpoint import Trained

_GOLDEN_ROWS = 8
_REAL_BATCHES = 16
Progress = Callable[[str], None]
Manifest = TypeVar("Manifest", ArtifactManifest, DeltaManifest)


@dataclass(frozen=True, eq=False)
class Source:
    """What an artifact or a delta is made of: the model, the maps of its raw ids, what unknown ids read, and the data of the parity gate.

    Args:
        opened: the checkpoint, its model in eval mode.
        remaps: the map of every table with raw ids.
        plan: what unknown ids read.
        data: files of rows; may be empty.
        memory: bytes that blocks of tables may take together.
        storage: how tables are stored.
    """

    opened: OpenedCheckpoint
    remaps: Mapping[str, RemapParts]
    plan: UnknownPlan
    data: str
    memory: int
    storage: TableStorage

    @classmethod
    def of(
        cls,
        opened: OpenedCheckpoint,
        unknown: Sequence[str],
        parity_rows: Path | str | None,
        memory: int,
        storage: StorageOptions,
        before: Mapping[str, RemapParts] | None = None,
        tell: Progress = lambda line: None,
        forgotten: Ledger | None = None,
    ) -> Self:
        """The source of an export.

        Args:
            opened: the checkpoint; its model is put into eval mode.
            unknown: as `plan_unknown` takes it.
            parity_rows: a data file; None for the one that the config names.
            memory: bytes that blocks of tables may take together.
            storage: how tables are to be stored.
            before: of tables that grow, the maps of an artifact that is to get a delta.
            tell: takes a line for each part of the work, where number types are chosen, and for each table that loses ids.
            forgotten: whose ids are left out; None for nobody's.

        Raises:
            CheckpointError: a table that grows is damaged.
            ExportError: an option names what is not there, or makes no sense for this model, or an artifact has no room for new ids.
            DataError: `parity_rows` is not there.
        """
        if memory < LEAST_MEMORY:
            raise ExportError(f"{memory} bytes of memory for rows of tables are too few: give at least {LEAST_MEMORY}")
        trained = opened.trained
        trained.model.eval()
        opened.rows.lay_over(before or {})
        remaps = leave_out(forgotten, trained.model, opened.rows, tell) | dynamic_remaps(trained.model, opened.rows)
        plan = plan_unknown(trained.model.schema(), opened.rows, remaps, unknown)
        given = str(parity_rows) if parity_rows is not None else None
        data = find_parity_rows(trained.config, given)
        stored = TableStorage.of(trained, _sized(trained.model.embedding_group.tables, opened.rows), opened.rows, storage, given, tell)
        opened.rows.store_as(stored.types)
        return cls(opened, remaps, plan, data, memory, stored)

    @property
    def trained(self) -> Trained:
        """What was trained."""
        return self.opened.trained

    @property
    def tables(self) -> list[TableRows]:
        """Every table as an artifact has it."""
        types, errors = self.storage.types, self.storage.errors
        return [
            TableRows(spec, self.opened.rows, self.memory, self.plan.rows_of(spec.name), types[spec.name], errors[spec.name])
            for spec in _sized(self.trained.model.embedding_group.tables, self.opened.rows)
        ]

    @property
    def schema(self) -> ModelSchema:
        """The model's description, as the artifact has it."""
        schema = self.trained.model.schema()
        return self.plan.applied_to(replace(schema, tables=tuple(_sized(schema.tables, self.opened.rows))))

    @property
    def wanted(self) -> WantedAnswers:
        """What the artifact must answer: what the trained model does with its tables as they are stored."""
        return WantedAnswers(self.trained.model, self.opened.rows, self.plan)

    def batches(self, batch_rows: int) -> Iterator[RealBatch]:
        """Rows of data, if there are some."""
        return iterate_real_cases(self.trained.config.data, self.trained.features, self.data, batch_rows) if self.data else iter(())

    def made_cases(self) -> list[Case]:
        """The odd requests of the parity gate; the first has no rows."""
        return odd_cases_of(self.trained.model.schema(), self.remaps)

    def complete(self, root: Path, draft: Manifest, formats: Sequence[str], open_engine: Callable[[str], Engine], tell: Progress) -> Manifest:
        """Let what was written pass the gate, and add its sample and its manifest.

        Args:
            root: holds tables and programs.
            draft: its manifest, without report; of its files those that were hashed while they were written, which are not read again.
            formats: of its programs; those of each pass the gate.
            open_engine: what answers with it; called with a format.
            tell: takes the report's lines.

        Returns:
            The manifest, complete.

        Raises:
            CheckpointError: a file of the checkpoint was changed.
            ParityError: the answers are not the trained model's.
            QualityError: storing the tables costs more than was allowed.
        """
        made = self.made_cases()
        # A sample without rows, for the draft: where answers differ, the gate says more than a failed replay.
        write_golden(root, self._answered(made[0]))
        written = draft.files
        draft = replace(draft, files=hash_tree(root, written))
        write_manifest(root, draft.to_dict())
        engines = {format: open_engine(format) for format in formats}
        reports: dict[str, ParityReport] = {format: self._pass_gate(engine, made) for format, engine in engines.items()}
        quality: QualityReport | None = self.storage.report(self.trained, self.opened.rows, self.wanted, engines[formats[0]])
        self._write_golden(root, made, tiled=any(report.rows["tiled"] for report in reports.values()))
        parity = {
            "checkpoint_step": self.trained.step,
            "rows_from": self.data,
            **reports[formats[0]].to_dict(),
            "formats": {format: report.of_format() for format, report in reports.items()},
        }
        added = [GOLDEN_NAME, *(quality.write(root) if quality is not None else [])]
        files = {**draft.files, **{name: hash_file(root / name) for name in added}}
        manifest = replace(draft, parity=parity, quality=quality.summary() if quality is not None else {}, files=files)
        write_manifest(root, manifest.to_dict())
        for format in formats:
            open_engine(format)
        if hash_tree(root, written) != manifest.files:
            raise ExportError(f"{root}: a file changed while it was checked; export again")
        self.opened.require_whole()
        for line in [line for report in reports.values() for line in report.to_lines()] + (quality.to_lines() if quality is not None else []):
            tell(line)
        return manifest

    def _write_golden(self, root: Path, made: Sequence[Case], *, tiled: bool) -> None:
        """The sample: a few real rows, or a made case where there is no data; and the same rows as those of several users, if wanted."""
        real = next(self.batches(_GOLDEN_ROWS), None)
        case = real.case if real is not None else next(case for case in made if case.name == "mixed lengths")
        write_golden(root, self._answered(case), self._answered_tiled(case) if tiled else None)

    def _pass_gate(self, engine: Engine, made: Sequence[Case]) -> ParityReport:
        """Compare an engine's answers with the model's, as `run_gate` does."""
        batches = islice(self.batches(BATCH_ROWS), _REAL_BATCHES)
        return run_gate(self.trained.model, engine, self.wanted, made, ((batch.case, _encode_rows(engine, batch)) for batch in batches))

    def _answered(self, case: Case) -> Sample:
        """The request of a case, without ids that are refused, and the answers that it must get."""
        encoded = self.wanted.answerable(case.encoded)
        return Sample(pack_encoded(self.trained.model.schema(), encoded), *self.wanted(encoded))

    def _answered_tiled(self, case: Case) -> Sample:
        """The same of its rows as those of several users."""
        tiled = next(tiled_cases(self.trained.model.schema(), Case(case.name, self.wanted.answerable(case.encoded))))
        return Sample(tiled.request, *self.wanted(tiled.untiled.encoded))


def _sized(tables: Sequence[TableSpec], rows: RowSource) -> list[TableSpec]:
    """Tables as they were trained; those that grow not with the most rows that they may have, but with those that are there."""
    return [replace(table, rows=rows.rows(table.name)) if table.kind is TableKind.DYNAMIC else table for table in tables]


def _encode_rows(engine: Engine, batch: RealBatch) -> PackedRequest:
    """The request that the engine's own encoder makes of raw rows."""
    try:
        return engine.encode_rows(batch.rows)
    except RequestError as error:
        raise ParityError(f"{batch.case.name}: training reads these rows, but the artifact refuses them: {error}") from error
