"""From a raw column to what an encoder reads: the values of each row without the missing ones, split, with their weights.

Missing is the same everywhere: null, empty text, NaN, an empty list. The items of a list or map are never split.
"""

from dataclasses import dataclass

import numpy as np

from emberline.encoding.columns import MOST_IDS, Column, Numbers, show, sums
from emberline.encoding.decimal import Floats, texts_to_floats
from emberline.encoding.rows import texts_from_strings
from emberline.encoding.texts import Bools, Ints, Texts, find_last, split_texts
from emberline.errors import RequestError
from emberline.schema import FeatureSpec

_MOST_WHOLE, _MOST_WHOLE_32 = 2.0**53 - 1, 2.0**24 - 1
_INT64 = range(-(2**63), 2**63)


@dataclass(frozen=True)
class Tokens:
    """The values of one column that are there: what each row's ids are made from.

    Args:
        values: int64 or texts [N].
        lengths: int64 [B].
        weights: float64 [N], or None.
    """

    values: Ints | Texts
    lengths: Ints
    weights: Floats | None = None

    def row_of(self, token: int) -> int:
        """The row that holds a token."""
        return int(np.searchsorted(self.lengths.cumsum(), token, side="right"))

    def shown(self, token: int) -> str:
        """A token as messages quote it."""
        return show(self.values.text(token) if isinstance(self.values, Texts) else int(self.values[token]))


def _lengths(column: Column) -> Ints:
    return np.ones(column.num_rows, dtype=np.int64) if column.lengths is None else column.lengths.astype(np.int64)


def keep(tokens: Tokens, kept: Bools) -> Tokens:
    """Only the tokens where `kept` [N] is true."""
    if not len(tokens.values) or kept.all():
        return tokens
    values = tokens.values.take(kept) if isinstance(tokens.values, Texts) else tokens.values[kept]
    weights = None if tokens.weights is None else tokens.weights[kept]
    return Tokens(values, sums(kept.astype(np.int64), tokens.lengths), weights)


def id_tokens(feature: FeatureSpec, column: Column) -> Tokens:
    """What a sparse feature's ids are made from.

    Raises:
        RequestError: a boolean, a fraction, a number outside int64, or a weight that is not a finite number; names feature and row.
    """
    if column.weights is not None and not feature.weighted:
        raise RequestError("the values have weights, but the feature is not weighted", feature=feature.name)
    if column.map_values is not None and column.weights is None:
        raise RequestError("the values are maps of what is no number, but the feature reads ids", feature=feature.name)
    items, valid = column.items, column.valid
    if isinstance(items, list):
        valid = _and(valid, _not_nan(items))
        items = _plain_ids(feature, column, items)
    elif not isinstance(items, Texts):
        items, valid = _whole_numbers(feature, column, items, valid)
    tokens = Tokens(items, _lengths(column), column.weights)
    if valid is not None:
        tokens = keep(tokens, valid)
    if isinstance(items, Texts):
        tokens = _split(feature, column, tokens, valid)
    if feature.weighted:
        tokens = Tokens(tokens.values, tokens.lengths, _checked_weights(feature, tokens))
    return tokens


def _and(left: Bools | None, right: Bools | None) -> Bools | None:
    if left is None or right is None:
        return right if left is None else left
    return left & right


def _not_nan(items: list[object]) -> Bools | None:
    if float not in set(map(type, items)):
        return None
    return np.array([not (isinstance(item, float) and item != item) for item in items], dtype=np.bool_)


def _plain_ids(feature: FeatureSpec, column: Column, items: list[object]) -> Texts:
    """Items of mixed kinds as texts: a whole number and its decimal text are the same id under every encoder."""
    texts = []
    for item, value in enumerate(items):
        if isinstance(value, float) and value == value:
            if not value.is_integer() or abs(value) > _MOST_WHOLE:
                raise _not_whole(feature, column, item, value)
            value = int(value)
        if isinstance(value, int):
            if value not in _INT64:
                raise RequestError(f"{show(value)} does not fit 64 bits", feature=feature.name, row=column.row_of(item))
            value = str(value)
        texts.append(value if isinstance(value, str) else "")
    return texts_from_strings(feature.name, texts, column.lengths)


def _not_whole(feature: FeatureSpec, column: Column, item: int, value: float) -> RequestError:
    whole = float(value).is_integer()
    problem = "is too large for a float to hold every whole number; give it as an integer or text" if whole else "is not a whole number"
    return RequestError(f"{show(float(value))} {problem}", feature=feature.name, row=column.row_of(item))


def _whole_numbers(feature: FeatureSpec, column: Column, items: Numbers, valid: Bools | None) -> tuple[Ints, Bools | None]:
    """Numbers as int64; NaN counts as missing."""
    if items.dtype == np.int64:
        return items.astype(np.int64, copy=False), valid
    if items.dtype == np.uint64:
        wrong = items > np.uint64(2**63 - 1)
        if valid is not None:
            wrong &= valid
        if wrong.any():
            item = int(wrong.argmax())
            raise RequestError(f"{int(items[item])} does not fit 64 bits", feature=feature.name, row=column.row_of(item))
        return items.astype(np.int64), valid
    there = ~np.isnan(items)
    if valid is not None:
        there &= valid
    exact = items.astype(np.float64)
    most = _MOST_WHOLE_32 if items.dtype == np.float32 else _MOST_WHOLE
    wrong = there & ((np.floor(exact) != exact) | (np.abs(exact) > most))
    if wrong.any():
        item = int(wrong.argmax())
        raise _not_whole(feature, column, item, float(exact[item]))
    return np.where(there, exact, 0.0).astype(np.int64), None if there.all() else there


def _split(feature: FeatureSpec, column: Column, tokens: Tokens, valid: Bools | None) -> Tokens:
    """Split texts at the separator, take `:weight` off where the feature is weighted, drop empty pieces."""
    texts, lengths, weights = tokens.values, tokens.lengths, tokens.weights
    assert isinstance(texts, Texts)
    if column.whole is not True:
        splittable = None
        if not isinstance(column.whole, bool):
            splittable = ~(column.whole if valid is None else column.whole[valid])
        texts, counts = split_texts(texts, feature.separator, splittable)
        if len(texts) != counts.size:
            lengths = sums(counts, lengths)
    tokens = Tokens(texts, lengths, weights)
    if feature.weighted and weights is None:
        tokens = _take_weights(feature, keep(tokens, texts.sizes > 0))
        assert isinstance(tokens.values, Texts)
        texts = tokens.values
    return keep(tokens, texts.sizes > 0)


def _take_weights(feature: FeatureSpec, tokens: Tokens) -> Tokens:
    """Take `:weight` off each text: what follows its last colon. A text without a colon weighs 1."""
    assert isinstance(tokens.values, Texts)
    texts, colons = find_last(tokens.values, ":")
    has = colons >= 0
    weights = np.ones(len(texts))
    if not has.any():
        return Tokens(texts, tokens.lengths, weights)
    numbers, good = texts_to_floats(Texts(texts.buffer, colons[has] + 1, texts.ends[has]))
    if not good.all():
        token = int(np.flatnonzero(has)[good.argmin()])
        raise RequestError(f"{show(texts.text(token))} does not end in ':' and a number", feature=feature.name, row=tokens.row_of(token))
    weights[has] = numbers
    return Tokens(Texts(texts.buffer, texts.starts, np.where(has, colons, texts.ends)), tokens.lengths, weights)


def _checked_weights(feature: FeatureSpec, tokens: Tokens) -> Floats:
    if tokens.weights is None:
        return np.ones(len(tokens.values))
    finite = np.abs(tokens.weights) <= float(np.finfo(np.float32).max)
    if not finite.all():
        token = int(finite.argmin())
        problem = f"weight {tokens.weights[token]} of {tokens.shown(token)} is not a finite float32"
        raise RequestError(problem, feature=feature.name, row=tokens.row_of(token))
    return tokens.weights


def number_items(feature: FeatureSpec, column: Column) -> tuple[Floats, Ints | None]:
    """A column as numbers.

    Returns:
        float64 [N], NaN where a value is missing, and int64 [B] values of each row (None: one each).

    Raises:
        RequestError: a text that is not a number, or a boolean; names feature and row.
    """
    if column.weights is not None:
        raise RequestError("the values have weights, but the feature reads numbers", feature=feature.name)
    if column.map_values is not None:
        raise RequestError("the values are maps, but the feature reads numbers", feature=feature.name)
    items, valid = column.items, column.valid
    lengths = None if column.lengths is None else column.lengths.astype(np.int64)
    if isinstance(items, list):
        items = texts_from_strings(feature.name, list(map(_number_text, items)), column.lengths)
    if not isinstance(items, Texts):
        numbers = items.astype(np.float64)
        return (numbers if valid is None else np.where(valid, numbers, np.nan)), lengths
    if valid is not None and not valid.all():
        items = Texts(items.buffer, items.starts, np.where(valid, items.ends, items.starts))
    if column.whole is not True:
        splittable = None if isinstance(column.whole, bool) else ~column.whole
        items, counts = split_texts(items, feature.separator, splittable)
        if len(items) != counts.size:
            lengths = sums(counts, _lengths(column))
    numbers, good = texts_to_floats(items)
    wrong = ~good & (items.sizes > 0)
    if wrong.any():
        item = int(wrong.argmax())
        row = item if lengths is None else int(np.searchsorted(lengths.cumsum(), item, side="right"))
        raise RequestError(f"{show(items.text(item))} is not a number", feature=feature.name, row=row)
    return numbers, lengths


def _number_text(value: object) -> str:
    """A text that reads back as the same float64. One for a whole number that is too large is no number, and says what it was."""
    if isinstance(value, str):
        return value
    if isinstance(value, int):
        return str(value) if value.bit_length() <= 200 else show(value)
    assert isinstance(value, float)
    if abs(value) == float("inf"):
        return "1e999" if value > 0 else "-1e999"
    return "" if value != value else repr(value)


def check_total(feature: FeatureSpec, total: float) -> None:
    """Refuse more ids than int32 offsets can count.

    Raises:
        RequestError: names the feature and the limit.
    """
    if total > MOST_IDS:
        raise RequestError(f"{total:.0f} ids in one batch, more than {MOST_IDS}", feature=feature.name)
