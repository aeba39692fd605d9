"""What the autopilot chose, and why, for people and for `quality.json`."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from emberline.export.autopilot.options import Candidate, Goal


@dataclass(frozen=True, kw_only=True)
class TypeChoice:
    """The choice for a whole model.

    Args:
        goal: what was asked for.
        rows: of data that the candidates were measured on; 0 where there were none.
        without_data: why there were none.
        index_bytes: of raw ids, part of the budget.
        fixed: tables that `--quantize` names, and their bytes.
        options: the candidates of each table, the first as it was trained.
        chosen: of these.
        auc_drop: the largest that was measured with the choice; None where it was not.
        next_drop: the largest that was measured with the next narrower choice; None where there is none, or it was not measured.
    """

    goal: Goal
    rows: int
    without_data: str = ""
    index_bytes: int
    fixed: Mapping[str, int]
    options: Mapping[str, Sequence[Candidate]]
    chosen: Mapping[str, Candidate]
    auc_drop: float | None = None
    next_drop: float | None = None

    @property
    def num_bytes(self) -> int:
        """Of all rows and of the index of raw ids."""
        return self.index_bytes + sum(self.fixed.values()) + sum(candidate.num_bytes for candidate in self.chosen.values())

    def why(self, table: str) -> str:
        """Why a table is stored as it is."""
        options, chosen = self.options[table], self.chosen[table]
        if len(options) == 1:
            return "no narrower type makes its rows smaller and can hold them"
        narrower = [one for one in options if one.num_bytes < chosen.num_bytes]
        saved = options[0].num_bytes - chosen.num_bytes
        told = f"saves {saved:,} bytes; {_cost(chosen)}" if saved else "stays as it was trained"
        if not narrower:
            return told
        one = narrower[0]
        return f"{told}; {one.type} would save {chosen.num_bytes - one.num_bytes:,} more, but {_cost(one)}"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        return {
            "memory_budget": self.goal.memory_budget,
            "max_auc_drop": self.goal.max_auc_drop,
            "bytes": self.num_bytes,
            "index_bytes": self.index_bytes,
            "rows": self.rows,
            "without_data": self.without_data,
            "auc_drop": self.auc_drop,
            "fixed": sorted(self.fixed),
            "tables": [
                {
                    "table": table,
                    "chosen": self.chosen[table].type,
                    "why": self.why(table),
                    "candidates": [
                        {
                            "type": one.type,
                            "bytes": one.num_bytes,
                            "relative_error": one.relative_error,
                            "output_change": None if math.isnan(one.output_change) else one.output_change,
                            "metrics": {name: None if math.isnan(number) else number for name, number in one.metrics.items()},
                        }
                        for one in options
                    ],
                }
                for table, options in self.options.items()
            ],
        }

    def to_lines(self) -> list[str]:
        """The choice for a terminal."""
        measured = f"measured on {self.rows:,} rows" if self.rows else f"by the errors of rows alone: {self.without_data}"
        budget = "" if self.goal.memory_budget is None else f" of a budget of {self.goal.memory_budget:,}"
        lines = [f"number types chosen for {self.num_bytes:,} bytes{budget}, {measured}"]
        if self.auc_drop is not None:
            further = "" if self.next_drop is None else f"; the next step narrower, {self.next_drop:.3g}"
            limit = "" if self.goal.max_auc_drop is None else f" (at most {self.goal.max_auc_drop:g} is allowed{further})"
            lines.append(f"  AUC falls by {self.auc_drop:.3g}{limit}")
        lines += [f"  {table}: {self.chosen[table].type}: {self.why(table)}" for table in self.options]
        return [*lines, *(f"  {table}: as --quantize says" for table in self.fixed)]


def _cost(one: Candidate) -> str:
    if math.isnan(one.output_change):
        return f"rows change by {100 * one.relative_error:.3g} % of their size"
    loss = [f"{name} {number:+.2g}" for name, number in one.metrics.items() if "loss" in name or name.startswith(("mse", "mean_squared"))][:1]
    return f"outputs change by {100 * one.output_change:.3g} % of their spread" + "".join(f", {text}" for text in loss)
