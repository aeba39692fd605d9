"""Two candidates of one user, and more of two: the user's sequences come once, and every form of the program gives what loops over the rows give."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, fx

from emberline.schema import GroupKind
from emberline.train.data import Batch, Tile
from emberline.train.embedding import EmbeddingGroup
from tests.train.embedding.by_hand import ByHand
from tests.train.embedding.telling import BUY, CLICK, FORMS, SHAPES, TABLES, Rows, build, check, features, sequence_rows, several_ids
from tests.train.embedding.tiled_case import sided
from tests.train.embedding.tiled_program import Program, flat

pytestmark = pytest.mark.filterwarnings("ignore:The TorchScript type system:UserWarning")


def select(rows: Rows, order: Sequence[int], *, users: bool | None = None) -> Rows:
    """Some rows; of the users' features, of the others, or of all."""

    def some(values: Any) -> dict[str, Any]:
        return {name: [found[row] for row in order] for name, found in values.items() if users is None or users == ("_seq__" in name)}

    return Rows(*(some(values) for values in (rows.ids, rows.multi, rows.numbers, rows.dense)))


def batches(make: Any, rows: Rows, owners: Sequence[int]) -> tuple[Rows, Batch]:
    """Row b with the sequences of row owners[b]: as lists, and tiled."""
    everything, users = select(rows, range(len(owners))), select(rows, owners, users=True)
    written_out = Rows(*({**getattr(everything, name), **getattr(users, name)} for name in ("ids", "multi", "numbers", "dense")))
    user = select(rows, range(max(owners) + 1), users=True)
    item = select(rows, range(len(owners)), users=False)
    tile = Tile(make.steps(user.ids, multi=user.multi, numbers=user.numbers), torch.tensor(owners))
    return written_out, replace(make.steps(item.ids, multi=item.multi, dense=item.dense), tile=tile)


def answers(group: EmbeddingGroup, batch: Batch, example: Batch, form: str) -> dict[str, Tensor]:
    """What the group gives in this form, the program being made of an example."""
    with torch.no_grad():
        if form == "eager":
            return dict(group(batch))
        traced = fx.symbolic_trace(Program(group, group.tiled_lookup(example)))
        program = traced if form == "traced" else torch.jit.script(traced)
        result: dict[str, Tensor] = program(*flat(group.tiled_lookup(batch)))
        return result


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("tables", "multi"), [*((tables, "") for tables in TABLES), ("plain", "sum"), ("plain", "mean"), ("zch", "mean")])
def test_sequences_of_one_user_and_of_two(make: Any, tables: str, multi: str, form: str) -> None:
    groups = [make.group("click", *CLICK, group_type=GroupKind.SEQUENCE), make.group("buy", *BUY, group_type=GroupKind.SEQUENCE)]
    rows = several_ids() if multi else sequence_rows()
    some = [sided(feature, feature.side or "item") for feature in features(tables, multi=multi)]
    group = build(make, some, groups, rows)
    _, example = batches(make, rows, [0, 1])
    for owners in ([0, 0], [1, 0], [0, 1]):
        written_out, tiled = batches(make, rows, owners)
        found = answers(group, tiled, example, form)
        check(found, ByHand(group, groups, written_out).results())
        assert {key: tuple(tensor.shape) for key, tensor in found.items()} == SHAPES
        assert torch.equal(found["click.sequence"][0], found["click.sequence"][1]) == (owners == [0, 0])


@pytest.mark.parametrize("form", FORMS)
def test_without_padding(make: Any, form: str) -> None:
    groups = [make.group("click", *CLICK, group_type=GroupKind.JAGGED_SEQUENCE)]
    rows = sequence_rows((2, 3, 1), (1, 1, 1))
    group = build(make, [sided(feature, feature.side or "item") for feature in features()], groups, rows)
    _, example = batches(make, rows, [1, 0, 0])
    for owners in ([1, 0, 1], [0, 0, 0]):
        written_out, tiled = batches(make, rows, owners)
        found = answers(group, tiled, example, form)
        check(found, ByHand(group, groups, written_out).results())
        assert found["click.sequence"].shape == (sum([2, 3][owner] for owner in owners), 25)
