"""How a config writes a function: its name and arguments, `name,key=value,key=value`, checked against what is known."""

import math
import re
from collections.abc import Mapping

from emberline.train.features.sentences import unknown_name

Argument = bool | int | float | str
Parameters = Mapping[str, type[Argument]]

_CHOICES: Mapping[str, tuple[str, ...]] = {
    "mode": ("fan_in", "fan_out"),
    "nonlinearity": ("linear", "sigmoid", "tanh", "relu", "leaky_relu", "selu"),
    "approximate": ("none", "tanh"),
}

_PAIR = re.compile(r"\s*([A-Za-z_]\w*)\s*=\s*(.*?)\s*")


def split(text: str) -> tuple[str, dict[str, str]]:
    """`name,key=value,key=value` as a name and its arguments' texts.

    Raises:
        ValueError: a part is not of that form, or an argument is given twice.
    """
    name, *parts = text.split(",")
    arguments: dict[str, str] = {}
    for part in parts:
        match = _PAIR.fullmatch(part)
        if match is None or not match[2]:
            raise ValueError(f"{text!r}: {part.strip()!r} is not of the form name=value")
        if match[1] in arguments:
            raise ValueError(f"{text!r}: {match[1]} is given twice")
        arguments[match[1]] = match[2]
    return name.strip(), arguments


def checked(what: str, name: str, texts: Mapping[str, str], registry: Mapping[str, Parameters]) -> tuple[tuple[str, Argument], ...]:
    """The arguments as values of the right types, sorted by name.

    Args:
        what: what kind of function it is, for messages.
        name: its name.
        texts: its arguments' texts.
        registry: the known functions' parameters and their types.

    Raises:
        ValueError: unknown function or argument, or a value that does not fit.
    """
    if name not in registry:
        raise ValueError(unknown_name(what, name, registry))
    known = registry[name]
    values: dict[str, Argument] = {}
    for key, text in sorted(texts.items()):
        if key not in known:
            raise ValueError(unknown_name(f"argument of {what} {name}", key, known))
        values[key] = _value(f"{what} {name}: {key}", text, known[key])
    return tuple(values.items())


def _value(what: str, text: str, kind: type[Argument]) -> Argument:
    if kind is str:
        value = text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text
        choices = _CHOICES[what.rpartition(": ")[2]]
        if value not in choices:
            raise ValueError(f"{what} must be one of {', '.join(choices)}, found {text!r}")
        return value
    try:
        number = int(text) if kind is int else float(text)
    except ValueError:
        raise ValueError(f"{what} must be {'a whole number' if kind is int else 'a number'}, found {text!r}") from None
    if not math.isfinite(number):
        raise ValueError(f"{what} must be finite, found {text!r}")
    if kind is int and number < 1:
        raise ValueError(f"{what} must be at least 1, found {text!r}")
    return number


def joined(name: str, arguments: tuple[tuple[str, Argument], ...]) -> str:
    """The text form; reading it gives the same name and arguments."""
    return ",".join([name, *(f"{key}={value}" for key, value in arguments)])
