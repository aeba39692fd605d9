"""How an artifact's tables are stored, what that costs, and how much it may cost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from emberline.encoding import EncodedColumns
from emberline.errors import ParityError, RequestError
from emberline.export.answers import WantedAnswers
from emberline.export.evaluation import DEFAULT_ROWS, EvaluationPlan
from emberline.export.number_types import read_number_types
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
    """

    quantize: Sequence[str] = ()
    quality_rows: int = DEFAULT_ROWS
    max_auc_drop: float | None = None


@dataclass(frozen=True, eq=False)
class TableStorage:
    """The number type of each table, and what the report about them is made of.

    Args:
        types: by table.
        errors: by table: takes in its rows as they are written.
        evaluation: which rows metrics are taken on.
    """

    types: Mapping[str, str]
    errors: Mapping[str, TableErrors]
    evaluation: EvaluationPlan

    @classmethod
    def of(cls, trained: Trained, tables: Sequence[TableSpec], rows: RowSource, options: StorageOptions, parity_rows: str | None) -> Self:
        """The storage of a model's tables.

        Args:
            trained: the model.
            tables: of it, with as many rows as `rows` has.
            rows: of them.
            options: what was asked for.
            parity_rows: data for metrics; None for the config's.

        Raises:
            ExportError: an option names what is not there, or makes no sense for this model.
        """
        types = read_number_types(tables, options.quantize)
        errors = {spec.name: TableErrors(spec, types[spec.name], rows.spare_rows(spec.name)) for spec in tables}
        return cls(types, errors, EvaluationPlan.of(trained, parity_rows, options.quality_rows, options.max_auc_drop))

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
        if limit is None and not any(table.is_changed for table in tables):
            return None

        def as_trained(encoded: EncodedColumns) -> Mapping[str, Tensor]:
            with rows.as_trained(), torch.no_grad():
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

        report = QualityReport(tables, self.evaluation.evaluate(trained, as_trained, as_stored))
        if limit is not None:
            report.require_auc(limit)
        return report
