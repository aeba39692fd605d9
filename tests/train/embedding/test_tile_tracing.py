"""What stands behind the lookups of a tiled batch, as programs: for any number of users, rows, steps and longest row, of each kind of group."""

from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.export import Dim

from emberline.train.embedding import EmbeddingGroup, TiledParts
from tests.train.embedding.tiled_case import draw, features, groups
from tests.train.embedding.tiled_program import Inputs, Program, flat

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
    pytest.mark.filterwarnings("ignore:The TorchScript type system:UserWarning"),
]
NAMES = ["deep", "user", "none", "wide", "seq", "seq_user", "seq_both", "jag", "jag_both", "jag_item"]
FORMS = [*((name, False) for name in NAMES), *((name, True) for name in ("deep", "seq_user", "jag_both"))]
"""Groups, and whether the program is for one user."""
SIZES = [([1, 0, 1, 2], 3, 4), ([0, 0, 0], 1, 4), ([0], 1, 2), ([0, 1], 2, 0), ([3, 2, 1, 0], 4, 1)]
"""The user of each row, the number of users, and of steps at most."""


def build(make: Any, name: str) -> EmbeddingGroup:
    torch.manual_seed(0)
    (config,) = (group for group in groups(make) if group.group_name == name)
    return EmbeddingGroup(features(make), [config]).eval()


def cases(make: Any, group: EmbeddingGroup, *, one_user: bool = False) -> list[TiledParts]:
    """Looked-up batches of all sizes, the example first; for one user only those that have one."""
    found = []
    for seed, (rows, users, most) in enumerate(SIZES, 6):
        if not one_user or users == 1:
            parts = group.tiled_lookup(draw(make, seed, rows, users, most).tiled)
            found.append(parts._replace(rows=None) if one_user else parts)
    return found


def check(program: Any, group: EmbeddingGroup, parts: TiledParts) -> None:
    found, expected = program(*flat(parts)), group.assemble_tiled(parts)
    assert sorted(found) == sorted(expected)
    for key, tensor in expected.items():
        torch.testing.assert_close(found[key], tensor, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("name", "one_user"), FORMS)
def test_a_trace_answers_as_the_group_for_any_sizes(make: Any, name: str, one_user: bool) -> None:
    group = build(make, name)
    with torch.no_grad():
        example, *others = cases(make, group, one_user=one_user)
        program = Program(group, example).eval()
        traced = torch.jit.trace(program, flat(example), strict=False, check_trace=False)  # type: ignore[no-untyped-call]
        for parts in [example, *others]:
            check(traced, group, parts)


@pytest.mark.parametrize("name", NAMES)
def test_a_symbolic_trace_can_be_scripted(make: Any, name: str) -> None:
    group = build(make, name)
    with torch.no_grad():
        example, *others = cases(make, group)
        scripted = torch.jit.script(fx.symbolic_trace(Program(group, example).eval()))
        for parts in [example, *others]:
            check(scripted, group, parts)


@pytest.mark.parametrize(("name", "one_user"), FORMS)
def test_an_export_answers_as_the_group_for_any_sizes(make: Any, name: str, one_user: bool) -> None:
    group = build(make, name)
    with torch.no_grad():
        example, *others = cases(make, group, one_user=one_user)
        exported = torch.export.export(Program(group, example).eval(), flat(example), dynamic_shapes=shapes(flat(example), one_user)).module()
        for parts in [example, *others]:
            check(exported, group, parts)


def shapes(inputs: Inputs, one_user: bool) -> Any:
    """Free sizes: users, rows, the longest rows, and the steps of each."""
    user, item, _, places = inputs
    users, rows = None if one_user else Dim("users"), Dim("rows")

    def side(values: dict[str, Tensor], count: Any, steps: str) -> dict[str, Any]:
        found = {}
        for name in values:
            kind = name.partition(".")[0]
            dim = {"values": Dim(steps), "positions": Dim(f"longest_{name.partition('.')[2]}")}.get(kind, count)
            found[name] = None if dim is None else {0: dim}
        return found

    of_places = {name: None if name == "none" else {0: Dim("steps_of_rows")} for name in places}
    return (side(user, users, "user_steps"), side(item, rows, "steps_of_rows"), None if one_user else {0: rows}, of_places)


def test_the_parts_are_what_the_names_say(make: Any) -> None:
    group = build(make, "jag")
    case = draw(make, 2, [1, 0, 1], 2)
    parts = group.tiled_lookup(case.tiled)
    assert case.tiled.tile is not None
    lengths = case.tiled.tile.user.sequence_mulval_lengths["__BASE__"]["tags"].lengths().tolist()
    starts = [0, lengths[0]]
    assert parts.places["tags"].tolist() == [starts[row] + step for row in (1, 0, 1) for step in range(lengths[row])]
