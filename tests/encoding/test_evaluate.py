"""Expressions over columns, against plain Python of one row."""

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emberline.encoding import columns_from_arrow, columns_from_rows, encode
from emberline.encoding.evaluate import evaluate
from emberline.encoding.expression import parse_expression
from emberline.errors import RequestError
from emberline.schema import BoundaryEncoder, ExprEncoder, FeatureKind, FeatureSpec, NumericEncoder

NAN, INF = math.nan, math.inf


def value_of(text: str, **values: float) -> float:
    program = parse_expression(text, tuple(values))
    return float(evaluate(program, {name: np.array([value], dtype=np.float64) for name, value in values.items()})[0])


@pytest.mark.parametrize(
    ("text", "a", "want"),
    [
        ("a % 3", -7, -1),
        ("a % 0", 1, NAN),
        ("round(a)", 2.5, 3),
        ("round(a)", -2.5, -3),
        ("round(a)", 0.49999999999999994, 0),
        ("rint(a)", 2.5, 2),
        ("sigmoid(a)", -1000, 0),
        ("sigmoid(a)", 1000, 1),
        ("sigmoid(a)", 1.5, 1 / (1 + math.exp(-1.5))),
        ("1 / a", 0, INF),
        ("1 / (1 / a)", 0, 0),
        ("a / a", 0, NAN),
        ("log(a)", 0, -INF),
        ("log(a)", -1, NAN),
        ("sqrt(a)", -1, NAN),
        ("a ** 0.5", -1, NAN),
        ("a ** 0", NAN, NAN),
        ("1 ** a", NAN, NAN),
        ("a == a", NAN, NAN),
        ("a != 1", NAN, NAN),
        ("a < 1", NAN, NAN),
        ("!a", NAN, NAN),
        ("!a", 0, 1),
        ("!a", 0.1, 0),
        ("a && 0", NAN, 0),
        ("0 && a", NAN, 0),
        ("a && 1", NAN, NAN),
        ("a || 1", NAN, 1),
        ("2 || a", NAN, 1),
        ("a || 0", NAN, NAN),
        ("a || 0", -2, 1),
        ("a ? 1 : 2", NAN, NAN),
        ("a > 0 ? 5 : 1 / (a - a)", 1, 5),
        ("a != 0 && 1 / a > 2", 0, 0),
        ("min(a, 1)", NAN, NAN),
        ("min(a, 1, -2)", 5, -2),
        ("max(a)", 5, 5),
        ("sum(a, a, 1)", 2, 5),
        ("avg(a, 1)", 2, 1.5),
        ("clip(a, 0, 1)", 2, 1),
        ("clip(a, 0, 1)", NAN, NAN),
        ("sign(a)", -3, -1),
        ("sign(a)", 0, 0),
        ("a * 1e308 * 10", 1, INF),
        ("exp(a)", 1000, INF),
        ("log2(a)", 8, 3),
        ("log10(a)", 1000, 3),
        ("log1p(a)", 1e-20, 1e-20),
        ("expm1(a)", 1e-20, 1e-20),
        ("trunc(a)", -2.7, -2),
        ("floor(a)", -2.1, -3),
        ("ceil(a)", -2.9, -2),
        ("_e ** a", 1, math.e),
        ("sin(a * _pi)", 0.5, 1),
    ],
)
def test_one_value(text: str, a: float, want: float) -> None:
    got = value_of(text, a=a)
    assert math.isnan(got) if math.isnan(want) else got == pytest.approx(want, rel=1e-15, abs=0)


MATH: dict[str, Callable[[float], float]] = {
    name: getattr(math, name)
    for name in ("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "exp", "expm1", "log", "log1p")
}


@pytest.mark.parametrize("name", MATH)
@pytest.mark.parametrize("x", [0.25, 0.75, 1.0, 1.5, -0.5])
def test_functions_of_one_number(name: str, x: float) -> None:
    try:
        want = MATH[name](x)
    except ValueError:
        want = INF if name == "atanh" and x == 1 else NAN
    assert value_of(f"{name}(x)", x=x) == pytest.approx(want, rel=1e-14, nan_ok=True)


Tree = Any
BINARY: dict[str, Callable[[float, float], float]] = {"+": operator.add, "-": operator.sub, "*": operator.mul}
COMPARE: dict[str, Callable[[float, float], bool]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge
}  # fmt: skip


def run(tree: Tree, row: Mapping[str, float]) -> float:
    """One row in plain Python, as the rules tell."""
    if isinstance(tree, float):
        return tree
    if isinstance(tree, str):
        return row[tree]
    kind, *parts = tree
    values = [run(part, row) for part in parts]
    if kind == "&&":
        return 0.0 if 0 in values else NAN if any(map(math.isnan, values)) else 1.0
    if kind == "||":
        return 1.0 if any(value != 0 and not math.isnan(value) for value in values) else NAN if any(map(math.isnan, values)) else 0.0
    if kind == "?":
        return NAN if math.isnan(values[0]) else values[1] if values[0] != 0 else values[2]
    if any(map(math.isnan, values)):
        return NAN
    if kind == "/":
        if values[1] == 0:
            return NAN if values[0] == 0 else math.copysign(INF, values[0]) * math.copysign(1, values[1])
        return values[0] / values[1]
    if kind in COMPARE:
        return float(COMPARE[kind](*values))
    if kind in BINARY:
        return BINARY[kind](*values)
    unary: dict[str, Callable[[float], float]] = {"-1": operator.neg, "!": lambda x: float(x == 0), "abs": abs}
    return unary[kind](*values) if kind in unary else {"min": min, "max": max}[kind](*values)


def text_of(tree: Tree) -> str:
    if isinstance(tree, float):
        return repr(tree)
    if isinstance(tree, str):
        return tree
    kind, *parts = tree
    texts = [text_of(part) for part in parts]
    if kind == "?":
        return f"({texts[0]} ? {texts[1]} : {texts[2]})"
    if kind in ("abs", "min", "max"):
        return f"{kind}({', '.join(texts)})"
    return f"({'-' if kind == '-1' else kind}{texts[0]})" if len(texts) == 1 else f"({texts[0]} {kind} {texts[1]})"


def _trees(children: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
    pairs = st.sampled_from([*BINARY, *COMPARE, "/", "&&", "||", "min", "max"])
    return (
        st.tuples(pairs, children, children)
        | st.tuples(st.sampled_from(["-1", "!", "abs"]), children)
        | st.tuples(st.just("?"), children, children, children)
    )


TREES = st.recursive(st.sampled_from(["a", "b", 0.0, 1.0, 2.5]), _trees, max_leaves=12)
VALUES = st.sampled_from([0.0, 1.0, -1.0, 2.5, -0.5, 1e30, NAN, 3.0])


@settings(deadline=None, max_examples=200)
@given(TREES, st.lists(st.tuples(VALUES, VALUES), max_size=5))
def test_against_plain_python(tree: Tree, rows: list[tuple[float, float]]) -> None:
    text = f"({text_of(tree)}) + a * b * 0"
    program = parse_expression(text, ("a", "b"))
    got = evaluate(program, {name: np.array([row[place] for row in rows], dtype=np.float64) for place, name in enumerate("ab")})
    whole = ("+", tree, ("*", ("*", "a", "b"), 0.0))
    want = [run(whole, {"a": a, "b": b}) for a, b in rows]
    assert np.array_equal(got, np.array(want), equal_nan=True), (text, got, want)


def feature(text: str, names: tuple[str, ...], *, boundaries: tuple[float, ...] = (), **options: Any) -> FeatureSpec:
    fill = options.pop("fill_missing", None)
    inner = BoundaryEncoder(boundaries=boundaries) if boundaries else NumericEncoder()
    return FeatureSpec(
        name="f",
        kind=FeatureKind.SPARSE if boundaries else FeatureKind.DENSE,
        columns=tuple(f"col_{name}" for name in names),
        encoder=ExprEncoder(expression=text, variables=names, inner=inner, fill_missing=fill),
        **{"value_dim": 0 if boundaries else 1, "separator": "|", **options},
    )


def dense(spec: FeatureSpec, *rows: object) -> list[list[float]]:
    names = [spec.columns] * len(rows)
    values = [row if isinstance(row, tuple) else (row,) for row in rows]
    columns, num_rows = columns_from_rows([spec], [dict(zip(name, value, strict=True)) for name, value in zip(names, values, strict=True)])
    got: list[list[float]] = encode([spec], columns, num_rows).dense["f"].tolist()
    return got


def test_what_is_missing_reads_the_default() -> None:
    spec = feature("a / b", ("a", "b"), default="9")
    assert dense(spec, (1, 2), (1, 0), (0, 0), (None, 1), (1, ""), ("3", 4.0), (1e300, 1), (1, "nan")) == [
        [0.5],
        [9],
        [9],
        [9],
        [9],
        [0.75],
        [9],
        [9],
    ]
    assert dense(feature("a / b", ("a", "b")), (1, 0)) == [[0]]
    assert dense(feature("a / b", ("a", "b"), default="9", fill_missing=4.0), (None, 2), (1, None), (1, 0)) == [[2], [0.25], [9]]


def test_values_meet_one_by_one_and_single_ones_hold_for_all() -> None:
    spec = feature("a * 10 + b", ("a", "b"), value_dim=3, default="7")
    assert dense(spec, ([1, 2, 3], 4), ("1|2|3", "4|5|6"), (1, [1, None, 3]), ([1, 2, 3], None)) == [
        [14, 24, 34], [14, 25, 36], [11, 7, 13], [7, 7, 7]
    ]  # fmt: skip
    with pytest.raises(RequestError, match=r"feature 'f': row 1: column 'col_b' has 2 values, but column 'col_a' has 3"):
        dense(spec, ([1, 2, 3], 1), ([1, 2, 3], [1, 2]))
    with pytest.raises(RequestError, match=r"feature 'f': row 0: 2 numbers, not 3"):
        dense(spec, ([1, 2], 1))


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.none() | st.integers(-9, 9), st.none() | st.sampled_from([0.0, 0.5, -3.0, 1e30])), max_size=6))
def test_json_and_arrow_agree(rows: list[tuple[int | None, float | None]]) -> None:
    spec = feature("a > b ? a / b : b - a", ("a", "b"), default="9")
    want = dense(spec, *rows)
    assert dense(spec, *[tuple(None if value is None else repr(value) for value in row) for row in rows]) == want
    for kinds in ((pa.int64(), pa.float64()), (pa.int8(), pa.float64()), (pa.string(), pa.string())):
        arrays = [
            pa.array([repr(value) if value is not None and kind == pa.string() else value for value in column], kind)
            for column, kind in zip(zip(*rows, strict=True) if rows else ((), ()), kinds, strict=True)
        ]
        table = pa.table(dict(zip(spec.columns, arrays, strict=True)))
        assert encode([spec], columns_from_arrow([spec], table), len(rows)).dense["f"].tolist() == want


def test_buckets() -> None:
    spec = feature("a == b ? 1 : 0", ("a", "b"), boundaries=(0.5,), default="0")
    columns, rows = columns_from_rows([spec], [{"col_a": 3, "col_b": 3.0}, {"col_a": 3, "col_b": 4}, {"col_a": None, "col_b": 4}])
    assert encode([spec], columns, rows).sparse["f"].values.tolist() == [1, 0, 0]


def test_values_that_are_no_numbers() -> None:
    spec = feature("a + b", ("a", "b"))
    with pytest.raises(RequestError, match=r"feature 'f': row 0: 'x' is not a number"):
        dense(spec, (1, "x"))
    with pytest.raises(RequestError, match=r"feature 'f': row 0: True is neither text nor a number"):
        dense(spec, (1, True))


@pytest.mark.parametrize(("text", "names", "problem"), [("a +", ("a",), "at its end"), ("a", ("a", "b"), "does not use 'b'")])
def test_a_wrong_expression_is_refused_by_name(text: str, names: tuple[str, ...], problem: str) -> None:
    with pytest.raises(RequestError, match=f"feature 'f': expression .*{problem}"):
        dense(feature(text, names), tuple(names))


def test_no_rows_and_one_row_as_among_many() -> None:
    spec = feature("a / (1 + b)", ("a", "b"))
    assert dense(spec) == []
    assert dense(spec, *[(3, 4)] * 500) == dense(spec, (3, 4)) * 500
