import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from emberline.encoding import DenseSteps, EncodedColumns, Jagged, JaggedSteps
from emberline.train.data.encoded_rows import EncodedRows, join, rechunk

Row = tuple[list[int], float, int]
ROWS = st.lists(st.tuples(st.lists(st.integers(0, 99), max_size=3), st.floats(-9, 9, width=16), st.integers(0, 1)), max_size=20)


def _encode(rows: list[Row], weighted: bool = True) -> EncodedRows:
    ids = [id_ for bag, _, _ in rows for id_ in bag]
    bag = Jagged(np.array(ids, np.int64), np.array([len(bag) for bag, _, _ in rows], np.int32), np.array(ids, np.float32) / 2 if weighted else None)
    dense = {"x": np.array([[x] for _, x, _ in rows], np.float32).reshape(-1, 1)}
    steps, floats = _sequences(rows, weighted)
    columns = EncodedColumns(len(rows), {"f": bag}, dense, {"s": steps}, {"n": floats})
    return EncodedRows(columns, {"y": np.array([y for _, _, y in rows], np.int64)}, np.array([x for _, x, _ in rows], np.float32))


def _steps(bag: list[int]) -> list[list[int]]:
    """A sequence that follows from a row's ids: a step for each id, of as many ids as it says modulo 3."""
    return [[id_] * (id_ % 3) for id_ in bag]


def _sequences(rows: list[Row], weighted: bool) -> tuple[JaggedSteps, DenseSteps]:
    steps = [_steps(bag) for bag, _, _ in rows]
    ids = [id_ for row in steps for step in row for id_ in step]
    sizes = np.array([len(step) for row in steps for step in row], np.int32)
    lengths = np.array([len(row) for row in steps], np.int32)
    numbers = np.array([[len(step), -1.0] for row in steps for step in row], np.float32).reshape(-1, 2)
    return JaggedSteps(np.array(ids, np.int64), sizes, lengths, np.array(ids, np.float32) if weighted else None), DenseSteps(numbers, lengths)


def _check_sequences(encoded: EncodedRows, rows: list[Row]) -> None:
    """The sequences follow from the rows' ids still."""
    expected, floats = _sequences(rows, True)
    found, found_floats = encoded.columns.sparse_sequences["s"], encoded.columns.dense_sequences["n"]
    for name in ("values", "step_lengths", "lengths", "weights"):
        assert getattr(found, name).tolist() == getattr(expected, name).tolist()
    assert (found_floats.values.tolist(), found_floats.lengths.tolist()) == (floats.values.tolist(), floats.lengths.tolist())


def _decode(encoded: EncodedRows) -> list[Row]:
    bag = encoded.columns.sparse["f"]
    assert bag.lengths.dtype == np.int32
    ids = iter(bag.values.tolist())
    if bag.weights is not None:
        assert bag.weights.tolist() == [id_ / 2 for id_ in bag.values.tolist()]
    assert encoded.sample_weights is not None
    assert encoded.sample_weights.tolist() == encoded.columns.dense["x"][:, 0].tolist()
    rows = [
        ([next(ids) for _ in range(length)], x, y)
        for length, x, y in zip(bag.lengths.tolist(), encoded.columns.dense["x"][:, 0].tolist(), encoded.labels["y"].tolist(), strict=True)
    ]
    _check_sequences(encoded, rows)
    return rows


@given(ROWS, st.data())
def test_cut_and_take(rows: list[Row], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(rows)))
    stop = data.draw(st.integers(start, len(rows)))
    assert _decode(_encode(rows).cut(start, stop)) == rows[start:stop]
    order = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=9)) if rows else []
    assert _decode(_encode(rows).take(np.array(order, np.int64))) == [rows[index] for index in order]


@given(st.lists(ROWS, max_size=6), st.integers(1, 11))
def test_rechunk(parts: list[list[Row]], num_rows: int) -> None:
    everything = [row for rows in parts for row in rows]
    pieces = [_decode(piece) for piece in rechunk([_encode(rows) for rows in parts], num_rows)]
    assert pieces == [everything[start : start + num_rows] for start in range(0, len(everything), num_rows)]


def test_labels_of_two_types_meet_as_floats() -> None:
    whole, fraction = _encode([([1], 0.0, 1)]), _encode([([2], 0.0, 0)])
    mixed = join([whole, EncodedRows(fraction.columns, {"y": np.array([0.5], np.float32)}, fraction.sample_weights)])
    assert (mixed.labels["y"].dtype, mixed.labels["y"].tolist()) == (np.dtype(np.float32), [1.0, 0.5])
