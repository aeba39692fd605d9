"""How far the answers of two versions are apart, in float64, summed up over many requests."""

import heapq
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from emberline.errors import ServingError

Floats = npt.NDArray[np.float64]
Answers = Mapping[str, Tensor]


@dataclass(eq=False, slots=True)
class _OfOutput:
    """What was found of one output so far."""

    num_values: int = 0
    num_broken: int = 0
    """Values that are no finite number in one answer, and not the same in the other: they are in no maximum and no mean."""
    most: float = 0.0
    total: float = 0.0
    num_vectors: int = 0
    cosines: float = 0.0

    def as_json(self) -> dict[str, Any]:
        return {
            "values": self.num_values,
            "max_difference": self.most,
            "mean_difference": self.total / self.num_values if self.num_values else 0.0,
            "mean_cosine": self.cosines / self.num_vectors if self.num_vectors else None,
            "not_comparable": self.num_broken,
        }


@dataclass(frozen=True, slots=True)
class Moved:
    """A row and how far its answers moved: the greatest difference of all values, infinite where one cannot be compared."""

    difference: float
    row: int


class Drift:
    """Sums of differences, by output.

    Args:
        num_kept: how many of the rows that moved most are kept, with what is told of them.
    """

    def __init__(self, num_kept: int) -> None:
        self._outputs: dict[str, _OfOutput] = {}
        self._num_kept, self._turns = num_kept, itertools.count()
        self._kept: list[tuple[float, int, Mapping[str, Any]]] = []
        """A heap: the row that moved least is the first; of rows that moved as far, the one that came last."""

    def add(self, served: Answers, candidate: Answers, num_rows: int) -> list[Moved]:
        """Take in one request's answers.

        Args:
            served: float tensors, whose first dimension mostly is the request's rows; others are left out.
            candidate: the same names.
            num_rows: of the request.

        Returns:
            The rows that moved at all and would be among those that are kept, the farthest first; `keep` takes them.

        Raises:
            ServingError: an answer is missing or has another shape. Nothing was taken in.
        """
        pairs = {name: _pair(name, answer, candidate.get(name)) for name, answer in served.items() if answer.is_floating_point()}
        moved = np.zeros(num_rows)
        for name, (ours, theirs) in pairs.items():
            difference = self._add(name, ours, theirs)
            if ours.ndim and len(ours) == num_rows and difference.size:
                moved = np.maximum(moved, difference.reshape(num_rows, -1).max(1))
        order = np.argsort(-moved, kind="stable")[: self._num_kept].tolist()
        return [Moved(float(moved[row]), row) for row in order if moved[row] > self._least()]

    def keep(self, moved: Moved, told: Mapping[str, Any]) -> None:
        """Keep a row among those that moved most, unless others moved farther."""
        entry = (moved.difference, -next(self._turns), told)
        if len(self._kept) < self._num_kept:
            heapq.heappush(self._kept, entry)
        elif moved.difference > self._least():
            heapq.heapreplace(self._kept, entry)

    @property
    def max_difference(self) -> float:
        """The greatest difference of all outputs."""
        return max((output.most for output in self._outputs.values()), default=0.0)

    @property
    def mean_cosine(self) -> float | None:
        """Of all vectors of all outputs; None where there are none."""
        num = sum(output.num_vectors for output in self._outputs.values())
        return sum(output.cosines for output in self._outputs.values()) / num if num else None

    def as_json(self) -> dict[str, Any]:
        """`outputs` and `moved_most`, as docs/serving.md tells."""
        kept = sorted(self._kept, key=lambda entry: entry[:2], reverse=True)
        most = [{"difference": _finite(difference), **told} for difference, _, told in kept]
        return {"outputs": {name: output.as_json() for name, output in self._outputs.items()}, "moved_most": most}

    def _least(self) -> float:
        return self._kept[0][0] if len(self._kept) == self._num_kept else 0.0

    def _add(self, name: str, ours: Floats, theirs: Floats) -> Floats:
        """The differences of one output's values, infinite where they cannot be compared."""
        found = self._outputs.setdefault(name, _OfOutput())
        same = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
        fine = np.isfinite(ours) & np.isfinite(theirs)
        with np.errstate(invalid="ignore", over="ignore"):
            difference = np.where(same, 0.0, np.where(fine, np.abs(ours - theirs), np.inf))
        counted = difference[fine | same]
        found.num_broken += difference.size - counted.size
        if counted.size:
            found.num_values += counted.size
            found.most = max(found.most, float(counted.max()))
            found.total += float(counted.sum())
        if ours.ndim > 1 and ours.shape[-1] > 1:
            width = ours.shape[-1]
            cosines = _cosines(ours.reshape(-1, width), theirs.reshape(-1, width))
            found.num_vectors += cosines.size
            found.cosines += float(cosines.sum())
        return difference


def _pair(name: str, served: Tensor, candidate: Tensor | None) -> tuple[Floats, Floats]:
    if candidate is None:
        raise ServingError(f"the candidate gave no {name!r}")
    if candidate.shape != served.shape:
        raise ServingError(f"{name!r} is of shape {list(served.shape)}, and of the candidate {list(candidate.shape)}")
    ours, theirs = (one.double().numpy(force=True) for one in (served, candidate))
    return ours, theirs


def _cosines(ours: Floats, theirs: Floats) -> Floats:
    """Of the vectors that have finite numbers only; exactly 1 of equal ones, 0 where just one is all zeros."""
    whole = np.isfinite(ours).all(1) & np.isfinite(theirs).all(1)
    ours, theirs = ours[whole], theirs[whole]
    lengths = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
    found = np.divide((ours * theirs).sum(1), lengths, out=np.zeros(len(ours)), where=lengths > 0)
    return np.where((ours == theirs).all(1), 1.0, found)


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None


def values_of(answers: Answers, row: int, num_rows: int) -> dict[str, Any]:
    """One row's numbers of the answers that have a part for each row, as JSON has them: None for what is no finite number."""
    return {
        name: _as_json(answer[row].double().tolist())
        for name, answer in answers.items()
        if answer.is_floating_point() and answer.dim() and len(answer) == num_rows
    }


def _as_json(value: float | Sequence[Any]) -> Any:
    return _finite(value) if isinstance(value, float) else [_as_json(part) for part in value]
