"""How tables begin: the config's init function, meant for the whole table even where only some of its rows are drawn."""

import math
from collections.abc import Callable
from functools import partial

from torch import Tensor, nn

from emberline.train.config.functions import InitSpec


def table_init(init: InitSpec | None, rows: int, dim: int) -> Callable[[Tensor], Tensor]:
    """A function that fills any rows [n, dim] of a table [rows, dim] in place with initial vectors, and returns them.

    Functions that look at a tensor's shape (Xavier, Kaiming) see the whole table's, so that a shard and a single reset row are
    drawn as the whole table would be. Without `init`: uniform in +-sqrt(1 / rows).
    """
    if init is None:
        bound = math.sqrt(1 / rows)
        return partial(nn.init.uniform_, a=-bound, b=bound)
    family, _, shape = init.name.removeprefix("nn.init.").rstrip("_").partition("_")
    if family not in ("xavier", "kaiming"):
        return init.build()
    arguments = dict(init.arguments)
    std = _xavier_std(rows, dim, **arguments) if family == "xavier" else _kaiming_std(rows, dim, **arguments)  # type: ignore[arg-type]
    if shape == "normal":
        return partial(nn.init.normal_, std=std)
    return partial(nn.init.uniform_, a=-math.sqrt(3) * std, b=math.sqrt(3) * std)


def _xavier_std(rows: int, dim: int, gain: float = 1.0) -> float:
    return gain * math.sqrt(2 / (rows + dim))


def _kaiming_std(rows: int, dim: int, a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu") -> float:
    gain = nn.init.calculate_gain(nonlinearity, a)  # type: ignore[arg-type]
    return gain / math.sqrt(dim if mode == "fan_in" else rows)
