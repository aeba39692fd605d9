"""The functions that a config may name: a closed registry, so that a config file is data and never code.

A config writes a name and its arguments, `nn.init.uniform_,a=-0.01,b=0.01`. Parsing gives a frozen spec: two specs are equal where they
name the same function with the same arguments, however they were spelt, and `build()` makes the callable.
"""

import ast
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn

from emberline.train.config.activations import Dice
from emberline.train.config.named import Argument, Parameters, checked, joined, split

_INITS: Mapping[str, Parameters] = {
    "nn.init.uniform_": {"a": float, "b": float},
    "nn.init.normal_": {"mean": float, "std": float},
    "nn.init.trunc_normal_": {"mean": float, "std": float, "a": float, "b": float},
    "nn.init.constant_": {"val": float},
    "nn.init.zeros_": {},
    "nn.init.ones_": {},
    "nn.init.xavier_uniform_": {"gain": float},
    "nn.init.xavier_normal_": {"gain": float},
    "nn.init.kaiming_uniform_": {"a": float, "mode": str, "nonlinearity": str},
    "nn.init.kaiming_normal_": {"a": float, "mode": str, "nonlinearity": str},
}
_INIT_REQUIRED: Mapping[str, tuple[str, ...]] = {"nn.init.constant_": ("val",)}
_ACTIVATIONS: Mapping[str, Parameters] = {
    "nn.ReLU": {},
    "nn.ReLU6": {},
    "nn.SiLU": {},
    "nn.GELU": {"approximate": str},
    "nn.Sigmoid": {},
    "nn.Tanh": {},
    "nn.LeakyReLU": {"negative_slope": float},
    "nn.PReLU": {"num_parameters": int, "init": float},
    "nn.ELU": {"alpha": float},
    "nn.Softplus": {"beta": float, "threshold": float},
    "nn.Hardswish": {},
    "nn.Identity": {},
    "Dice": {"eps": float},
}
_FILTERS: Mapping[str, Parameters] = {
    "average_threshold_filter": {},
    "dynamic_threshold_filter": {"threshold_skew_multiplier": float},
    "probabilistic_threshold_filter": {"per_id_probability": float},
    "count_threshold_filter": {"threshold": float},
}
ThresholdFilter = Callable[[Tensor], tuple[Tensor, float | Tensor]]


@dataclass(frozen=True, kw_only=True)
class InitSpec:
    """A function of `torch.nn.init` with its arguments.

    | text | meaning |
    |---|---|
    | `nn.init.uniform_,a=-0.01,b=0.01` | uniform in [-0.01, 0.01) |
    | `nn.init.trunc_normal_,std=0.05` | normal, cut at +-2 |
    | `torch.nn.init.zeros_` | zeros |

    Args:
        name: `nn.init.<function>`.
        arguments: pairs of name and value, sorted by name.
    """

    name: str
    arguments: tuple[tuple[str, Argument], ...] = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the text form; `torch.nn.init.` and a bare function name are understood too.

        Raises:
            ValueError: unknown function or argument, or a value that does not fit; the message says what would be right.
        """
        name, arguments = split(text)
        name = name.removeprefix("torch.")
        if name and "." not in name:
            name = f"nn.init.{name}"
        spec = cls(name=name, arguments=checked("init function", name, arguments, _INITS))
        given = dict(spec.arguments)
        for required in _INIT_REQUIRED.get(name, ()):
            if required not in given:
                raise ValueError(f"init function {name} needs {required}=<number>")
        _check_init_range(name, given)
        return spec

    def build(self) -> Callable[[Tensor], Tensor]:
        """A function that fills a tensor in place and returns it."""
        function: Callable[..., Tensor] = getattr(nn.init, self.name.removeprefix("nn.init."))
        return partial(function, **dict(self.arguments))

    def __str__(self) -> str:
        return joined(self.name, self.arguments)


@dataclass(frozen=True, kw_only=True)
class ActivationSpec:
    """An activation with its arguments: a class of `torch.nn` such as `nn.ReLU`, or `Dice`.

    Args:
        name: `nn.<class>` or `Dice`.
        arguments: pairs of name and value, sorted by name.
    """

    name: str
    arguments: tuple[tuple[str, Argument], ...] = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the text form, `nn.LeakyReLU,negative_slope=0.1`; empty text means none, which is `nn.Identity`.

        Raises:
            ValueError: unknown activation or argument, or a value that does not fit; the message says what would be right.
        """
        name, arguments = split(text) if text.strip() else ("nn.Identity", {})
        name = name.removeprefix("torch.")
        if f"nn.{name}" in _ACTIVATIONS:
            name = f"nn.{name}"
        return cls(name=name, arguments=checked("activation", name, arguments, _ACTIVATIONS))

    def build(self, width: int) -> nn.Module:
        """A new module for inputs of shape [..., width]."""
        if self.name == "Dice":
            return Dice(width, **{key: float(value) for key, value in self.arguments})
        module: nn.Module = getattr(nn, self.name.removeprefix("nn."))(**dict(self.arguments))
        return module

    def __str__(self) -> str:
        return joined(self.name, self.arguments)


@dataclass(frozen=True, kw_only=True)
class ThresholdFilterSpec:
    """Which ids of a ZCH history are seen often enough to be admitted.

    | name | an id is admitted where |
    |---|---|
    | `average_threshold_filter` | count > mean of the counts |
    | `dynamic_threshold_filter` | count > sum of counts / ids * `threshold_skew_multiplier` (10) |
    | `count_threshold_filter` | count > `threshold`, which must be given |
    | `probabilistic_threshold_filter` | 1 - (1 - p) ** count > a random number, p = `per_id_probability` (0.01) |

    Args:
        name: one of the names above.
        arguments: pairs of name and value, sorted by name.
    """

    name: str
    arguments: tuple[tuple[str, Argument], ...] = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `name,k=v`, `partial(name, k=v)` or `lambda x: name(x, k=v)`; nothing is evaluated.

        Raises:
            ValueError: another form, unknown filter or argument, or a value that does not fit; the message says what would be right.
        """
        name, arguments = _split_call(text)
        spec = cls(name=name, arguments=checked("threshold filter", name, arguments, _FILTERS))
        given = dict(spec.arguments)
        if not 0.0 <= float(given.get("per_id_probability", 0.0)) <= 1.0:
            raise ValueError(f"threshold filter {name}: per_id_probability must be between 0 and 1")
        if float(given.get("threshold_skew_multiplier", 0.0)) < 0.0:
            raise ValueError(f"threshold filter {name}: threshold_skew_multiplier must not be negative")
        if name == "count_threshold_filter" and not 0.0 <= float(given.get("threshold", -1.0)) < math.inf:
            raise ValueError(f"threshold filter {name} needs threshold=<count>, not negative: ids seen more often are admitted")
        return spec

    def build(self) -> ThresholdFilter:
        """A function from counts [K] to a boolean mask [K] of admitted ids and the threshold."""
        return partial(_FILTER_FUNCTIONS[self.name], **{key: float(value) for key, value in self.arguments})

    def __str__(self) -> str:
        return joined(self.name, self.arguments)


def _average(counts: Tensor) -> tuple[Tensor, float]:
    threshold = float(counts.double().mean()) if counts.numel() else 0.0
    return counts > threshold, threshold


def _dynamic(counts: Tensor, threshold_skew_multiplier: float = 10.0) -> tuple[Tensor, float]:
    threshold = float(counts.sum()) / max(counts.numel(), 1) * threshold_skew_multiplier
    return counts > threshold, threshold


def _probabilistic(counts: Tensor, per_id_probability: float = 0.01) -> tuple[Tensor, Tensor]:
    threshold = torch.rand(counts.shape, device=counts.device)
    return 1.0 - (1.0 - per_id_probability) ** counts.double() > threshold, threshold


def _count(counts: Tensor, threshold: float) -> tuple[Tensor, float]:
    return counts > threshold, threshold


_FILTER_FUNCTIONS: Mapping[str, Callable[..., tuple[Tensor, float | Tensor]]] = {
    "average_threshold_filter": _average,
    "dynamic_threshold_filter": _dynamic,
    "probabilistic_threshold_filter": _probabilistic,
    "count_threshold_filter": _count,
}


def _split_call(text: str) -> tuple[str, dict[str, str]]:
    """A filter in any of its three forms as a name and its arguments' texts."""
    stripped = text.strip()
    if not re.match(r"(functools\s*\.\s*)?partial\b|lambda\b", stripped):
        return split(stripped)
    form = ValueError(f"{text!r}: write name,argument=value, or partial(name, argument=value)")
    try:
        node = ast.parse(stripped, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise form from None
    variable = ""
    if isinstance(node, ast.Lambda):
        if len(node.args.args) != 1:
            raise form
        variable, node = node.args.args[0].arg, node.body
    if not isinstance(node, ast.Call) or not node.args:
        raise form
    head = node.func if variable else node.args[0]
    values = node.args[1:]
    if not isinstance(head, ast.Name) or (variable and not (isinstance(node.args[0], ast.Name) and node.args[0].id == variable)):
        raise form
    names = list(_FILTERS.get(head.id, {}))
    arguments = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords if keyword.arg}
    if len(values) > len(names) or len(arguments) != len(node.keywords) or set(names[: len(values)]) & set(arguments):
        raise form
    return head.id, {**dict(zip(names, map(ast.unparse, values), strict=False)), **arguments}


def _check_init_range(name: str, given: Mapping[str, Any]) -> None:
    """Bounds in order and a spread that is not negative: torch checks some of it, much later."""
    if given.get("std", 0.0) < 0.0:
        raise ValueError(f"init function {name}: std must not be negative, found {given['std']}")
    defaults = {"nn.init.uniform_": (0.0, 1.0), "nn.init.trunc_normal_": (-2.0, 2.0)}
    if name in defaults:
        low, high = given.get("a", defaults[name][0]), given.get("b", defaults[name][1])
        if low > high:
            raise ValueError(f"init function {name}: a must be at most b, found a={low} and b={high}")
