"""JSON as RFC 8259 has it, with exact integers: no NaN, no key twice in one object, and errors as `RequestError`."""

import json
from typing import Any, NoReturn

from emberline.errors import RequestError


def quote(name: object) -> str:
    """A caller's text for an error message: quoted, escaped, and cut after 80 characters."""
    text = json.dumps(name if isinstance(name, str) else repr(name))
    return text if len(text) <= 82 else text[:80] + '..."'


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise RequestError(f"the key {quote(twice)} comes twice in one JSON object")
    return found


def _refuse_constant(text: str) -> NoReturn:
    raise RequestError(f"{text} is not a JSON number")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse_constant)


def parse_json(text: bytes | bytearray | memoryview | str, what: str = "the body") -> Any:
    """Parse JSON text.

    Integers of any size stay exact Python ints; a number with a fraction or an exponent is a float.

    Args:
        text: UTF-8.
        what: what the text is, for the message.

    Raises:
        RequestError: it is not UTF-8 or not JSON, holds NaN or Infinity, or has a key twice in one object.
    """
    try:
        return _DECODER.decode(text if isinstance(text, str) else str(text, "utf-8"))
    except json.JSONDecodeError as error:
        raise RequestError(f"{what} is not JSON: {error.msg} at character {error.pos}") from None
    except UnicodeDecodeError as error:
        raise RequestError(f"{what} is not UTF-8 text: byte {error.start} is wrong") from None
    except RecursionError:
        raise RequestError(f"{what} is not usable: its JSON is nested too deeply") from None
    except ValueError:
        raise RequestError(f"{what} is not usable: it holds an integer of thousands of digits") from None


def parse_object(text: bytes | bytearray | memoryview | str, what: str = "the body") -> dict[str, Any]:
    """`parse_json` of text that must be a JSON object."""
    value = parse_json(text, what)
    if not isinstance(value, dict):
        raise RequestError(f"{what} must be a JSON object, not {json_type(value)}")
    return value


def json_type(value: object) -> str:
    """What JSON calls a parsed value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "a string"
    return "an array" if isinstance(value, list) else "an object"
