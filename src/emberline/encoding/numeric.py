"""Numbers: normalisers, boundaries, and dense features."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from emberline.encoding.columns import Column
from emberline.encoding.decimal import Floats
from emberline.encoding.texts import Ints, Texts
from emberline.encoding.tokens import number_items
from emberline.errors import RequestError
from emberline.schema import BoundaryEncoder, FeatureSpec, Normalizer, NumericEncoder


def normalize(normalizer: Normalizer | None, values: Floats) -> Floats:
    """Apply a normaliser to float64 values of any shape, none of them NaN.

    `log10`: log10(x) above `threshold`, else `fill`, or log10(threshold) where there is no `fill`.
    `zscore`: (x - mean) / std. `minmax`: (x - low) / (high - low).
    """
    if normalizer is None:
        return values
    numbers = dict(normalizer.parameters)
    if normalizer.method == "zscore":
        return np.asarray((values - numbers["mean"]) / numbers["std"])
    if normalizer.method == "minmax":
        return np.asarray((values - numbers["low"]) / (numbers["high"] - numbers["low"]))
    assert normalizer.method == "log10", normalizer.method
    threshold = numbers["threshold"]
    out = np.log10(np.maximum(values, threshold))
    return np.where(values > threshold, out, numbers["fill"]) if "fill" in numbers else np.asarray(out)


def boundary_ids(feature: FeatureSpec, encoder: BoundaryEncoder, column: Column) -> tuple[Ints, Ints]:
    """Bucket of each number that is there: how many boundaries are at or below it, both as float32.

    Returns:
        int64 [N] and int64 [B] lengths.
    """
    numbers, lengths = number_items(feature, column)
    there = ~np.isnan(numbers)
    if lengths is None:
        lengths = np.ones(numbers.size, dtype=np.int64)
    if not there.all():
        rows = np.repeat(np.arange(lengths.size), lengths)[there]
        lengths, numbers = np.bincount(rows, minlength=lengths.size).astype(np.int64), numbers[there]
    boundaries = np.array(encoder.boundaries, dtype=np.float32)
    with np.errstate(over="ignore"):
        values = normalize(encoder.normalizer, numbers).astype(np.float32)
    return np.searchsorted(boundaries, values, side="right").astype(np.int64), lengths


def dense_matrix(feature: FeatureSpec, column: Column, default: Floats) -> npt.NDArray[np.float32]:
    """One dense feature, float32 [B, value_dim].

    A missing row reads `default` float64 [value_dim]; so does each missing number within a row. The normaliser applies to defaults too.

    Raises:
        RequestError: a row with another number of values, or a number that isn't finite as float32; names feature and row.
    """
    assert isinstance(feature.encoder, NumericEncoder)
    numbers, lengths = number_items(feature, column)
    matrix = _matrix(feature, numbers, lengths)
    missing = np.isnan(matrix)
    if missing.any():
        matrix = np.where(missing, default, matrix)
    with np.errstate(over="ignore"):
        out = (matrix if feature.encoded else normalize(feature.encoder.normalizer, matrix)).astype(np.float32)
    finite = np.isfinite(out)
    if not finite.all():
        row = int(finite.all(axis=1).argmin())
        value = matrix[row][~finite[row]][0]
        raise RequestError(
            f"{value} is not a finite float32" + (" after the normalizer" if np.isfinite(value) else ""), feature=feature.name, row=row
        )
    return out


def dense_matrix_alike(features: Sequence[FeatureSpec], column: Column, defaults: Floats, num_rows: int) -> npt.NDArray[np.float32]:
    """Dense features of one number a row, whose columns lie one after the other in `column`: float32 [features, B].

    Args:
        features: F features of value_dim 1.
        column: F times B rows.
        defaults: float64 [F, 1].
        num_rows: B.

    Raises:
        RequestError: some value is wrong; encode the features one by one to learn which.
    """
    numbers, lengths = number_items(features[0], column)
    matrix = _matrix(features[0], numbers, lengths).reshape(len(features), num_rows)
    missing = np.isnan(matrix)
    if missing.any():
        matrix = np.where(missing, defaults, matrix)
    with np.errstate(over="ignore"):
        for row, feature in zip(matrix, features, strict=True):
            assert isinstance(feature.encoder, NumericEncoder)
            if feature.encoder.normalizer is not None and not feature.encoded:
                row[:] = normalize(feature.encoder.normalizer, row)
        out = matrix.astype(np.float32)
    if not np.isfinite(out).all():
        raise RequestError("a number is not a finite float32", feature=features[0].name)
    return out


def _matrix(feature: FeatureSpec, numbers: Floats, lengths: Ints | None) -> Floats:
    """float64 [B, value_dim], NaN where missing."""
    width = max(feature.value_dim, 1)
    if lengths is None and width == 1:
        return numbers[:, None]
    if lengths is None:
        lengths = np.ones(numbers.size, dtype=np.int64)
    full = lengths == width
    if full.all():
        return numbers.reshape(lengths.size, width)
    firsts = lengths.cumsum() - lengths
    single = np.flatnonzero(~full & (lengths == 1))
    nothing = lengths == 0
    nothing[single] = np.isnan(numbers[firsts[single]])
    wrong = ~full & ~nothing
    if wrong.any():
        row = int(wrong.argmax())
        raise RequestError(f"{int(lengths[row])} numbers, not {width}", feature=feature.name, row=row)
    out = np.full((lengths.size, width), np.nan)
    out[full] = numbers[np.repeat(full, lengths)].reshape(-1, width)
    return out


def default_numbers(feature: FeatureSpec) -> Floats:
    """A dense feature's default, float64 [value_dim]: its text's numbers (one number fills all), else zeros.

    Raises:
        RequestError: the text isn't one number or `value_dim` of them.
    """
    width = max(feature.value_dim, 1)
    if not feature.default:
        return np.zeros(width)
    try:
        numbers, _ = number_items(feature, Column(Texts.from_strings([feature.default])))
    except RequestError as error:
        raise RequestError(f"default {feature.default!r}: {error.problem}", feature=feature.name) from None
    if numbers.size not in (1, width) or not np.isfinite(numbers).all():
        raise RequestError(f"default {feature.default!r} is not one number or {width} of them", feature=feature.name)
    return np.broadcast_to(numbers, (width,))
