"""Models from a config's text, layers written out in float64, and traces and exports of a head."""

import math
from collections.abc import Callable, Mapping, Sequence

import pytest
import torch
from torch import Tensor, nn

from emberline.train.config import parse_config
from emberline.train.models import RecModel, build_model, features_of

Row = Sequence[float]


class Maths:
    """Layers, one row at a time, in float64."""

    @staticmethod
    def linear(layer: nn.Module, row: Row) -> list[float]:
        weight, bias = layer.weight.tolist(), layer.bias.tolist()  # type: ignore[operator]
        return [math.fsum(w * x for w, x in zip(line, row, strict=True)) + b for line, b in zip(weight, bias, strict=True)]

    @classmethod
    def mlp(cls, module: nn.Module, row: Row) -> list[float]:
        """Linear layers and ReLUs."""
        found = list(row)
        for layer in module.layers:  # type: ignore[union-attr]
            found = cls.linear(layer, found) if isinstance(layer, nn.Linear) else [max(x, 0.0) for x in found]
        return found

    @staticmethod
    def softmax(scores: Row) -> list[float]:
        exps = [math.exp(score - max(scores)) for score in scores]
        return [one / math.fsum(exps) for one in exps]

    @staticmethod
    def dot(one: Row, other: Row) -> float:
        return math.fsum(x * y for x, y in zip(one, other, strict=True))


class _Program(nn.Module):
    """A head with tensors in and out, as a trace takes it."""

    def __init__(self, head: nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        self.head, self.names = head, tuple(names)

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.head(dict(zip(self.names, tensors, strict=True))).values())


def check_programs(head: nn.Module, samples: Sequence[Mapping[str, Tensor]]) -> None:
    """A trace and an export of the first sample give what the head gives, for all samples; `.sequence` tensors have L steps of their own."""
    head.eval()
    names = list(samples[0])
    program = _Program(head, names)
    inputs = [tuple(sample[name] for name in names) for sample in samples]
    rows = torch.export.Dim("rows")
    dims = [{0: rows, 1: torch.export.Dim(f"steps_{place}")} if name.endswith(".sequence") else {0: rows} for place, name in enumerate(names)]
    traced = torch.jit.trace(program, inputs[0])  # type: ignore[no-untyped-call]
    exported = torch.export.export(program, inputs[0], dynamic_shapes=(tuple(dims),)).module()
    for tensors in inputs:
        for found in (traced(*tensors), exported(*tensors)):
            for one, other in zip(found, program(*tensors), strict=True):
                torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.fixture
def maths() -> type[Maths]:
    """Layers in float64."""
    return Maths


@pytest.fixture
def programs_agree() -> Callable[[nn.Module, Sequence[Mapping[str, Tensor]]], None]:
    """`check_programs`."""
    return check_programs


@pytest.fixture
def model_of() -> Callable[[str], RecModel]:
    """Builds the model of a config's text, in eval mode."""

    def build(text: str) -> RecModel:
        config = parse_config(text)
        torch.manual_seed(7)
        return build_model(config, features_of(config)).eval()

    return build
