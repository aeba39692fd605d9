"""What programs are made of, and whether what was made answers as its module does, asked with inputs of many sizes."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor, nn

from emberline.errors import ExportError
from emberline.export.formats.samples import Sampler, Tensors
from emberline.program_inputs import ProgramInput, TiledStream

_CALLS = 3
"""Calls of each check: TorchScript profiles the first two and may run other code from the third on."""


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
        streams: of a program for tiled requests.
    """

    module: nn.Module
    inputs: tuple[ProgramInput, ...]
    outputs: tuple[str, ...]
    role: str
    limits: Mapping[str, int] = field(default_factory=dict)
    device: str = "cpu"
    streams: Sequence[TiledStream] = ()

    def on(self, device: str) -> Self:
        """The same on another device; it shares nothing with this one, unless this is there."""
        return self if device == self.device else replace(self, module=copy.deepcopy(self.module).to(device), device=device)

    @property
    def name(self) -> str:
        """What messages call it."""
        return f"the {self.role} program"

    @cached_property
    def example(self) -> Tensors:
        """Inputs to trace with; see `Sampler`."""
        return self._placed(self._sampler.example())

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
        """What to compare on, each with its name; see `Sampler`."""
        return [(size, self._placed(inputs)) for size, inputs in self._sampler.samples()]

    @property
    def _sampler(self) -> Sampler:
        return Sampler(inputs=self.inputs, limits=self.limits, streams=self.streams)

    def _placed(self, inputs: Tensors) -> Tensors:
        return tuple(tensor.to(self.device) for tensor in inputs)


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
