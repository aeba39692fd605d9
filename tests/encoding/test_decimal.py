import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emberline.encoding.decimal import integers_to_texts, texts_to_floats, texts_to_integers
from emberline.encoding.texts import Texts

INT64 = st.integers(-(2**63), 2**63 - 1)
EDGES = [0, 1, -1, 9, 10, 9999, 10_000, 99_999_999, 100_000_000, 10**16, 10**18, 2**63 - 1, -(2**63), -(2**63) + 1, 2**53 + 1]
NUMBERISH = st.text(alphabet="0123456789+-.eE", max_size=24)
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|nan|NaN|NAN")


def _is_canonical(text: str) -> bool:
    return bool(re.fullmatch(r"0|-?[1-9][0-9]*", text)) and -(2**63) <= int(text) < 2**63


def _strings(texts: Texts) -> list[str]:
    return [texts.text(position) for position in range(len(texts))]


@given(st.lists(INT64 | st.sampled_from(EDGES), max_size=80))
def test_integers_print_as_str_does_and_read_back(values: list[int]) -> None:
    texts = integers_to_texts(np.array(values, dtype=np.int64))
    assert _strings(texts) == [str(value) for value in values]
    read, good = texts_to_integers(texts)
    assert good.all()
    assert read.tolist() == values


@given(st.lists(NUMBERISH | st.text(max_size=22) | INT64.map(str) | st.integers(-(2**70), 2**70).map(str), max_size=80))
def test_only_canonical_decimals_are_integers(texts: list[str]) -> None:
    values, good = texts_to_integers(Texts.from_strings(texts))
    assert good.tolist() == [_is_canonical(text) for text in texts]
    assert values.tolist() == [int(text) if _is_canonical(text) else 0 for text in texts]


NO_INTEGERS = ["", "-", "+1", "-0", "00", "007", "-07", " 7", "7 ", "1.0", "1e3", "1_0", "\u0663", "0x10", "1\x00", "\x007"]
OVERFLOWS = ["9223372036854775808", "-9223372036854775809", "99999999999999999999", "18446744073709551617", "118446744073709551616"]


@pytest.mark.parametrize("copies", [1, 40])
@pytest.mark.parametrize("text", [*NO_INTEGERS, *OVERFLOWS])
def test_what_is_no_canonical_integer(text: str, copies: int) -> None:
    values, good = texts_to_integers(Texts.from_strings([text] * copies))
    assert not good.any()
    assert not values.any()


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False).map(repr) | st.decimals(-1000, 1000, places=3).map(str) | NUMBERISH, max_size=80))
def test_floats_are_the_nearest_and_nothing_else_is_a_number(texts: list[str]) -> None:
    values, good = texts_to_floats(Texts.from_strings(texts))
    assert good.tolist() == [bool(_NUMBER.fullmatch(text)) for text in texts]
    for text, value, is_number in zip(texts, values.tolist(), good.tolist(), strict=True):
        if is_number:
            assert math.copysign(1, value) == math.copysign(1, float(text))
            assert value == float(text)
        else:
            assert math.isnan(value)


@pytest.mark.parametrize("copies", [1, 40])
@pytest.mark.parametrize("text", ["inf", "-inf", "Infinity", "1_0", " 1", "1 ", "0x1", "1" * 65, "1\x00", "nan\x00", "--1", "1-1", "1.-5", "e5", "."])
def test_what_is_no_number(text: str, copies: int) -> None:
    assert not texts_to_floats(Texts.from_strings([text] * copies))[1].any()


def test_nan_is_a_number_that_is_missing() -> None:
    values, good = texts_to_floats(Texts.from_strings(["nan", "NaN", "1"] * 20))
    assert good.all()
    assert np.isnan(values).tolist() == [True, True, False] * 20
