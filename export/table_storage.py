"""How an artifact's tables are stored, what that costs, and how much it may cost."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from emberline.encoding import EncodedColumns
from emberline.errors import ParityError, RequestError
from emberline.export.answers import WantedAnswers
from emberline.export.autopilot.options import Goal
from emberline.export.autopilot.pilot import choose_types
from emberline.export.autopilot.report import TypeChoice
from emberline.export.evaluation import DEFAULT_ROWS, EvaluationPlan
from emberline.export.number_types import is_auto, read_fixed_types, read_number_types
from emberline.export.quality import QualityReport
from emberline.export.row_source import RowSource
from emberline.export.table_errors import TableErrors
from emberline.schema import TableSpec
from emberline.serving.encoded import pack_encoded
from emberline.serving.engine import Engine
from emberline.train.checkpoint import Trained
from emberline.train.data import batch_from_encoded


@dataclass(frozen=True, kw_only=True)
class StorageOptions:
    """What a user says of it.

    Args:
        quantize: as `read_number_types` takes it.
        quality_rows: rows that metrics are taken on, at most.
        max_auc_drop: by how much an AUC may be smaller than the trained model's; None for any.
        memory_budget: bytes that tables may take, for which number types are chosen; None for any.
    """

    quantize: Sequence[str] = ()
    quality_rows: int = DEFAULT_ROWS
    max_auc_drop: float | None = None
    memory_budget: int | None = None

    @property
    def goal(self) -> Goal | None:
        """For what number types are to be chosen; None where they are given.

        Raises:
            ExportError: they are to be chosen, but not for what.
        """
        if not is_auto(self.quantize) and self.memory_budget is None:
            return None
        return Goal(memory_budget=self.memory_budget, max_auc_drop=self.max_auc_drop)


@dataclass(frozen=True, eq=False)
class TableStorage:
    """The number type of each table, and what the report about them is made of.

    Args:
        types: by table.
        errors: by table: takes in its rows as they are written.
        evaluation: which rows metrics are taken on.
        choice: how the types were chosen, where they were.
    """

    types: Mapping[str, str]
    errors: Mapping[str, TableErrors]
    evaluation: EvaluationPlan
    choice: TypeChoice | None = None

    @classmethod
    def of(
        cls,
        trained: Trained,
        tables: Sequence[TableSpec],
        rows: RowSource,
        options: StorageOptions,
        parity_rows: str | None,
        tell: Callable[[str], None] = lambda line: None,
    ) -> Self:
        """The storage of a model's tables.

        Args:
            trained: the model.
            tables: of it, with as many rows as `rows` has.
            rows: of them.
            options: what was asked for.
            parity_rows: data for metrics; None for the config's.
            tell: takes a line for each part of the work, where types are chosen.

        Raises:
            CheckpointError: types are to be chosen, and a table cannot be read.
            DataError: the same of a row of the data.
            ExportError: an option names what is not there, or makes no sense for this model, or there are no types as they are asked for.
        """
        goal, choice = options.goal, None
        evaluation = EvaluationPlan.of(trained, parity_rows, options.quality_rows, options.max_auc_drop)
        types = read_number_types(tables, options.quantize) if goal is None else read_fixed_types(tables, options.quantize)
        if goal is not None:
            choice = choose_types(trained, tables, rows, evaluation, goal, types, tell)
            types |= {table: candidate.type for table, candidate in choice.chosen.items()}
            for line in choice.to_lines():
                tell(line)
        errors = {spec.name: TableErrors(spec, types[spec.name], rows.spare_rows(spec.name)) for spec in tables}
        return cls(types, errors, evaluation, choice)

    def report(self, trained: Trained, rows: RowSource, wanted: WantedAnswers, engine: Engine) -> QualityReport | None:
        """What the storage costs, once all tables are written; None where they are stored as they were trained and no limit is set.

        Args:
            trained: its model reads its tables by `rows`.
            rows: of the tables.
            wanted: tells which ids the artifact refuses; they are left out of what it is asked.
            engine: the artifact.

        Raises:
            DataError: a row of the data cannot be read.
            QualityError: an AUC is smaller by more than the limit.
        """
        model, schema = trained.model, trained.model.schema()
        tables = [errors.result() for errors in self.errors.values()]
        limit = self.evaluation.max_auc_drop
        if limit is None and self.choice is None and not any(table.is_changed for table in tables):
            return None

        def as_trained(encoded: EncodedColumns) -> Mapping[str, Tensor]:
            with rows.stored_as({}), torch.no_grad():
                outputs: Mapping[str, Tensor] = model(batch_from_encoded(trained.features, encoded))
            return outputs

        def as_stored(encoded: EncodedColumns) -> Mapping[str, Tensor]:
            request = pack_encoded(schema, encoded)
            if wanted.refused(encoded):
                _, request = wanted.without_refused(encoded, request)
            try:
                return engine.predict(request)
            except RequestError as error:
                raise ParityError(f"{self.evaluation.data}: training reads these rows, but the artifact refuses them: {error}") from error

        report = QualityReport(tables, self.evaluation.evaluate(trained, as_trained, as_stored), self.choice)
        if limit is not None:
            report.require_auc(limit)
        return report
