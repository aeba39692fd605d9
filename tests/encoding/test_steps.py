"""Sequences: text, lists, lists of lists and numbers as steps, for every family, against plain Python."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from emberline.encoding import Column, EncodedColumns, Jagged, JaggedSteps, StepColumn, columns_from_arrow, columns_from_rows, encode
from emberline.errors import RequestError
from emberline.schema import (
    BoundaryEncoder,
    BucketEncoder,
    Combiner,
    CrossEncoder,
    Encoder,
    ExprEncoder,
    FeatureKind,
    FeatureSpec,
    Keep,
    LookupEncoder,
    MatchEncoder,
    NumericEncoder,
    RawIdEncoder,
)
from tests.encoding.cuts import cut

IDS = RawIdEncoder()
NAN = float("nan")
Steps = list[list[Any]]


def spec(encoder: Encoder, *columns: str, **options: Any) -> FeatureSpec:
    inner = getattr(encoder, "inner", encoder)
    kind = FeatureKind.DENSE if isinstance(inner, NumericEncoder) else FeatureKind.SPARSE
    dim = 1 if kind is FeatureKind.DENSE else 0
    return FeatureSpec(
        name="f", kind=kind, columns=columns or ("c",), encoder=encoder, sequence=True, **{"separator": "|", "value_dim": dim, **options}
    )


def listed(encoded: EncodedColumns) -> list[Steps]:
    """Rows of steps of ids or numbers."""
    if "f" in encoded.dense_sequences:
        dense = encoded.dense_sequences["f"]
        assert dense.values.dtype == np.float32
        steps, lengths = dense.values.tolist(), dense.lengths
    else:
        found = encoded.sparse_sequences["f"]
        ids = found.values.tolist() if found.weights is None else list(zip(found.values.tolist(), found.weights.tolist(), strict=True))
        steps, lengths = cut(ids, found.step_lengths), found.lengths
        assert found.step_lengths.dtype == np.int32
    assert lengths.dtype == np.int32
    assert lengths.sum() == len(steps)
    return cut(steps, lengths)


def run(feature: FeatureSpec, *rows: Mapping[str, object]) -> list[Steps]:
    return listed(encode([feature], *columns_from_rows([feature], rows)))


def one(feature: FeatureSpec, *values: object) -> list[Steps]:
    return run(feature, *[{"c": value} for value in values])


@pytest.mark.parametrize(
    ("value", "want"),
    [
        ("1;2;3", [[1], [2], [3]]),
        ("1;2|3;", [[1], [2, 3], []]),
        (";", [[], []]),
        ("7", [[7]]),
        ([1, 2], [[1], [2]]),
        (["1", "2|3", None, ""], [[1], [2, 3], [], []]),
        ([[1], [2, 3], [], None], [[1], [2, 3], [], []]),
        ([["1", "2"], "3|4", 5], [[1, 2], [3, 4], [5]]),
        (np.array([1, 2]), [[1], [2]]),
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        ((1, (2, 3)), [[1], [2, 3]]),
        (5, [[5]]),
        (5.0, [[5]]),
        (b"1;2", [[1], [2]]),
        (None, []),
        ("", []),
        ([], []),
        (NAN, []),
    ],
    ids=repr,
)
def test_forms(value: object, want: Steps) -> None:
    feature = spec(IDS)
    assert one(feature, value) == [want]
    assert one(feature, value, None, "8;9", [1, [2]]) == [want, [], [[8], [9]], [[1], [2]]]


def test_what_is_handed_in_as_arrays() -> None:
    feature = spec(IDS)
    forms: list[Any] = [
        np.array([[1, 2], [3, 4]]),
        Jagged(np.array([1, 2, 3, 4]), np.array([2, 2], dtype=np.int32)),
        np.array(["1;2", "3;4"]),
        ["1;2", [3, 4]],
        ("1;2", [3, 4]),
    ]
    for form in forms:
        assert listed(encode([feature], {"c": form})) == [[[1], [2]], [[3], [4]]]
    nested = StepColumn(Column(np.array([1, 2, 3]), np.array([2, 0, 1], dtype=np.int32)), np.array([3, 0], dtype=np.int32))
    assert listed(encode([feature], {"c": nested})) == [[[1, 2], [], [3]], []]
    assert listed(encode([feature], {"c": np.array([5.0, np.nan])})) == [[[5]], []]
    weighted = Jagged(np.array([1, 2]), np.array([2, 0], dtype=np.int32), np.array([0.5, 2.0], dtype=np.float32))
    assert listed(encode([spec(IDS, weighted=True)], {"c": weighted})) == [[[(1, 0.5)], [(2, 2.0)]], []]
    with pytest.raises(RequestError, match="lengths sum to 2, but there are 3"):
        encode([feature], {"c": StepColumn(nested.steps, np.array([2, 0], dtype=np.int32))})


def test_bags_forget_the_steps() -> None:
    steps = JaggedSteps(np.array([7, 8, 9]), np.array([2, 0, 1], np.int32), np.array([2, 0, 1], np.int32))
    bags = steps.bags()
    assert bags.values.tolist() == [7, 8, 9]
    assert bags.lengths.tolist() == [2, 0, 1]
    assert bags.lengths.dtype == np.int32


@pytest.mark.parametrize(("keep", "want"), [(Keep.NEWEST, [[2], [], [3]]), (Keep.OLDEST, [[1], [2], []])])
@pytest.mark.parametrize("value", ["1;2;;3", [1, 2, None, 3], [[1], [2], [], [3]]])
def test_which_steps_are_kept(keep: Keep, want: Steps, value: object) -> None:
    feature = spec(IDS, sequence_length=3, keep=keep)
    assert one(feature, value, "4;5", None) == [want, [[4], [5]], []]
    assert one(feature, *[value] * 3) == [want] * 3


def test_steps_that_are_cut_off_are_not_read() -> None:
    feature = spec(BucketEncoder(rows=5), sequence_length=1)
    assert one(feature, "77;x;3") == [[[3]]]


def test_defaults_stand_for_steps_not_for_rows() -> None:
    assert one(spec(IDS, default="9"), "1;;2", "", ";") == [[[1], [9], [2]], [], [[9], [9]]]
    assert one(spec(NumericEncoder(), default="9"), "1;;2", "", [None, NAN]) == [[[1], [9], [2]], [], [[9], [9]]]
    assert one(spec(NumericEncoder()), "1;;2") == [[[1], [0], [2]]]


def test_what_is_encoded_already_fills_rows_too() -> None:
    feature = spec(BucketEncoder(rows=10), encoded=True, separator="\x03", default="9")
    assert one(feature, "1;2\x033;", None, "", [], [[1, 2], [3]]) == [[[1], [2, 3], [9]], [[9]], [[9]], [[9]], [[1, 2], [3]]]
    assert one(spec(BucketEncoder(rows=10), encoded=True), "1;2", None) == [[[1], [2]], []]
    dense = spec(NumericEncoder(), encoded=True, default="5")
    assert one(dense, "1;2", None, 3) == [[[1], [2]], [[5]], [[3]]]
    with pytest.raises(RequestError, match=r"feature 'f': row 1: id 10 is outside \[0, 10\)"):
        one(feature, "1;2", "3;4;10")


def test_weights() -> None:
    feature = spec(IDS, weighted=True)
    assert one(feature, "1:0.5|2;3:2", None, ["4:3", "5"]) == [[[(1, 0.5), (2, 1.0)], [(3, 2.0)]], [], [[(4, 3.0)], [(5, 1.0)]]]
    assert one(feature, [{"1": 0.5}, {}, {"2": 1, "3": -1}], {"4": 2}, {}, None) == [
        [[(1, 0.5)], [], [(2, 1.0), (3, -1.0)]], [[(4, 2.0)]], [], []
    ]  # fmt: skip
    with pytest.raises(RequestError, match=r"feature 'f': row 1: {'2': 1} has weights, but another row has none"):
        one(feature, "1;2", {"2": 1})


def test_vectors() -> None:
    feature = spec(NumericEncoder(), value_dim=2, default="8|9")
    assert one(feature, "1|2;3|4", [[1, 2], None, "5|6"], np.array([[1.5, 2.5]]), None) == [
        [[1, 2], [3, 4]], [[1, 2], [8, 9], [5, 6]], [[1.5, 2.5]], []
    ]  # fmt: skip
    with pytest.raises(RequestError, match="feature 'f': row 1: 3 numbers, not 2"):
        one(feature, "1|2", "1|2;1|2|3")


def test_most_values_of_a_step() -> None:
    with pytest.raises(RequestError, match="feature 'f': row 2: 2 values, more than value_dim 1"):
        one(spec(IDS, value_dim=1), "1;2", None, "3;4|5")


def test_buckets_of_numbers() -> None:
    assert one(spec(BoundaryEncoder(boundaries=(1.0, 2.0))), "0;1|2;9;") == [[[0], [1, 2], [2], []]]


def _cross(*texts: str) -> int:
    hashes = b"".join(xxhash.xxh64_intdigest(text.encode()).to_bytes(8, "little") for text in texts)
    return xxhash.xxh64_intdigest(hashes) % 1009


def test_crosses_go_step_by_step() -> None:
    feature = spec(CrossEncoder(rows=1009), "u", "a", "b", row_columns=("u",))
    assert run(feature, {"u": "x", "a": "1;2|3", "b": [7, 8]}, {"u": ["x", "y"], "a": "1", "b": [7]}, {"u": "x", "a": None, "b": ""}) == [
        [[_cross("x", "1", "7")], [_cross("x", "2", "8"), _cross("x", "3", "8")]],
        [[_cross("x", "1", "7"), _cross("y", "1", "7")]],
        [],
    ]
    with pytest.raises(RequestError, match="feature 'f': row 1: column 'b' has 1 steps, but column 'a' has 2"):
        run(feature, {"u": "x", "a": "1", "b": "2"}, {"u": "x", "a": "1;2", "b": "2"})
    with pytest.raises(RequestError, match="column 'b' has 0 steps, but column 'a' has 2"):
        run(spec(CrossEncoder(rows=1009), "u", "a", "b", row_columns=("u",), sequence_length=1), {"u": "x", "a": "1;2", "b": ""})


def test_a_time_before_each_step() -> None:
    encoder = ExprEncoder(expression="now - at", variables=("now", "at"), inner=NumericEncoder())
    feature = spec(encoder, "now", "at", row_columns=("now",), default="-1", sequence_length=2)
    assert run(feature, {"now": 10, "at": "1;2;3"}, {"now": None, "at": [1]}, {"now": 10, "at": [None, 4.5]}, {"now": 10, "at": None}) == [
        [[8], [7]], [[-1]], [[-1], [5.5]], []
    ]  # fmt: skip
    with pytest.raises(RequestError, match="feature 'f': row 1: 'x' is not a number"):
        run(feature, {"now": 10, "at": "1;2;3"}, {"now": 1, "at": "4;x"})


def test_lookups_of_each_step() -> None:
    encoder = LookupEncoder(inner=NumericEncoder(), combiner=Combiner.SUM)
    feature = spec(encoder, "m", "k", row_columns=("m",), default="-1")
    rows: list[dict[str, object]] = [
        {"m": {"a": 1, "b": 2}, "k": "a;a|b;c"},
        {"m": {"a": 5}, "k": ["a"]},
        {"m": None, "k": "a"},
        {"m": {"a": 5}, "k": ""},
    ]
    assert run(feature, *rows) == [[[1], [3], [-1]], [[5]], [[-1]], []]
    every = spec(LookupEncoder(inner=IDS, map_separator=","), "m", "k")
    assert run(every, {"m": "a:1,b:2;a:3", "k": "b|a;a"}, {"m": [["a:4"], None], "k": "a;a"}) == [[[2, 1], [3]], [[4], []]]
    assert run(every, {"m": [{"a": 4}, None], "k": "a;a"}) == [[[4], []]]


def test_matches_of_each_step() -> None:
    feature = spec(MatchEncoder(inner=IDS), "m", "k", "s", row_columns=("m", "s"))
    rows: list[dict[str, object]] = [{"m": {"p": {"s": 1}, "q": {"s": 2, "t": 3}}, "k": "p;q;r", "s": "s|t"}, {"m": None, "k": "p", "s": "s"}]
    assert run(feature, *rows) == [[[1], [2, 3], []], [[]]]
    single = spec(MatchEncoder(inner=IDS, any_outer=True), "m", "s", row_columns=("m",))
    assert run(single, {"m": "p^s:1|q^s:2,t:3", "s": "t;s"}) == [[[3], [1, 2]]]


def test_one_column_with_and_without_steps() -> None:
    flat = FeatureSpec(name="flat", kind=FeatureKind.SPARSE, columns=("c",), encoder=IDS, separator="|")
    features = [flat, spec(IDS), replace(spec(IDS), name="g", step_separator=",")]
    encoded = encode(features, *columns_from_rows(features, [{"c": [1, 2]}, {"c": "3|4"}]))
    assert encoded.sparse["flat"].values.tolist() == [1, 2, 3, 4]
    assert listed(encoded) == [[[1], [2]], [[3, 4]]]
    assert list(encoded.sparse_sequences) == ["f", "g"]
    with pytest.raises(RequestError, match=r"feature 'flat': row 0: \[1\] is neither text nor a number"):
        encode(features, *columns_from_rows(features, [{"c": [[1]]}]))
    table = pa.table({"c": pa.array([[[1]]])})
    with pytest.raises(RequestError, match="feature 'flat': column 'c' holds lists of lists, or of maps, which only the steps of a sequence are"):
        encode(features, columns_from_arrow(features, table))


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ([[[1]]], r"\[1\] is neither text nor a number"),
        ([True], "True is neither text nor a number"),
        (b"\xff", "is not UTF-8 text"),
        ("1;\ud800", "half of a surrogate pair"),
        ([1, "x\ud800"], "half of a surrogate pair"),
        ([0.5], "0.5 is not a whole number"),
        ([2**63, "a"], "9223372036854775808 does not fit 64 bits"),
    ],
    ids=repr,
)
def test_refused(value: object, problem: str) -> None:
    with pytest.raises(RequestError, match=f"feature 'f': .*{problem}"):
        one(spec(IDS), "1;2", value)


@pytest.mark.parametrize("value", [[{"1": 2}], {"1": 2}])
def test_weights_that_none_reads(value: object) -> None:
    with pytest.raises(RequestError, match="feature 'f': the values have weights, but the feature is not weighted"):
        one(spec(IDS), value)


def test_no_rows_and_no_steps() -> None:
    for feature in (spec(IDS), spec(NumericEncoder(), value_dim=3)):
        assert one(feature) == []
        assert one(feature, None, "") == [[], []]


def test_all_steps_of_a_long_text() -> None:
    text = ";".join(map(str, range(50_000)))
    assert one(spec(IDS), text) == [[[number] for number in range(50_000)]]
    assert one(spec(IDS, sequence_length=2), text, "1", text) == [[[49_998], [49_999]], [[1]], [[49_998], [49_999]]]


STEP = st.none() | st.lists(st.integers(-5, 5), max_size=3)
ROWS = st.lists(st.none() | st.lists(STEP, max_size=5), max_size=6)


def _oracle(row: Sequence[Any] | None, length: int, keep: Keep, default: list[int]) -> Steps:
    steps = [list(step or ()) or default for step in row or ()]
    if not length:
        return steps
    return steps[-length:] if keep is Keep.NEWEST else steps[:length]


@settings(deadline=None, max_examples=30)
@given(ROWS, st.integers(0, 4), st.sampled_from(Keep), st.booleans())
def test_against_plain_python(rows: list[list[Any] | None], length: int, keep: Keep, has_default: bool) -> None:
    feature = spec(IDS, sequence_length=length, keep=keep, default="9" if has_default else None)
    want = [_oracle(row, length, keep, [9] if has_default else []) for row in rows]
    assert one(feature, *rows) == want
    step_texts = [None if row is None else ["|".join(map(str, step or ())) for step in row] for row in rows]
    assert one(feature, *step_texts) == want
    texts = [None if row is None else ";".join(row) for row in step_texts]
    lone_empty = [row == [""] for row in step_texts]
    assert one(feature, *texts) == [[] if lone else steps for lone, steps in zip(lone_empty, want, strict=True)]
    for kind in (pa.list_(pa.list_(pa.int64())), pa.large_list(pa.list_(pa.int32()))):
        _same_from_arrow(feature, pa.array(rows, kind), want)
    for kind in (pa.list_(pa.string()), pa.large_list(pa.large_string()), pa.list_(pa.dictionary(pa.int32(), pa.string()))):
        _same_from_arrow(feature, pa.array(step_texts, pa.list_(pa.string())).cast(kind), want)
    for kind in (pa.string(), pa.large_string(), pa.binary()):
        _same_from_arrow(feature, pa.array(texts, pa.string()).cast(kind), one(feature, *texts))


def _same_from_arrow(feature: FeatureSpec, array: Any, want: list[Steps]) -> None:
    table = pa.table({"c": array})
    stream = io.BytesIO()
    pq.write_table(table, stream, row_group_size=2)
    for given_table in (table, pq.read_table(io.BytesIO(stream.getvalue()))):
        assert listed(encode([feature], columns_from_arrow([feature], given_table), len(array))) == want
    half = len(array) // 2
    assert listed(encode([feature], columns_from_arrow([feature], table.slice(half)))) == want[half:]


@settings(deadline=None, max_examples=25)
@given(st.lists(st.none() | st.lists(st.none() | st.integers(-9, 9), max_size=4), max_size=5), st.integers(0, 3))
def test_flat_lists_and_numbers(rows: list[list[int | None] | None], length: int) -> None:
    feature = spec(NumericEncoder(), sequence_length=length, default="7")
    want = [[[7.0 if number is None else float(number)] for number in (row or [])[-length if length else None :]] for row in rows]
    assert one(feature, *rows) == want
    for kind in (pa.list_(pa.int64()), pa.list_(pa.float32()), pa.large_list(pa.float64())):
        _same_from_arrow(feature, pa.array(rows, kind), want)
    numbers = [row[0] if row else None for row in rows]
    single = [[] if number is None else [[float(number)]] for number in numbers]
    assert one(feature, *numbers) == single
    _same_from_arrow(feature, pa.array(numbers, pa.float64()), single)
    _same_from_arrow(feature, pa.array(numbers, pa.int32()), single)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.none() | st.lists(st.dictionaries(st.sampled_from("123"), st.integers(-2, 2).map(float), max_size=3), max_size=3), max_size=5))
def test_steps_of_maps(rows: list[list[dict[str, float]] | None]) -> None:
    feature = spec(IDS, weighted=True)
    want = [[[(int(key), weight) for key, weight in step.items()] for step in row or ()] for row in rows]
    assert one(feature, *rows) == want
    pairs = [None if row is None else [list(step.items()) for step in row] for row in rows]
    _same_from_arrow(feature, pa.array(pairs, pa.list_(pa.map_(pa.string(), pa.float32()))), want)
