"""From JSON data back to the frozen dataclasses that it was made of by `asdict`, each value checked against the type of its field."""

import functools
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from typing import Any, Literal, TypeVar

Made = TypeVar("Made")
_NAMES = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}


def from_plain(kind: type[Made], data: object) -> Made:
    """An object of a dataclass.

    Fields may be numbers, texts, enums, tuples, mappings of texts, such dataclasses, one of several dataclasses by the default of their field `type`,
    and any of these or none. One that the data do not have gets its default.

    Args:
        kind: the dataclass.
        data: what `asdict` gave, or JSON made of that.

    Raises:
        ValueError: a field is missing, unknown or of another type; the message names the first by its path, such as `tables[2].rows`.
    """
    found: Made = _read(kind, data, "")
    return found


def _read(kind: Any, value: object, where: str) -> Any:
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return value
    if isinstance(kind, type) and is_dataclass(kind):
        return _read_object(kind, value, where)
    if origin in (typing.Union, types.UnionType):
        return None if value is None and types.NoneType in parts else _read(_chosen(parts, value, where), value, where)
    if origin is Literal:
        return value if value in parts else _refuse(where, " or ".join(map(repr, parts)), value)
    if origin is tuple:
        return _read_tuple(parts, value, where)
    if origin is Mapping:
        entries = value if isinstance(value, Mapping) else _refuse(where, "an object", value)
        return {name: _read(parts[1], item, f"{where}[{name!r}]") for name, item in entries.items()}
    if isinstance(kind, type) and issubclass(kind, Enum):
        known = [one.value for one in kind]
        return kind(value) if value in known else _refuse(where, f"one of {', '.join(known)}", value)
    assert kind in _NAMES, kind
    return value if _is_of(kind, value) else _refuse(where, _NAMES[kind], value)


def _is_of(kind: type, value: object) -> bool:
    return type(value) is kind or (kind is float and type(value) is int) or (kind is str and isinstance(value, str))


@functools.cache
def _types_of(kind: type) -> dict[str, tuple[Any, bool]]:
    """The type of each field, and whether the data must have it."""
    hints = typing.get_type_hints(kind)
    return {field.name: (hints[field.name], field.default is MISSING and field.default_factory is MISSING) for field in fields(kind)}


def _read_object(kind: type, value: object, where: str) -> Any:
    data = value if isinstance(value, Mapping) else _refuse(where, "an object", value)
    known = _types_of(kind)
    for name in data:
        if name not in known:
            raise ValueError(f"{_below(where, name)} is unknown")
    for name, (_, needed) in known.items():
        if needed and name not in data:
            raise ValueError(f"{_below(where, name)} is missing")
    return kind(**{name: _read(known[name][0], item, _below(where, name)) for name, item in data.items()})


def _read_tuple(parts: tuple[Any, ...], value: object, where: str) -> tuple[Any, ...]:
    items = value if isinstance(value, list | tuple) else _refuse(where, "a list", value)
    if parts[-1] is not Ellipsis:
        if len(items) != len(parts):
            _refuse(where, f"a list of {len(parts)}", value)
        return tuple(_read(part, item, f"{where}[{place}]") for place, (part, item) in enumerate(zip(parts, items, strict=True)))
    if parts[0] in _NAMES and {type(item) for item in items} <= {parts[0]}:  # such as a million words
        return tuple(items)
    return tuple(_read(parts[0], item, f"{where}[{place}]") for place, item in enumerate(items))


def _chosen(parts: tuple[Any, ...], value: object, where: str) -> Any:
    """The one of several types that a value is to be: the only one but None, or the dataclass that its `type` names."""
    kinds = [part for part in parts if part is not types.NoneType]
    if len(kinds) == 1:
        return kinds[0]
    data = value if isinstance(value, Mapping) else _refuse(where, "an object", value)
    by_type = {str(next(field.default for field in fields(kind) if field.name == "type")): kind for kind in kinds}
    name = data.get("type")
    return by_type[name] if isinstance(name, str) and name in by_type else _refuse(_below(where, "type"), f"one of {', '.join(by_type)}", name)


def _below(where: str, name: object) -> str:
    return f"{where}.{name}" if where else str(name)


def _refuse(where: str, wanted: str, value: object) -> Any:
    """Raises ValueError."""
    text = repr(value)
    raise ValueError(f"{where or 'the whole'} must be {wanted}, found {text if len(text) < 80 else text[:77] + '...'}")
