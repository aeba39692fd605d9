"""What a user asks of the autopilot."""

import math
from dataclasses import dataclass

from emberline.errors import ExportError
from emberline.schema import TableKind, TableSpec
from emberline.serving.quantized import stored_bytes

NARROWER = ("fp16", "int8", "int4")
"""The types that it picks from, beside the one that a table was trained in."""
BYTES_AN_ID = 23
"""Of the index of raw ids."""


@dataclass(frozen=True, kw_only=True)
class Goal:
    """What the choice must hold to.

    Args:
        memory_budget: bytes that rows of all tables and the index of their raw ids may take; None for any.
        max_auc_drop: by how much an AUC may be smaller than the trained model's; None for any.
    """

    memory_budget: int | None = None
    max_auc_drop: float | None = None

    def __post_init__(self) -> None:
        if self.memory_budget is None and self.max_auc_drop is None:
            raise ExportError("--quantize auto needs to know what for: give --memory-budget, such as 4GiB, or --max-auc-drop, such as 0.0005")
        if self.memory_budget is not None and self.memory_budget <= 0:
            raise ExportError(f"--memory-budget must be more than nothing, not {self.memory_budget}")


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A number type that a table may be stored in, and what that costs.

    Args:
        type: the number type.
        num_bytes: of the table's rows.
        relative_error: of the rows, as `TableQuality` has it.
        output_change: root of the mean squared change of the model's outputs, in units of their spread over the rows; NaN where it was not measured.
        metrics: by how much each of the model's metrics is larger; empty where it was not measured.
    """

    type: str
    num_bytes: int
    relative_error: float = 0.0
    output_change: float = math.nan
    metrics: dict[str, float]

    @property
    def harm(self) -> float:
        """What it costs: the mean squared change of outputs, and so little of the rows' error that it counts where no output tells."""
        errors = self.relative_error**2
        return errors if math.isnan(self.output_change) else self.output_change**2 + 1e-9 * errors


def index_bytes(tables: list[TableSpec]) -> int:
    """What the index of raw ids takes, at most."""
    return sum(BYTES_AN_ID * spec.rows for spec in tables if spec.kind is not TableKind.STATIC)


def narrower_types(spec: TableSpec) -> list[str]:
    """The types in which a table's rows take fewer bytes than as they were trained, the widest first."""
    before = stored_bytes(1, spec.dim, spec.dtype)
    found = [name for name in NARROWER if stored_bytes(1, spec.dim, name) < before]
    return [
        name for place, name in enumerate(found) if stored_bytes(1, spec.dim, name) not in {stored_bytes(1, spec.dim, one) for one in found[:place]}
    ]
