"""Encoders as programs: traced, scripted, exported, for any number of rows and steps."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from emberline.train.encoders.recurrent import RecurrentEncoder
from tests.train.encoders.conftest import KINDS, inputs, make

SHAPES = [([4, 2, 0], 5), ([1], 1), ([0, 0], 0), ([], 3), ([9, 7, 3, 0], 9)]


class Program(nn.Module):
    """The encoder as the only part of a program; its query is always there."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, query: Tensor, sequence: Tensor, lengths: Tensor) -> Tensor:
        result: Tensor = self.encoder(query, sequence, lengths)
        return result


# Each kind cuts its rows in the same way: one of them shows them all.
CASES = [(kind, "newest", 3) for kind in KINDS] + [("simple", "oldest", 3), ("simple", "oldest", 0)]


@pytest.fixture(params=CASES, ids=lambda case: "-".join(map(str, case)))
def encoder(request: pytest.FixtureRequest) -> nn.Module:
    kind, keep, limit = request.param
    return make(kind, keep=keep) if kind == "windows" else make(kind, keep=keep, max_seq_length=limit)


def check(encoder: nn.Module, program: Callable[..., Any], tolerance: float = 1e-12) -> None:
    for lengths, padded in SHAPES:
        batch = inputs(lengths, padded, junk=float("nan"))
        torch.testing.assert_close(program(*batch), encoder(*batch), rtol=tolerance, atol=tolerance)


def test_traced(encoder: nn.Module) -> None:
    check(encoder, torch.jit.trace(Program(encoder), tuple(inputs([2, 3], 3)), check_trace=False))


# Torch warns of the graph module that it made itself.
@pytest.mark.filterwarnings("ignore:The TorchScript type system:UserWarning")
def test_symbolically_traced_and_scripted(encoder: nn.Module) -> None:
    graph = torch.fx.symbolic_trace(Program(encoder))
    check(encoder, graph)
    check(encoder, torch.jit.script(graph))


def exported(encoder: nn.Module) -> Callable[..., Any]:
    rows, steps = torch.export.Dim("rows", min=0, max=4096), torch.export.Dim("steps", min=0, max=500)
    example = tuple(inputs([2, 3, 1, 5], 5))
    program: Callable[..., Any] = torch.export.export(
        Program(encoder), example, dynamic_shapes=({0: rows}, {0: rows, 1: steps}, {0: rows})
    ).module()
    return program


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_exported(encoder: nn.Module) -> None:
    if isinstance(encoder, RecurrentEncoder):
        pytest.skip("slower; has a test of its own")
    check(encoder, exported(encoder), 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["lstm", "lstm_both", "gru", "gru_both"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_exported_recurrent(kind: str) -> None:
    """Each number of rows and steps compiles the loop anew where it runs in Python, so this takes long."""
    encoder = make(kind)
    check(encoder, exported(encoder), 1e-9)


def test_traced_programs_name_no_device(kind: str) -> None:
    """So that a program traced on one device runs on another."""
    traced = torch.jit.trace(Program(make(kind)), tuple(inputs([2, 3], 3)), check_trace=False)
    for node in traced.inlined_graph.nodes():
        if node.kind() == "prim::Constant" and str(node.output().type()) == "Device":
            users = {use.user.kind() for use in node.output().uses()}
            assert users <= {"aten::zeros"}, users
