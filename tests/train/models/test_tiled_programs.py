"""What stands behind the lookups of tiled requests, as programs: the answers of the rows written out, and what is the users' alone reckoned once."""

from collections.abc import Sequence
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from emberline.program_inputs import ProgramInput, program_inputs, tiled_inputs, tiled_streams
from emberline.schema import OutputSpec
from emberline.train.embedding import EmbeddingGroup, TiledParts
from emberline.train.models import DenseProgram, GroupsProgram, RecModel
from tests.train.embedding.conftest import Make
from tests.train.embedding.tiled_case import draw, features, groups

pytestmark = pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
SIZES = [([1, 0, 1, 2], 3, 4), ([0, 0, 0], 1, 4), ([0], 1, 2), ([0, 1], 2, 0), ([3, 2, 1, 0], 4, 1), ([], 0, 3)]
"""The user of each row, the number of users, and of steps at most; the first is traced with."""


class Head(nn.Module):
    """Sums of some groups' tensors."""

    def forward(self, groups: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"found": groups["deep"].sum(1) + groups["seq_both.sequence"].sum(dim=(1, 2)), "twice": groups["user"] * 2}


def make_model(*names: str) -> RecModel:
    """Every kind of group, of either side and both, or some of them."""
    make = Make()
    torch.manual_seed(0)
    found = [group for group in groups(make) if not names or group.group_name in names]
    group = EmbeddingGroup(features(make), found)
    vectors = (OutputSpec(name="found"), OutputSpec(name="twice", width=group.group_total_dim("user"))) if not names else ()
    return RecModel(group, Head(), [feature.spec for feature in features(make)], (), vectors).eval()


@pytest.fixture(scope="module")
def model() -> RecModel:
    return make_model()


def inputs_of(model: RecModel, parts: TiledParts) -> tuple[Tensor, ...]:
    """What `tiled_inputs` lists, of what a model looks up itself."""
    given = {"user.pooled": parts.user.pooled, "user.dense": parts.user.dense, "pooled": parts.item.pooled, "dense": parts.item.dense}
    given["rows"] = cast(Tensor, parts.rows)
    sides = [model.schema().part(per_user=per_user) for per_user in (True, False)]
    streams = {name: stream.name for side in sides for stream in side.streams for name in stream.features}
    whole = {name: stream.name for stream in model.schema().streams for name in stream.features}
    for side in (parts.user.sequences, parts.item.sequences):
        given |= {f"steps.{key}": values for key, values in side.values.items()}
        given |= {f"lengths.{streams[name]}": lengths.long() for name, lengths in side.lengths.items()}
        given |= {f"positions.{whole[name]}": positions for name, positions in side.positions.items()}
    given |= {f"places.{streams[name]}": places for name, places in parts.places.items()}
    return tuple(given[wanted.name].detach() for wanted in tiled_inputs(model.schema()))


def test_inputs_are_listed_by_side(model: RecModel) -> None:
    def floats(name: str, *dims: str | int) -> ProgramInput:
        return ProgramInput(name=name, dtype="float32", dims=dims)

    def integers(name: str, dim: str) -> ProgramInput:
        return ProgramInput(name=name, dtype="int64", dims=(dim,))

    (stream,) = tiled_streams(model.schema())
    assert (stream.whole.name, stream.user, stream.item, stream.jagged) == ("clk", "clk", "near", True)
    found = tiled_inputs(model.schema())
    assert [given.dims for given in found[:2]] == [("U", found[0].dims[1]), ("U", 5)]
    assert cast(int, found[0].dims[1]) + cast(int, found[2].dims[1]) == model.schema().pooled_dim
    assert found[1:2] + found[3:] == (
        floats("user.dense", "U", 5),
        floats("dense", "B", 2),
        integers("rows", "B"),
        floats("steps.clk", "N.clk", 4),
        floats("steps.tags", "N.clk", 8),
        floats("steps.dt", "N.clk", 2),
        floats("steps.near", "N.near", 4),
        integers("lengths.clk", "U"),
        integers("lengths.near", "B"),
        integers("positions.clk", "L.clk"),
        integers("places.clk", "N.near"),
    )


@pytest.mark.parametrize("traced", [False, True], ids=["called", "traced"])
def test_programs_give_the_models_answers_for_any_sizes(model: RecModel, traced: bool) -> None:
    groups_program: Any = GroupsProgram(model, tiled=True)
    outputs_program: Any = DenseProgram(model, tiled=True)
    with torch.no_grad():
        for seed, (rows, users, most) in enumerate(SIZES, 6):
            case = draw(Make(), seed, rows, users, most)
            inputs, wanted = inputs_of(model, model.embedding_group.tiled_lookup(case.tiled)), model.embedding_group(case.untiled)
            if traced and not seed - 6:
                groups_program, outputs_program = (
                    torch.jit.freeze(torch.jit.trace(program.eval(), inputs, check_trace=False))  # type: ignore[no-untyped-call]
                    for program in (groups_program, outputs_program)
                )
            for spec, tensor in zip(model.schema().groups, groups_program(*inputs), strict=True):
                torch.testing.assert_close(tensor, wanted[spec.name], rtol=1e-5, atol=1e-6, check_dtype=False, msg=f"{spec} {rows}")
                assert tensor.dtype == (torch.int64 if spec.is_lengths else torch.float32)
            for tensor, expected in zip(outputs_program(*inputs), model(case.untiled).values(), strict=True):
                torch.testing.assert_close(tensor, expected, rtol=1e-5, atol=1e-5)


def test_numbers_that_no_group_reads_are_passed_over() -> None:
    model = make_model("jag")
    names = [feature.name for feature in model.schema().part(per_user=True).dense_features]
    assert names == ["uage", "upair", "uplain"]
    case = draw(Make(), 3, [0, 1, 1], 2)
    parts = model.embedding_group.tiled_lookup(case.tiled)
    assert case.tiled.tile is not None
    assert parts.user.dense.shape == (2, 1)
    numbers = case.tiled.tile.user.dense_features["__BASE__"]
    all_numbers = torch.cat([numbers[name] for name in names], dim=1)
    item = parts.item._replace(dense=torch.zeros(3, 2))
    with torch.no_grad():
        found = GroupsProgram(model, tiled=True)(*inputs_of(model, parts._replace(user=parts.user._replace(dense=all_numbers), item=item)))
        wanted = model.embedding_group(case.untiled)
    for spec, tensor in zip(model.schema().groups, found, strict=True):
        torch.testing.assert_close(tensor, wanted[spec.name], rtol=1e-6, atol=1e-6, check_dtype=False)


def rows_seen(model: RecModel, program: nn.Module, inputs: Sequence[Tensor]) -> list[list[int]]:
    """The rows that the embedding of numbers, and each encoder of the groups `deep` and `user`, is given by a program, call by call."""
    group = model.embedding_group
    encoders = group.encoders_by_group()
    modules = [group.get_submodule("emb_impls.__BASE__.dense_ec"), *encoders["deep"], *encoders["user"]]
    seen: list[list[int]] = [[] for _ in modules]
    handles = [
        module.register_forward_pre_hook(lambda _, given, note=note: note.append(_rows_of(given))) for module, note in zip(modules, seen, strict=True)
    ]
    with torch.no_grad():
        program(*inputs)
    for handle in handles:
        handle.remove()
    return seen


def _rows_of(given: Sequence[Any]) -> int:
    """Of a sequence, which stands behind a query, or of numbers by name."""
    return int((next(iter(given[0].values())) if isinstance(given[0], dict) else given[1]).shape[0])


def test_what_is_the_users_alone_is_reckoned_once_for_each_user() -> None:
    """Two users, seven rows: encoders of their own features and embeddings of their numbers see two rows, all else seven."""
    model = make_model("deep", "user", "seq")
    case = draw(Make(), 4, [0, 0, 0, 1, 1, 0, 1], 2)
    group = model.embedding_group
    steps = group.sequence_lookup(case.untiled)
    given = {"pooled": group.lookup(case.untiled), "dense": group.dense(case.untiled)}
    for kind, parts in zip(("steps", "lengths", "positions"), steps, strict=True):
        given |= {f"{kind}.{name}": part for name, part in parts.items()}
    written_out = rows_seen(model, GroupsProgram(model), [given[one.name].detach() for one in program_inputs(model.schema())])
    assert written_out == [[7]] * 9
    found = rows_seen(model, GroupsProgram(model, tiled=True), inputs_of(model, group.tiled_lookup(case.tiled)))
    numbers, *encoders = found
    assert numbers == [2, 7]
    # clicks beside an item, its own, steps, clicks again, both sides' steps, its own again; and the two of `user`.
    assert [rows for (rows,) in encoders] == [7, 2, 2, 2, 7, 2, 2, 2]
