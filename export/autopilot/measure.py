"""What it costs to store each table narrower: the error of its rows, and what the trained model's answers and metrics come to."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from emberline.encoding import EncodedColumns
from emberline.export.autopilot.options import Candidate, narrower_types
from emberline.export.evaluation import EvaluationPlan
from emberline.export.row_source import RowSource
from emberline.export.table_errors import TableErrors
from emberline.schema import TableSpec
from emberline.serving.quantized import decode_rows, encode_rows, find_overflow, stored_bytes
from emberline.train.checkpoint import Trained
from emberline.train.data import batch_from_encoded

MOST_ROWS = 4096
"""Rows of data that each candidate is measured on, at most: how far answers move is much the same for any rows."""
_ERROR_BLOCKS, _ERROR_ROWS = 16, 4096
"""Rows of a table whose errors are looked at: blocks all over it."""


class Measurer:
    """Asks a trained model what it answers with tables in other types.

    Args:
        trained: its model reads its tables by `rows`.
        rows: of the tables.
        evaluation: which data, and what for.
    """

    def __init__(self, trained: Trained, rows: RowSource, evaluation: EvaluationPlan) -> None:
        self._trained, self._rows, self._evaluation = trained, rows, evaluation

    def candidates(self, tables: Sequence[TableSpec]) -> tuple[int, dict[str, list[Candidate]]]:
        """Every type that each table may have, the first as it was trained.

        Args:
            tables: that may be stored narrower.

        Returns:
            How many rows of data the model was asked about, and the candidates by table.

        Raises:
            CheckpointError: a table cannot be read.
            DataError: a row of the data cannot be read.
        """
        errors = {(spec.name, name): error for spec in tables for name in narrower_types(spec) if (error := self._error(spec, name)) is not None}
        rows, changes, metrics = self._answers([{table: name} for table, name in errors])
        found = {spec.name: [Candidate(type=spec.dtype, num_bytes=_bytes(spec, spec.dtype), output_change=0.0, metrics={})] for spec in tables}
        specs = {spec.name: spec for spec in tables}
        for place, ((table, name), error) in enumerate(errors.items()):
            found[table].append(
                Candidate(
                    type=name,
                    num_bytes=_bytes(specs[table], name),
                    relative_error=error,
                    output_change=changes[place].relative if rows else math.nan,
                    metrics={key: metrics[place + 1][key] - number for key, number in metrics[0].items()} if rows else {},
                )
            )
        return rows, found

    def metrics(self, choices: Sequence[Mapping[str, str]]) -> tuple[int, list[dict[str, float]]]:
        """The model's metrics with tables as they were trained, and with each of some choices of types, on all the rows that there are for it.

        Raises:
            DataError: a row of the data cannot be read.
        """
        return self._evaluation.measure(self._trained, lambda encoded: self._outputs(encoded, [{}, *choices]))

    def _answers(self, choices: Sequence[Mapping[str, str]]) -> "tuple[int, list[_Change], list[dict[str, float]]]":
        changes = [_Change() for _ in choices]
        if self._evaluation.missing or not choices:
            return 0, changes, []

        def answer(encoded: EncodedColumns) -> Iterator[Mapping[str, Tensor]]:
            found = self._outputs(encoded, [{}, *choices])
            yield (trained := next(found))
            for change, outputs in zip(changes, found, strict=True):
                change.add(trained, outputs)
                yield outputs

        rows, metrics = self._evaluation.measure(self._trained, answer, MOST_ROWS)
        return rows, changes, metrics

    def _outputs(self, encoded: EncodedColumns, choices: Iterable[Mapping[str, str]]) -> Iterator[Mapping[str, Tensor]]:
        """The model's outputs with tables in other types; a table that is not named is as it was trained."""
        batch = batch_from_encoded(self._trained.features, encoded)
        with self._rows.remembering():
            for types in choices:
                with self._rows.stored_as(types), torch.no_grad():
                    outputs: Mapping[str, Tensor] = self._trained.model(batch)
                yield outputs

    def _error(self, spec: TableSpec, name: str) -> float | None:
        """The relative error of a table's rows in a type; None where it can't hold them."""
        errors, rows = TableErrors(spec, name), self._rows.rows(spec.name)
        starts = sorted({rows * place // _ERROR_BLOCKS for place in range(_ERROR_BLOCKS)})
        for start, stop in zip(starts, [*starts[1:], rows], strict=True):
            block = self._rows.take(spec.name, torch.arange(start, min(stop, start + _ERROR_ROWS)))
            stored = encode_rows(block, name)
            if find_overflow(stored, name) is not None:
                return None
            errors.add(block, decode_rows(stored, spec.dim, name))
        return errors.result().relative_error


@dataclass
class _Change:
    """Gathers by how much outputs differ, in float64, and how much they spread, number by number."""

    squares: dict[str, float] = field(default_factory=dict)
    sums: dict[str, tuple[int, float, float]] = field(default_factory=dict)

    def add(self, trained: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> None:
        for name, wanted in trained.items():
            if not wanted.is_floating_point():
                continue
            numbers = wanted.double()
            count, total, square = self.sums.get(name, (0, 0.0, 0.0))
            self.sums[name] = (count + numbers.numel(), total + numbers.sum().item(), square + numbers.square().sum().item())
            self.squares[name] = self.squares.get(name, 0.0) + (found[name].double() - numbers).square().sum().item()

    @property
    def relative(self) -> float:
        """Root of the mean, over outputs, of the mean squared change over the variance."""
        shares = []
        for name, (count, total, square) in self.sums.items():
            spread = max(0.0, square - total * total / count) if count else 0.0
            change = self.squares[name]
            shares.append(change / spread if spread else 0.0 if not change else math.inf)
        return math.sqrt(sum(shares) / len(shares)) if shares else 0.0


def _bytes(spec: TableSpec, name: str) -> int:
    return stored_bytes(spec.rows, spec.dim, name)
