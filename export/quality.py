"""The quantisation report: what storing tables in other number types costs, in numbers of the tables and of the model's own metrics."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emberline.errors import QualityError
from emberline.export.autopilot.report import TypeChoice
from emberline.export.table_errors import TableQuality
from emberline.serving.quantized import BITS
from emberline.train.job_log import finite

JSON_NAME = "quality.json"
MARKDOWN_NAME = "quality.md"
AUC = "auc"
_WIDER = {"int4": "int8", "int8": "fp16", "bf16": "fp32", "fp16": "fp32"}


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Metrics of the trained model, and of the artifact as an engine answers with it, on the same rows.

    Args:
        data: the files.
        rows: how many rows of them.
        trained: numbers by name; NaN where one is not defined.
        artifact: the same, of the artifact.
        missing: why there are no numbers; empty where there are.
        note: what must be known to read them.
    """

    data: str = ""
    rows: int = 0
    trained: Mapping[str, float]
    artifact: Mapping[str, float]
    missing: str = ""
    note: str = ""

    @property
    def change(self) -> dict[str, float]:
        """By how much each number is larger in the artifact."""
        return {name: self.artifact[name] - number for name, number in self.trained.items()}

    @property
    def auc_drops(self) -> dict[str, float]:
        """By how much each AUC is smaller in the artifact: that of the task, or of each of several."""
        return {name: -number for name, number in self.change.items() if is_auc(name)}

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data; None for what is not defined."""
        if self.missing:
            return {"missing": self.missing}
        numbers = {"trained": finite(self.trained), "artifact": finite(self.artifact), "change": finite(self.change)}
        return {"data": self.data, "rows": self.rows, **numbers, **({"note": self.note} if self.note else {})}


def no_evaluation(why: str) -> Evaluation:
    """There are no numbers, and why."""
    return Evaluation(trained={}, artifact={}, missing=why)


def is_auc(metric: str) -> bool:
    """Whether a metric of that name is the AUC of a task."""
    return metric == AUC or metric.startswith(AUC + "_")


@dataclass(frozen=True)
class QualityReport:
    """The whole report.

    Args:
        tables: each table of the model.
        evaluation: of the model.
        choice: how the types were chosen, where they were.
    """

    tables: Sequence[TableQuality]
    evaluation: Evaluation
    choice: TypeChoice | None = None

    @property
    def changed(self) -> list[TableQuality]:
        """The tables that are stored in another type than they were trained in."""
        return [table for table in self.tables if table.is_changed]

    @property
    def bytes_trained(self) -> int:
        """Of all tables' rows, as they were trained."""
        return sum(table.bytes_trained for table in self.tables)

    @property
    def bytes_stored(self) -> int:
        """Of all tables' rows, as they are stored."""
        return sum(table.bytes_stored for table in self.tables)

    def summary(self) -> dict[str, Any]:
        """What the manifest tells: sizes, the largest errors, and the metrics."""
        changed = self.changed
        return {
            "bytes_trained": self.bytes_trained,
            "bytes_stored": self.bytes_stored,
            "max_abs_error": max((table.max_abs_error for table in changed), default=0.0),
            "min_cosine": min((table.min_cosine for table in changed), default=1.0),
            "evaluation": self.evaluation.to_dict(),
        }

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        chosen = {} if self.choice is None else {"choice": self.choice.to_dict()}
        return {"tables": [table.to_dict() for table in self.tables], **self.summary(), **chosen}

    def to_lines(self) -> list[str]:
        """The report for a terminal."""
        first, *rest = summary_lines(self.summary())
        lines = [first]
        for one in self.changed:
            lines.append(f"  {one.table}: {one.trained} as {one.stored}, {_errors(one)}")
            if one.bytes_stored >= one.bytes_trained:
                sizes = f"{one.bytes_stored:,} bytes instead of {one.bytes_trained:,}"
                why = f"rows of {one.dim} are too short" if one.stored in BITS else f"{one.trained} takes as much"
                lines.append(f"    it gets no smaller, {sizes}: {why}; --quantize {one.table}=fp32 leaves it as it is")
        return [*lines, *rest]

    def to_markdown(self) -> str:
        """The report as a page."""
        sizes = ("table", "trained", "stored", "rows", "dim", "bytes trained", "bytes stored")
        errors = ("largest error", "mean squared error", "relative error", "mean cosine", "least cosine", "in row")
        rows = [
            (
                *(
                    one.table.replace("|", "\\|"),
                    one.trained,
                    one.stored,
                    f"{one.rows:,}",
                    str(one.dim),
                    f"{one.bytes_trained:,}",
                    f"{one.bytes_stored:,}",
                ),
                *(f"{number:.3g}" for number in (one.max_abs_error, one.mean_squared_error, one.relative_error)),
                *(f"{one.mean_cosine:.7f}", f"{one.min_cosine:.7f}", str(one.min_cosine_row) if one.is_changed else "-"),
            )
            for one in self.tables
        ]
        share = _share(self.bytes_stored, self.bytes_trained)
        lines = ["# Number types of the tables", "", f"{self.bytes_stored:,} bytes, {share} of the {self.bytes_trained:,} that were trained.", ""]
        lines += [*_markdown_table((*sizes, *errors), rows), ""]
        if self.choice is not None:
            first, *reasons = self.choice.to_lines()
            lines += ["## Why these types", "", first[0].upper() + first[1:] + ".", "", *(f"- {line.strip()}" for line in reasons), ""]
        lines += ["## The model's metrics", ""]
        evaluation = self.evaluation
        if evaluation.missing:
            return "\n".join([*lines, f"Not compared: {evaluation.missing}.", ""])
        lines += [f"{evaluation.rows:,} rows of `{evaluation.data}`.{' ' + evaluation.note if evaluation.note else ''}", ""]
        numbers = [
            (name, f"{old:.6g}", f"{evaluation.artifact[name]:.6g}", f"{evaluation.change[name]:+.2g}") for name, old in evaluation.trained.items()
        ]
        return "\n".join([*lines, *_markdown_table(("metric", "as trained", "as stored", "change"), numbers), ""])

    def write(self, root: Path) -> list[str]:
        """Write `quality.json` and `quality.md` below `root`; returns their names."""
        (root / JSON_NAME).write_text(json.dumps(self.to_dict(), indent=1) + "\n", encoding="utf-8")
        (root / MARKDOWN_NAME).write_text(self.to_markdown(), encoding="utf-8")
        return [JSON_NAME, MARKDOWN_NAME]

    def require_auc(self, most: float) -> None:
        """Refuse an artifact that tells good from bad less well.

        Args:
            most: by how much an AUC may be smaller.

        Raises:
            QualityError: one is smaller by more, or is not defined; tells the tables' errors, and which one to keep wider.
        """
        if not self.evaluation.auc_drops:
            raise QualityError(f"--max-auc-drop needs an AUC, and there is none: {self.evaluation.missing}")
        for name, drop in self.evaluation.auc_drops.items():
            if math.isnan(drop):
                raise QualityError(f"{name} is not defined on {self.evaluation.rows} rows of {self.evaluation.data}: its labels are of one kind only")
            if drop > most:
                before, after = self.evaluation.trained[name], self.evaluation.artifact[name]
                told = f"{name} falls by {drop:.3g}, from {before:.6g} to {after:.6g}, by more than --max-auc-drop {most:g}"
                raise QualityError(f"{told}{self._advice()}")

    def _advice(self) -> str:
        """The tables' errors, the largest first, and what to do about it."""
        worst_first = sorted(self.changed, key=lambda one: one.relative_error, reverse=True)
        if not worst_first:
            return "; all tables are stored as they were trained"
        errors = "; ".join(f"{one.table} ({one.stored}): {_errors(one)}" for one in worst_first)
        worst = worst_first[0]
        return f". Errors by table: {errors}. Keep the first of them wider: --quantize {worst.table}={_WIDER[worst.stored]}"


def summary_lines(summary: Mapping[str, Any]) -> list[str]:
    """What `QualityReport.summary` tells, for a terminal."""
    stored, trained, evaluation = summary["bytes_stored"], summary["bytes_trained"], summary["evaluation"]
    errors = f"largest error {summary['max_abs_error']:.3g}, least cosine of a row {summary['min_cosine']:.6f}"
    lines = [f"rows of tables: {stored:,} bytes, {_share(stored, trained)} of {trained:,} as trained; {errors}"]
    if "missing" in evaluation:
        return [*lines, f"metrics as trained and as stored were not compared: {evaluation['missing']}"]
    note = f" ({evaluation['note']})" if "note" in evaluation else ""
    lines.append(f"metrics as trained and as stored, of {evaluation['rows']:,} rows of {evaluation['data']}{note}")
    for name, change in evaluation["change"].items():
        before, after = evaluation["trained"][name], evaluation["artifact"][name]
        lines.append(f"  {name}: " + ("not defined on these rows" if change is None else f"{before:.6g}, {after:.6g} ({change:+.2g})"))
    return lines


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "100 %"


def _errors(one: TableQuality) -> str:
    relative = f"largest error {one.max_abs_error:.3g}, {100 * one.relative_error:.2g} % of its size"
    return f"{relative}, cosine {one.mean_cosine:.6f} on average and {one.min_cosine:.6f} at least (row {one.min_cosine_row})"


def _markdown_table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return ["| " + " | ".join(row) + " |" for row in (heading, ["---"] * len(heading), *rows)]
