"""Expressions over columns: one number for each value of a row.

A missing value is NaN, and what is worked out from one is missing too; only `&&`, `||` and the choice that is not taken look past it.
Numbers are float64 as IEEE 754 has them, so 1 / 0 is infinite and 1 / (1 / 0) is 0; a result that is no finite float32 is missing.
"""

from collections.abc import Callable, Sequence

import numpy as np

from emberline.encoding.columns import Column
from emberline.encoding.decimal import Floats
from emberline.encoding.expression import Call, Number, Program, Variable
from emberline.encoding.texts import Bools, Ints, ranges
from emberline.encoding.tokens import number_items
from emberline.errors import RequestError
from emberline.schema import ExprEncoder, FeatureSpec

_MOST = float(np.finfo(np.float32).max)


def _strict(function: Callable[..., object]) -> Callable[..., Floats]:
    """The function, missing where an argument is: NumPy's own 1 ** NaN is 1."""

    def call(*arguments: Floats) -> Floats:
        missing = np.isnan(arguments[0])
        for argument in arguments[1:]:
            missing = missing | np.isnan(argument)
        return np.where(missing, np.nan, np.asarray(function(*arguments), dtype=np.float64))

    return call


def _and(left: Floats, right: Floats) -> Floats:
    no = (left == 0) | (right == 0)
    return np.where(no, 0.0, np.where(np.isnan(left) | np.isnan(right), np.nan, 1.0))


def _or(left: Floats, right: Floats) -> Floats:
    yes = _true(left) | _true(right)
    return np.where(yes, 1.0, np.where(np.isnan(left) | np.isnan(right), np.nan, 0.0))


def _true(value: Floats) -> Bools:
    return np.asarray((value != 0) & ~np.isnan(value))


def _if(condition: Floats, chosen: Floats, other: Floats) -> Floats:
    return np.where(np.isnan(condition), np.nan, np.where(condition != 0, chosen, other))


def _round(value: Floats) -> Floats:
    """Halves go away from 0."""
    whole = np.trunc(value)
    return np.where(np.abs(value - whole) >= 0.5, whole + np.sign(value), whole)


def _sigmoid(value: Floats) -> Floats:
    small = np.exp(-np.abs(value))
    return np.asarray(np.where(value >= 0, 1.0, small) / (1.0 + small))


def _clip(value: Floats, low: Floats, high: Floats) -> Floats:
    return np.minimum(np.maximum(value, low), high)


def _sum(*values: Floats) -> Floats:
    total = values[0]
    for value in values[1:]:
        total = total + value
    return total


def _least(*values: Floats) -> Floats:
    least = values[0]
    for value in values[1:]:
        least = np.minimum(least, value)
    return least


def _largest(*values: Floats) -> Floats:
    largest = values[0]
    for value in values[1:]:
        largest = np.maximum(largest, value)
    return largest


_FUNCTIONS: dict[str, Callable[..., Floats]] = {
    "||": _or,
    "&&": _and,
    "if": _if,
    "!": _strict(lambda value: value == 0),
    "negative": np.negative,
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
    "%": np.fmod,
    "**": _strict(np.power),
    "==": _strict(np.equal),
    "!=": _strict(np.not_equal),
    "<": _strict(np.less),
    "<=": _strict(np.less_equal),
    ">": _strict(np.greater),
    ">=": _strict(np.greater_equal),
    "round": _round,
    "sigmoid": _sigmoid,
    "clip": _clip,
    "min": _least,
    "max": _largest,
    "sum": _sum,
    "avg": lambda *values: _sum(*values) / len(values),
    "abs": np.abs,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
}
_FUNCTIONS |= {name: getattr(np, name) for name in ("sign", "sqrt", "exp", "expm1", "log", "log1p", "log2", "log10")}
_FUNCTIONS |= {name: getattr(np, name) for name in ("floor", "ceil", "trunc", "rint", "sin", "cos", "tan", "sinh", "cosh", "tanh")}


def evaluate(program: Program, variables: dict[str, Floats]) -> Floats:
    """Run a program on float64 arrays of one size, NaN where missing; the result may hold infinities."""
    stack: list[Floats] = []
    with np.errstate(all="ignore"):
        for part in program:
            if isinstance(part, Number):
                stack.append(np.array(part.value))
            elif isinstance(part, Variable):
                stack.append(variables[part.name])
            else:
                assert isinstance(part, Call)
                arguments = stack[-part.count :]
                del stack[-part.count :]
                stack.append(_FUNCTIONS[part.function](*arguments))
    return stack.pop()


def expression_column(feature: FeatureSpec, encoder: ExprEncoder, columns: Sequence[Column], program: Program) -> Column:
    """The expression's numbers, float64, NaN where missing.

    Columns of several values a row are taken value by value; a column of one value, or of none, holds for all values of the row.

    Raises:
        RequestError: two columns of which a row has several values each, but not equally many; or a value that is no number.
    """
    read = [number_items(feature, column) for column in columns]
    numbers, lengths = _aligned(feature, read)
    if encoder.fill_missing is not None:
        numbers = [np.where(np.isnan(values), encoder.fill_missing, values) for values in numbers]
    result = evaluate(program, dict(zip(encoder.variables, numbers, strict=True)))
    return Column(np.where(np.abs(result) <= _MOST, result, np.nan), None if lengths is None else lengths.astype(np.int32))


def _aligned(feature: FeatureSpec, read: Sequence[tuple[Floats, Ints | None]]) -> tuple[list[Floats], Ints | None]:
    """All columns with the same number of values in each row, at least one."""
    if all(lengths is None for _, lengths in read):
        return [values for values, _ in read], None
    sizes = [np.ones(values.size, dtype=np.int64) if lengths is None else lengths for values, lengths in read]
    most = np.maximum(np.max(np.stack(sizes), axis=0), 1)
    for name, size in zip(feature.columns, sizes, strict=True):
        wrong = (size > 1) & (size != most)
        if wrong.any():
            row = int(wrong.argmax())
            longest = next(other for other, longer in zip(feature.columns, sizes, strict=True) if longer[row] == most[row])
            problem = f"column {name!r} has {int(size[row])} values, but column {longest!r} has {int(most[row])}"
            raise RequestError(problem, feature=feature.name, row=row)
    return [_spread(values, size, most) for (values, _), size in zip(read, sizes, strict=True)], most


def _spread(values: Floats, sizes: Ints, most: Ints) -> Floats:
    """Rows of one value repeat it, rows of none are NaN."""
    if (sizes == most).all():
        return values
    firsts = sizes.cumsum() - sizes
    places = np.where(np.repeat(sizes == most, most), ranges(firsts, most), np.repeat(firsts, most))
    places[np.repeat(sizes == 0, most)] = values.size
    return np.asarray(np.append(values, np.nan)[places])
