"""Answers that are columns of what a program takes, told from its graph; the program itself says what they are."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn

from emberline.program_inputs import ProgramInput
from emberline.serving.program_columns import Columns, columns_of

INPUTS = (ProgramInput(name="pooled", dtype="float32", dims=("B", 9)), ProgramInput(name="dense", dtype="float32", dims=("B", 3)))
NAMES = ("first", "second")
Pair = tuple[Tensor, Tensor]


class Slices(nn.Module):
    def forward(self, pooled: Tensor, dense: Tensor) -> Pair:
        return torch.cat([pooled[:, 2:5], dense, pooled[:, 5:]], dim=1), pooled[:, 2:][:, 1:3].float()


class Parts(nn.Module):
    def forward(self, pooled: Tensor, dense: Tensor) -> Pair:
        one, two, three = torch.split(pooled, [4, 3, 2], dim=1)
        return torch.cat([three, torch.cat([one, two], -1).contiguous()], dim=1), dense.detach()[:, :2]


class Beside(nn.Module):
    """What is reckoned beside them is not known, and changes nothing of the other."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(9, 2)

    def forward(self, pooled: Tensor, dense: Tensor) -> Pair:
        return torch.relu(self.linear(pooled)), pooled


class Changed(nn.Module):
    def forward(self, pooled: Tensor, dense: Tensor) -> Pair:
        return pooled.mul_(2), pooled


class Into(nn.Module):
    def forward(self, pooled: Tensor, dense: Tensor) -> Pair:
        torch.cat([dense, pooled[:, 3:]], dim=1, out=pooled)
        return pooled, dense


class Chosen(nn.Module):
    def forward(self, pooled: Tensor, dense: Tensor) -> Pair:
        if pooled.shape[0] > 1:
            pooled = pooled + 1
        return pooled, dense


class Appended(nn.Module):
    def forward(self, pooled: Tensor, dense: Tensor) -> Pair:
        parts = [pooled]
        parts.append(dense)
        return torch.cat(parts, dim=1), dense


class Odd(nn.Module):
    """Rows that are cut, every other column, rows below each other, another type: no columns."""

    def forward(self, pooled: Tensor, dense: Tensor) -> Pair:
        return pooled[1:], torch.cat([pooled, pooled])[:, ::2].double()


class Reckoned(nn.Module):
    """Columns and rows up to a number that the program reckons itself."""

    def forward(self, pooled: Tensor, dense: Tensor) -> Pair:
        return pooled[:, : pooled.shape[1] // 2], dense[dense.shape[0] - 1 :]


class Listed(nn.Module):
    """A slice of a list, not of a matrix."""

    def forward(self, pooled: Tensor, dense: Tensor) -> Pair:
        parts = [pooled, dense, pooled]
        return torch.cat(parts[:2], dim=1) + 1, dense


@pytest.mark.parametrize("make", [Slices, Parts, Beside, Odd, Reckoned, Listed])
@pytest.mark.parametrize("traced", [False, True])
def test_what_is_told_is_what_the_program_gives(make: Callable[[], nn.Module], traced: bool) -> None:
    pooled, dense = torch.randn(4, 9), torch.randn(4, 3)
    module = make().eval()
    program = torch.jit.trace(module, (pooled, dense)) if traced else torch.jit.script(module)  # type: ignore[no-untyped-call]
    found = columns_of(program.inlined_graph, INPUTS, NAMES)
    want = {Slices: {"first", "second"}, Parts: {"first", "second"}, Beside: {"second"}, Odd: set[str](), Reckoned: set[str](), Listed: {"second"}}
    assert found.keys() == want[make]  # type: ignore[index]
    answers = dict(zip(NAMES, program(pooled, dense), strict=True))
    for name, spans in found.items():
        assert torch.equal(answers[name], read(spans, {"pooled": pooled, "dense": dense}))


def read(spans: Columns, inputs: dict[str, Tensor]) -> Tensor:
    return torch.cat([inputs[name][:, first:stop] for name, first, stop in spans], dim=1)


def test_spans_that_go_on_are_one() -> None:
    program = torch.jit.script(Parts().eval())
    assert columns_of(program.inlined_graph, INPUTS, NAMES)["first"] == (("pooled", 7, 9), ("pooled", 0, 7))


@pytest.mark.parametrize("make", [Changed, Into, Chosen, Appended])
def test_a_program_that_may_change_what_it_read_tells_nothing(make: Callable[[], nn.Module]) -> None:
    assert columns_of(torch.jit.script(make().eval()).inlined_graph, INPUTS, NAMES) == {}


@pytest.mark.parametrize("names", [(), ("first",), ("first", "second", "third")])
def test_another_number_of_answers_tells_nothing(names: Sequence[str]) -> None:
    assert columns_of(torch.jit.script(Slices().eval()).inlined_graph, INPUTS, names) == {}


def test_another_number_of_inputs_or_other_ones_tell_nothing() -> None:
    graph = torch.jit.script(Slices().eval()).inlined_graph
    assert columns_of(graph, INPUTS[:1], NAMES) == {}
    whole = (ProgramInput(name="pooled", dtype="int64", dims=("B", 9)), ProgramInput(name="dense", dtype="float32", dims=("B",)))
    assert columns_of(graph, whole, NAMES) == {}
