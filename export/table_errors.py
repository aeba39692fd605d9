"""How far the rows of a table as they are stored are from those that were trained: gathered block by block, no table is ever whole in memory."""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from emberline.schema import TableSpec
from emberline.serving.quantized import stored_bytes


@dataclass(frozen=True, kw_only=True)
class TableQuality:
    """One table as it was trained, and as it is stored.

    Args:
        table: its name.
        trained: the number type that it was trained in.
        stored: the number type that it is stored in.
        rows: trained rows; those that unknown ids read besides, and spare ones, are not looked at.
        dim: numbers of each.
        bytes_trained: of the rows, in the type that they were trained in.
        bytes_stored: of the rows, in the type that they are stored in.
        max_abs_error: the largest absolute difference of a number.
        mean_squared_error: over all numbers.
        relative_error: the root of the sum of squared differences over that of squared numbers; 0 where all are 0.
        mean_cosine: of a trained row and what is stored, over all rows; 1 for two rows of zeros, 0 where only one of them is.
        min_cosine: the least of them.
        min_cosine_row: the first row that has it.
    """

    table: str
    trained: str
    stored: str
    rows: int
    dim: int
    bytes_trained: int
    bytes_stored: int
    max_abs_error: float = 0.0
    mean_squared_error: float = 0.0
    relative_error: float = 0.0
    mean_cosine: float = 1.0
    min_cosine: float = 1.0
    min_cosine_row: int = 0

    @property
    def is_changed(self) -> bool:
        """Whether it is stored in another type than it was trained in."""
        return self.trained != self.stored

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        return asdict(self)


class TableErrors:
    """Takes in a table's rows in order, as they were trained and as they are stored; all sums are in float64.

    Args:
        spec: the table as it was trained.
        stored: the number type that it is stored in.
        spare: how many of its rows are zeros that no id owns: they do not count as rows.
    """

    def __init__(self, spec: TableSpec, stored: str, spare: int = 0) -> None:
        self._spec, self._stored, self._spare = spec, stored, spare
        self._rows = 0
        self._largest = self._squares = self._size = self._cosines = 0.0
        self._worst, self._worst_row = 2.0, 0

    def add(self, trained: Tensor, found: Tensor) -> None:
        """Take in the next rows.

        Args:
            trained: [n, dim], of any float type.
            found: what is stored of them, decoded: float32 [n, dim].
        """
        if not trained.shape[0]:
            return
        wanted = trained.double()
        gap = found.double().sub_(wanted)
        squares, sizes = torch.linalg.vecdot(gap, gap), torch.linalg.vecdot(wanted, wanted)
        cosines = _cosines(sizes, torch.linalg.vecdot(wanted, gap), squares)
        self._largest = max(self._largest, gap.abs_().max().item())
        self._squares += squares.sum().item()
        self._size += sizes.sum().item()
        self._cosines += cosines.sum().item()
        worst = int(cosines.argmin())
        if cosines[worst].item() < self._worst:
            self._worst, self._worst_row = cosines[worst].item(), self._rows + worst
        self._rows += trained.shape[0]

    def result(self) -> TableQuality:
        """All that was found."""
        spec, stored = self._spec, self._stored
        spare = self._spare * (self._rows // max(1, spec.rows))  # as often as all rows were taken in; each added no error, and a cosine of 1
        rows = self._rows - spare
        numbers = max(1, rows * spec.dim)
        return TableQuality(
            table=spec.name,
            trained=spec.dtype,
            stored=stored,
            rows=spec.rows - self._spare,
            dim=spec.dim,
            bytes_trained=stored_bytes(spec.rows, spec.dim, spec.dtype),
            bytes_stored=stored_bytes(spec.rows, spec.dim, stored),
            max_abs_error=self._largest,
            mean_squared_error=self._squares / numbers,
            relative_error=(self._squares / self._size) ** 0.5 if self._size else 0.0,
            mean_cosine=(self._cosines - spare) / rows if rows else 1.0,
            min_cosine=min(self._worst, 1.0),
            min_cosine_row=self._worst_row,
        )


def _cosines(wanted: Tensor, across: Tensor, gap: Tensor) -> Tensor:
    """The cosine of each row w and the row w + g, [n], at most 1, of their products w w, w g and g g, float64 [n] each."""
    found = (wanted + 2 * across + gap).clamp_(min=0)
    both = (wanted * found).sqrt_()
    cosines = ((wanted + across) / both.masked_fill(both == 0, 1)).clamp_(max=1)
    return torch.where(both > 0, cosines, (wanted == found).double())
