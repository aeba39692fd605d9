import numpy as np
import pyarrow as pa
import pytest

from emberline.errors import RequestError
from emberline.train.data.targets import label_values, weight_values


@pytest.mark.parametrize(
    ("array", "want", "dtype"),
    [
        (pa.array([1, 0], pa.int8()), [1, 0], np.int64),
        (pa.array([2**40, -1], pa.int64()), [2**40, -1], np.int64),
        (pa.array([1, 2], pa.uint64()), [1, 2], np.int64),
        (pa.array([True, False]), [1, 0], np.int64),
        (pa.array([0.5, 1.0]), [0.5, 1.0], np.float32),
        (pa.array([0.5, 1.0], pa.float16()), [0.5, 1.0], np.float32),
        (pa.array(["1", "0.25", "true", "False"]), [1.0, 0.25, 1.0, 0.0], np.float32),
        (pa.array([1, 0], pa.int64()).dictionary_encode(), [1, 0], np.int64),
        (pa.array([], pa.int64()), [], np.int64),
    ],
)
def test_labels(array: pa.Array, want: list[float], dtype: type) -> None:
    values = label_values(array, "y")
    assert (values.dtype, values.tolist()) == (np.dtype(dtype), want)


@pytest.mark.parametrize(
    ("array", "problem"),
    [
        (pa.array([1, None]), "row 1: the label is missing"),
        (pa.array([True, None]), "row 1: the label is missing"),
        (pa.array([1.0, float("nan")]), "row 1: the label is missing"),
        (pa.array(["1", ""]), "row 1: the label is missing"),
        (pa.array(["1", "yes"]), "row 1: label 'yes' is not a number"),
        (pa.array([1.0, float("inf")]), "row 1: label inf is out of range"),
        (pa.array([1, 2**63], pa.uint64()), "row 1: label 9223372036854775808 is out of range"),
        (pa.array([[1], [2]]), "a label is one number a row, but the column has type list"),
        (pa.array([1], pa.date32()), "has type date32"),
    ],
)
def test_labels_that_are_refused(array: pa.Array, problem: str) -> None:
    with pytest.raises(RequestError, match=problem):
        label_values(array, "y")


def test_sample_weights() -> None:
    assert weight_values(pa.array([0, 2]), "w").tolist() == [0.0, 2.0]
    assert weight_values(pa.array([0.1]), "w").dtype == np.float32
    for array, problem in [
        (pa.array([1.0, -0.5]), "feature 'w': row 1: sample weight -0.5 is negative"),
        (pa.array([1.0, None]), "row 1: the sample weight is missing"),
        (pa.array([float("inf")]), "out of range"),
    ]:
        with pytest.raises(RequestError, match=problem):
            weight_values(array, "w")
