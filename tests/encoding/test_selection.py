"""Rows of encoded columns, cut and taken: against Python lists."""

from typing import Any

import numpy as np
import pytest

from emberline.encoding.columns import DenseSteps, EncodedColumns, Jagged, JaggedSteps
from emberline.encoding.selection import RowTaker, cut_columns, take_columns

BAGS: list[list[int]] = [[7, 8], [], [9], [1, 2, 3]]
STEPS: list[list[list[int]]] = [[[5], [6, 7]], [], [[]], [[8], [], [9, 9]]]
POINTS: list[list[float]] = [[0.5], [], [1.5, 2.5], [3.5]]


def encoded(order: list[int]) -> EncodedColumns:
    bags, steps, points = [BAGS[row] for row in order], [STEPS[row] for row in order], [POINTS[row] for row in order]
    flat = [step for row in steps for step in row]
    return EncodedColumns(
        len(order),
        {
            "bags": Jagged(np.array([one for bag in bags for one in bag], np.int64), np.array([len(bag) for bag in bags], np.int32)),
            "one": Jagged(np.array(order, np.int64), np.ones(len(order), np.int32), np.array(order, np.float32)),
        },
        {"dense": np.array(order, np.float32).reshape(-1, 1)},
        {
            "steps": JaggedSteps(
                np.array([one for step in flat for one in step], np.int64),
                np.array([len(step) for step in flat], np.int32),
                np.array([len(row) for row in steps], np.int32),
            )
        },
        {
            "points": DenseSteps(
                np.array([[one] for row in points for one in row], np.float32).reshape(-1, 1), np.array([len(row) for row in points], np.int32)
            )
        },
    )


def listed(columns: EncodedColumns) -> list[Any]:
    found: list[Any] = [columns.num_rows]
    for bag in columns.sparse.values():
        found += [bag.values.tolist(), bag.lengths.tolist(), None if bag.weights is None else bag.weights.tolist()]
    for steps in columns.sparse_sequences.values():
        found += [steps.values.tolist(), steps.step_lengths.tolist(), steps.lengths.tolist()]
    for points in columns.dense_sequences.values():
        found += [points.values.tolist(), points.lengths.tolist()]
    return [*found, *(values.tolist() for values in columns.dense.values())]


@pytest.mark.parametrize(("start", "stop"), [(0, 4), (0, 0), (0, 1), (1, 3), (3, 4), (2, 2), (4, 4)])
def test_a_cut(start: int, stop: int) -> None:
    whole, wanted = encoded([0, 1, 2, 3]), listed(encoded(list(range(start, stop))))
    assert listed(cut_columns(whole, start, stop)) == wanted
    assert listed(RowTaker(whole).cut(start, stop)) == wanted


@pytest.mark.parametrize("order", [[], [2], [3, 0, 3, 1], [1, 1]])
def test_rows_in_any_order(order: list[int]) -> None:
    whole, wanted = encoded([0, 1, 2, 3]), listed(encoded(order))
    places = np.array(order, np.int64)
    assert listed(take_columns(whole, places)) == wanted
    assert listed(RowTaker(whole).take(places)) == wanted


def test_a_cut_of_nothing() -> None:
    assert listed(RowTaker(encoded([])).cut(0, 0)) == listed(encoded([]))
