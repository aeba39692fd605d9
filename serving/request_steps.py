"""The steps of a request's sequences, checked.

Letters: B rows, F sparse features, Q sequences, Qs sparse ones, S steps of all sparse ones.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from emberline.errors import RequestError
from emberline.schema import FeatureKind, FeatureSpec, ModelSchema
from emberline.serving.arrays import INT32_MAX, counts, flat, floats

Given = npt.NDArray[Any] | None
Counts = npt.NDArray[np.int32]


class CheckedSteps(NamedTuple):
    """The sequences of one request, as `CheckedRequest` has them."""

    steps: Counts
    step_lengths: Counts | None
    dense_steps: npt.NDArray[np.float32]


def may_be_left_out(sequences: Sequence[FeatureSpec]) -> bool:
    """Whether a request need not tell the steps of these: each id is one."""
    return all(feature.kind is FeatureKind.SPARSE and feature.value_dim == 1 for feature in sequences)


class StepsValidator:
    """Checks what requests tell of sequences, for one model that has some.

    Args:
        schema: the model's description.
    """

    def __init__(self, schema: ModelSchema) -> None:
        self._sequences = schema.sequences
        self._sparse = [place for place, feature in enumerate(self._sequences) if feature.kind is FeatureKind.SPARSE]
        self._dense = [place for place, feature in enumerate(self._sequences) if feature.kind is FeatureKind.DENSE]
        order = {feature.name: place for place, feature in enumerate(schema.sparse_features)}
        self._bags = [order[self._sequences[place].name] for place in self._sparse]
        self._num_features = len(order)
        places = {feature.name: place for place, feature in enumerate(self._sequences)}
        self._alike = [(places[stream.name], places[other]) for stream in schema.streams for other in stream.features[1:]]
        self._most_steps = np.array([feature.sequence_length or INT32_MAX for feature in self._sequences], np.int64)
        self._most_ids = [self._sequences[place].value_dim or INT32_MAX for place in self._sparse]
        self._needs_steps = not may_be_left_out(schema.sequences)
        self._needs_sizes = not may_be_left_out(schema.sparse_sequences)

    def read(self, given: Given) -> Counts | None:
        """`steps` as int32 [Q * B]; None where it was left out, and may be.

        Raises:
            RequestError: it is missing, or malformed; names feature and row.
        """
        found = flat("steps", given, wanted=True, optional=not self._needs_steps)
        if given is None:
            return None
        steps = counts("steps", found)
        if steps.size % len(self._sequences):
            names = ", ".join(feature.name for feature in self._sequences)
            raise RequestError(f"steps: {steps.size} numbers are not a whole number for each of {len(self._sequences)} sequences ({names})")
        table = steps.reshape(len(self._sequences), -1)
        if steps.size and steps.min() < 0:
            place, row = _first_of(table < 0)
            raise RequestError(f"steps: {table[place, row]} is negative", feature=self._sequences[place].name, row=row)
        over = table > self._most_steps[:, None]
        if over.any():
            place, row = _first_of(over)
            most = self._most_steps[place]
            raise RequestError(f"steps: {table[place, row]} steps, but it takes at most {most}", feature=self._sequences[place].name, row=row)
        return steps

    def check(self, steps: Counts | None, step_lengths: Given, dense_steps: Given, lengths: Counts, num_rows: int) -> CheckedSteps:
        """All that is told of sequences.

        Args:
            steps: from `read`.
            step_lengths: as it came.
            dense_steps: as it came.
            lengths: int32 [F * B], ids of each row, checked.
            num_rows: B.

        Raises:
            RequestError: something is missing or does not fit; names feature and row where one is at fault.
        """
        bags = lengths.reshape(self._num_features, num_rows)[self._bags]
        if steps is None:
            if step_lengths is not None:
                raise RequestError("step_lengths is there, but steps, which tells of how many steps each row has, is missing")
            steps = bags.reshape(-1)
        table = steps.reshape(len(self._sequences), num_rows)
        sizes = self._sizes(step_lengths, table[self._sparse], bags)
        self._check_alike(table)
        return CheckedSteps(steps, sizes, self._numbers(dense_steps, table[self._dense]))

    def _sizes(self, given: Given, steps: Counts, bags: Counts) -> Counts | None:
        """The ids of each step, int32 [S]; None where each has one.

        Args:
            given: as it came.
            steps: [Qs, B] of sparse sequences.
            bags: ids [Qs, B] of the same.
        """
        found = flat("step_lengths", given, wanted=bool(self._sparse), optional=not self._needs_sizes)
        if given is None or not self._sparse:
            self._check_sums(steps, bags, "each step has one id, as step_lengths was left out, so")
            return None
        sizes = counts("step_lengths", found)
        totals = steps.sum(axis=1, dtype=np.int64)
        if sizes.size != totals.sum():
            raise RequestError(f"step_lengths tells of {sizes.size} steps, but steps of {totals.sum()}")
        most = np.repeat(np.array(self._most_ids, np.int64), totals)
        if ((sizes < 0) | (sizes > most)).any():
            place, row = _place_of(int(np.argmax((sizes < 0) | (sizes > most))), steps)
            size, limit = sizes[(sizes < 0) | (sizes > most)][0], self._most_ids[place]
            problem = f"{size} is negative" if size < 0 else f"a step of {size} ids, but it takes at most {limit} a step"
            raise RequestError(f"step_lengths: {problem}", feature=self._feature(place), row=row)
        ends = np.concatenate([np.zeros(1, np.int64), sizes.cumsum(dtype=np.int64)])
        last = steps.reshape(-1).cumsum(dtype=np.int64)
        self._check_sums((ends[last] - ends[last - steps.reshape(-1)]).reshape(bags.shape), bags, "its steps hold")
        return None if bool((sizes == 1).all()) else sizes

    def _check_sums(self, found: npt.NDArray[Any], bags: Counts, what: str) -> None:
        if (found != bags).any():
            place, row = _first_of(found != bags)
            problem = f"lengths tells of {bags[place, row]} ids, but {what} {found[place, row]}"
            raise RequestError(problem, feature=self._feature(place), row=row)

    def _feature(self, place: int) -> str:
        """The name of a sparse sequence."""
        return self._sequences[self._sparse[place]].name

    def _check_alike(self, table: Counts) -> None:
        for first, other in self._alike:
            differ = table[first] != table[other]
            if differ.any():
                row = int(differ.argmax())
                beside = f"{self._sequences[first].name!r}, which stands beside it in a group, has {table[first, row]}"
                raise RequestError(f"steps: {table[other, row]} steps, but {beside}", feature=self._sequences[other].name, row=row)

    def _numbers(self, given: Given, steps: Counts) -> npt.NDArray[np.float32]:
        """`dense_steps`, for steps [dense sequences, B]."""
        numbers = floats("dense_steps", flat("dense_steps", given, wanted=bool(self._dense)))
        features = [self._sequences[place] for place in self._dense]
        sizes = steps.astype(np.int64) * np.array([feature.value_dim for feature in features], np.int64)[:, None]
        totals = zip(features, steps.sum(axis=1, dtype=np.int64).tolist(), strict=True)
        total = sum(feature.value_dim * count for feature, count in totals)  # Python's own: steps times numbers may go beyond 64 bits
        if numbers.size != total:
            raise RequestError(f"dense_steps holds {numbers.size} numbers, but steps tells of {total}")
        finite = np.isfinite(numbers)
        if not finite.all():
            at = int(np.argmin(finite))
            place, row = _place_of(at, sizes)
            raise RequestError(f"dense_steps: {numbers[at]} is not a finite number", feature=features[place].name, row=row)
        return numbers


def _first_of(where: npt.NDArray[np.bool_]) -> tuple[int, int]:
    """The first true place of a matrix."""
    place, row = np.unravel_index(int(where.argmax()), where.shape)
    return int(place), int(row)


def _place_of(item: int, sizes: npt.NDArray[Any]) -> tuple[int, int]:
    """The feature and row of an item, of items laid end to end of `sizes` [features, B]."""
    place, row = divmod(int(np.searchsorted(sizes.reshape(-1).cumsum(dtype=np.int64), item, side="right")), sizes.shape[1])
    return place, row
