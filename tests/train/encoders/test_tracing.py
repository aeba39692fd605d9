"""Encoders as programs: traced, scripted, exported, for any number of rows and steps."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.train.encoders.conftest import KINDS, Program, inputs, make

SHAPES: list[tuple[list[int], int]] = [([4, 2, 0], 5), ([1], 1), ([0, 0], 0), ([], 3), ([9, 7, 3, 0], 9)]


# Each kind cuts its rows in the same way: one of them shows them all.
CASES = [(kind, "newest", 3) for kind in KINDS] + [("simple", "oldest", 3), ("simple", "oldest", 0)]
# Scripting and exporting take a second or more: one kind for each piece of code.
SCRIPTED = [case for case in CASES if case[0] in ("simple", "din_bn", "din_dice", "windows", "self", "transformer_last", "lstm_both", "gru")]
EXPORTED = [case for case in CASES if case[0] in ("simple", "din_bn", "windows", "self", "transformer_last", "lstm_both", "gru")]
Case = tuple[str, str, int]


def case_name(case: Case) -> str:
    return "-".join(map(str, case))


def build(case: Case) -> nn.Module:
    kind, keep, limit = case
    return make(kind, keep=keep) if kind == "windows" else make(kind, keep=keep, max_seq_length=limit)


def traced(encoder: nn.Module) -> Any:
    return torch.jit.trace(Program(encoder), tuple(inputs([2, 3], 3)), check_trace=False)  # type: ignore[no-untyped-call]


def check(encoder: nn.Module, program: Callable[..., Any], tolerance: float = 1e-12) -> None:
    for lengths, padded in SHAPES:
        batch = inputs(lengths, padded, junk=float("nan"))
        torch.testing.assert_close(program(*batch), encoder(*batch), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("case", CASES, ids=case_name)
def test_traced(case: Case) -> None:
    encoder = build(case)
    check(encoder, traced(encoder))


# Torch warns of the graph module that it made itself.
@pytest.mark.filterwarnings("ignore:The TorchScript type system:UserWarning")
@pytest.mark.parametrize("case", SCRIPTED, ids=case_name)
def test_symbolically_traced_and_scripted(case: Case) -> None:
    encoder = build(case)
    graph = torch.fx.symbolic_trace(Program(encoder))
    check(encoder, graph)
    check(encoder, torch.jit.script(graph))


def exported(encoder: nn.Module) -> Callable[..., Any]:
    rows, steps = torch.export.Dim("rows", min=0, max=4096), torch.export.Dim("steps", min=0, max=500)
    example = tuple(inputs([2, 3, 1, 5], 5))
    program: Callable[..., Any] = torch.export.export(Program(encoder), example, dynamic_shapes=({0: rows}, {0: rows, 1: steps}, {0: rows})).module()
    return program


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("case", EXPORTED, ids=case_name)
def test_exported(case: Case) -> None:
    encoder = build(case)
    check(encoder, exported(encoder), 1e-9)


def test_traced_programs_name_no_device(kind: str) -> None:
    """So that a program traced on one device runs on another."""
    for node in traced(make(kind)).inlined_graph.nodes():
        if node.kind() == "prim::Constant" and str(node.output().type()) == "Device":
            users = {use.user.kind() for use in node.output().uses()}
            assert users <= {"aten::zeros"}, users
