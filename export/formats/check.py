"""What programs are made of, and whether what was made answers as its module does, asked with inputs of many sizes.

Sizes of sequences and bags go by the inputs' names: `lengths.x` or `step_counts.x` [B] holds how many of `N.x` or `S.x` each row has, `L.x` is the
most of a row, and `step_lengths.x` [S] holds how many of `M.x` each of these has.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor, nn

from emberline.errors import ExportError
from emberline.program_inputs import ROWS, ProgramInput

_CHECKED_ROWS = (0, 1, 2, 7, 64)
_CALLS = 3
"""Calls of each check: TorchScript profiles the first two and may run other code from the third on."""
_TRACED_ROWS = 3
_MOST_ITEMS = 6
_TRACED_ITEMS = 100_000

_LENGTHS = {"lengths": ("N", "L"), "step_counts": ("S", "L"), "step_lengths": ("M", "")}
"""Inputs that hold how many of something there are, in an order in which each can be made: the sizes of their sum and of their largest."""

Tensors = tuple[Tensor, ...]
Counts = Callable[[int, int], Tensor]
"""From the place of a list of lengths among all, and how many it needs, to the list."""


@dataclass(frozen=True, eq=False)
class ProgramSource:
    """What a program is made of.

    Args:
        module: takes the inputs in order, and returns a tensor or a tuple of tensors. It must be in eval mode.
        inputs: what it takes.
        outputs: names of what it returns, in order.
        role: the program's.
        limits: for integer inputs that are rows of tables, by name: how many rows there are.
        device: where the module is.
    """

    module: nn.Module
    inputs: tuple[ProgramInput, ...]
    outputs: tuple[str, ...]
    role: str
    limits: Mapping[str, int] = field(default_factory=dict)
    device: str = "cpu"

    def on(self, device: str) -> Self:
        """The same on another device; it shares nothing with this one, unless this is there."""
        return self if device == self.device else replace(self, module=copy.deepcopy(self.module).to(device), device=device)

    @property
    def name(self) -> str:
        """What messages call it."""
        return f"the {self.role} program"

    @cached_property
    def example(self) -> Tensors:
        """Inputs to trace with: no size is 0, 1 or equal to another, so that a tracer cannot take any for fixed or for the same."""
        return self._sample(_TRACED_ROWS, 0, _distinct_counts)

    @cached_property
    def answered(self) -> list[tuple[str, Tensors, Tensors]]:
        """What to compare on, with what the module answers; reckoned once, whatever the number of formats.

        Raises:
            ExportError: the module fails, or is not deterministic in eval mode.
        """
        found = []
        for size, inputs in self.samples():
            wanted = call(self.module, inputs, f"{self.name} in eval mode fails on {size}")
            again = call(self.module, inputs, f"{self.name} fails on {size}")
            _require_close(again, wanted, 0.0, f"{self.name} is not deterministic in eval mode: two calls on {size} differ")
            found.append((size, inputs, wanted))
        return found

    def samples(self) -> list[tuple[str, Tensors]]:
        """What to compare on: some rows each, with the sample's name; of sequences and bags also rows without any step or id."""
        found = [(f"{rows} rows", self._sample(rows, rows, _drawn_counts(rows))) for rows in _CHECKED_ROWS]
        if any(given.name.partition(".")[0] in _LENGTHS for given in self.inputs):
            found.append(("3 rows without steps or ids", self._sample(3, 3, lambda place, count: torch.zeros(count, dtype=torch.int64))))
        return found

    def _sample(self, rows: int, seed: int, counts: Counts) -> Tensors:
        generator = torch.Generator().manual_seed(seed)
        sizes, made = {ROWS: rows}, dict[str, Tensor]()
        listed = [given for given in self.inputs if given.name.partition(".")[0] in _LENGTHS]
        order = list(_LENGTHS)
        for place, given in enumerate(sorted(listed, key=lambda given: order.index(given.name.partition(".")[0]))):
            kind, _, key = given.name.partition(".")
            lengths = made[given.name] = counts(place, sizes[str(given.dims[0])])
            total, longest = _LENGTHS[kind]
            sizes[f"{total}.{key}"] = int(lengths.sum())
            if longest:
                sizes[f"{longest}.{key}"] = int(lengths.max()) if lengths.numel() else 0
        for given in self.inputs:
            if given.name not in made:
                shape = [size if isinstance(size, int) else sizes[size] for size in given.dims]
                made[given.name] = self._values(given, shape, generator)
        return tuple(made[given.name].to(self.device) for given in self.inputs)

    def _values(self, given: ProgramInput, shape: Sequence[int], generator: torch.Generator) -> Tensor:
        if given.dtype == "int64":
            limit = self.limits.get(given.name)
            return torch.arange(shape[0]) if limit is None else torch.randint(0, limit, tuple(shape), generator=generator)
        # Of both signs, small and large, with some rows that are all zero as those of empty bags are.
        values = torch.randn(*shape, generator=generator) * 3
        values[1::4] = 0
        return values


def _distinct_counts(place: int, count: int) -> Tensor:
    """Lengths whose sum is odd, whose largest is even, and both of which no other list has."""
    if count == _TRACED_ROWS:
        longest = 10 + 2 * place
        return torch.tensor([longest, 0, longest - 3])
    lengths = torch.ones(count, dtype=torch.int64)
    lengths[0] = _TRACED_ITEMS + 2 * place + count % 2
    return lengths


def _drawn_counts(seed: int) -> Counts:
    """Lengths with empty and long ones, of an odd sum where there are several."""
    generator = torch.Generator().manual_seed(seed + 1)

    def draw(place: int, count: int) -> Tensor:
        lengths = torch.randint(0, _MOST_ITEMS, (count,), generator=generator)
        lengths[::3] = 0
        if count > 1:
            lengths[1] += 1 - lengths.sum() % 2
        return lengths

    return draw


class Checker:
    """Compares what was made of a module with it.

    Args:
        source: the module.
        hint: goes behind every message.

    Raises:
        ExportError: the module fails, or is not deterministic in eval mode.
    """

    def __init__(self, source: ProgramSource, hint: str = "") -> None:
        self._wanted, self._hint = source.answered, hint

    def require_same(self, made: Callable[..., Any], what: str, bound: float) -> None:
        """Compare all answers.

        Args:
            made: takes the inputs as the module does.
            what: names it in messages.
            bound: largest difference that is let pass, absolute for answers up to 1 and relative above: of the largest number of an answer.

        Raises:
            ExportError: it fails or answers otherwise.
        """
        for size, inputs, wanted in self._wanted:
            for _ in range(_CALLS):
                got = call(made, inputs, f"{what} fails on {size}", self._hint)
                _require_close(got, wanted, bound, f"{what} differs from the model on {size}{self._hint}")


def call(module: Callable[..., Any], inputs: Tensors, failure: str, hint: str = "") -> Tensors:
    """A module's or program's answers, without gradients.

    Raises:
        ExportError: it fails; the message begins with `failure`.
    """
    try:
        with torch.no_grad():
            answer = module(*inputs)
    except Exception as error:
        raise ExportError(f"{failure}: {describe(error)}{hint}") from error
    return (answer,) if isinstance(answer, Tensor) else tuple(answer)


def describe(error: Exception) -> str:
    """Type and text in one line: TorchScript's texts begin with a trace and end with the cause."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"


def _require_close(got: Sequence[Tensor], wanted: Sequence[Tensor], bound: float, message: str) -> None:
    """Same number of tensors, shapes, types and NaNs, and values within `bound` of the largest number of a tensor, or of 1."""
    if [(tensor.shape, tensor.dtype) for tensor in got] != [(tensor.shape, tensor.dtype) for tensor in wanted]:
        kinds = [[f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}" for tensor in tensors] for tensors in (got, wanted)]
        raise ExportError(f"{message}: shapes {', '.join(kinds[0])}, not {', '.join(kinds[1])}")
    for number, (mine, theirs) in enumerate(zip(got, wanted, strict=True)):
        finite = theirs[theirs.isfinite()].abs()
        scale = max(1.0, float(finite.max()) if finite.numel() else 0.0)
        if not torch.allclose(mine, theirs, rtol=0, atol=bound * scale, equal_nan=True):
            raise ExportError(f"{message}: tensor {number} by {(mine - theirs).abs().max().item():.3g}")
