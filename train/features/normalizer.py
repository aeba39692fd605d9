"""Normalisers as a config writes them: `method=zscore,mean=0.0,standard_deviation=10.0`."""

import math

from emberline.schema import Normalizer
from emberline.train.features.sentences import unknown_name

_METHODS: dict[str, dict[str, tuple[str, float | None]]] = {
    "log10": {"threshold": ("threshold", 1e-10), "default": ("fill", -10.0)},
    "zscore": {"mean": ("mean", None), "standard_deviation": ("std", None)},
    "minmax": {"min": ("low", None), "max": ("high", None)},
}
"""Method -> the config's argument -> the core's name for it, and its default (None: it must be given)."""


def read_normalizer(text: str) -> Normalizer:
    """A normaliser from its text.

    | text | a number x becomes |
    |---|---|
    | `method=log10,threshold=1e-10,default=-10` | log10(x) where x > threshold, else default |
    | `method=zscore,mean=0.0,standard_deviation=10.0` | (x - mean) / standard_deviation |
    | `method=minmax,min=2.1,max=2.2` | (x - min) / (max - min) |

    Raises:
        ValueError: unknown method or argument, a missing one, or one that does not fit.
    """
    given = _pairs(text)
    method = given.pop("method", "")
    if method == "expression":
        raise ValueError(f"{text!r}: method=expression is not supported yet; use log10, zscore or minmax")
    if method not in _METHODS:
        raise ValueError(f"{text!r}: " + unknown_name("method", method, _METHODS))
    arguments = _METHODS[method]
    for key in given:
        if key not in arguments:
            raise ValueError(f"{text!r}: " + unknown_name(f"argument of {method}", key, arguments))
    values = {}
    for key, (name, default) in arguments.items():
        value = _number(text, key, given[key]) if key in given else default
        if value is None:
            raise ValueError(f"{text!r}: {method} needs {key}=<number>")
        values[name] = value
    _check(text, method, values)
    return Normalizer(method=method, parameters=tuple(sorted(values.items())))


def _pairs(text: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not (key and equals and value):
            raise ValueError(f"{text!r}: {part.strip()!r} is not of the form name=value")
        if key in pairs:
            raise ValueError(f"{text!r}: {key} is given twice")
        pairs[key] = value
    return pairs


def _number(text: str, key: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{text!r}: {key} must be a finite number, found {value!r}")
    return number


def _check(text: str, method: str, values: dict[str, float]) -> None:
    if method == "log10" and values["threshold"] < 0.0:
        raise ValueError(f"{text!r}: threshold must not be negative")
    if method == "zscore" and values["std"] <= 0.0:
        raise ValueError(f"{text!r}: standard_deviation must be above 0")
    if method == "minmax" and values["low"] >= values["high"]:
        raise ValueError(f"{text!r}: min must be below max")
