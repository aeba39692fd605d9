import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emberline.errors import RequestError
from emberline.serving.protocol.strict_json import parse_json, parse_object, quote

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(VALUES)
def test_what_json_writes_is_read_back(value: Any) -> None:
    assert parse_json(json.dumps(value).encode()) == value


@pytest.mark.parametrize("number", [9007199254740993, -(2**63), 2**63, 2**64 + 1, 10**4000])
def test_integers_stay_exact(number: int) -> None:
    found = parse_json(str(number).encode())
    assert (type(found), found) == (int, number)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"", "is not JSON"),
        (b"{", "is not JSON"),
        (b'{"a": 1,}', "is not JSON"),
        (b"[1] 2", "is not JSON"),
        (b"NaN", "NaN is not a JSON number"),
        (b"[-Infinity]", "-Infinity is not a JSON number"),
        (b'{"a": 1, "b": 2, "a": 3}', 'the key "a" comes twice'),
        (b'{"r": [{"x": 1, "x": 1}]}', 'the key "x" comes twice'),
        (b'"\xff"', "is not UTF-8 text: byte 1"),
        (b"[" * 100_000, "nested too deeply"),
        (b"1" * 5000, "thousands of digits"),
    ],
)
def test_what_is_not_json_is_refused(text: bytes, problem: str) -> None:
    with pytest.raises(RequestError, match=problem):
        parse_json(text)


@pytest.mark.parametrize(("text", "kind"), [("[]", "an array"), ("1", "a number"), ("null", "null"), ("true", "true or false"), ('""', "a string")])
def test_an_object_is_demanded(text: str, kind: str) -> None:
    with pytest.raises(RequestError, match=f"the body must be a JSON object, not {kind}"):
        parse_object(text)


def test_quoting_escapes_and_cuts() -> None:
    assert quote('a"b\n') == '"a\\"b\\n"'
    assert len(quote("x" * 1000)) < 90
