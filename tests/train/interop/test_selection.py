"""Which name goes where, without any tensor."""

from pathlib import Path

import torch

from emberline.train.checkpoint.tensors import TensorInfo
from emberline.train.interop.name_map import read_name_map
from emberline.train.interop.selection import Wishes, select

FLOAT = TensorInfo((5, 4), torch.float32)
POOLED, STEPS = "model.g.emb_impls.__BASE__.ebc.embedding_bags.item.weight", "model.g.seq_emb_impls.__BASE__.ec_dict.4.embeddings.item.weight"
USER = "user_tower.g.emb_impls.__BASE__.ebc.embedding_bags.user.weight"


def test_groups_are_found_wherever_they_are() -> None:
    found = select({"tables.item": FLOAT, "tables.user": FLOAT}, {POOLED: FLOAT, USER: FLOAT, STEPS: FLOAT}, (), Wishes())
    assert found.match.problems == []
    assert found.match.sources == {"tables.item": [POOLED, STEPS], "tables.user": [USER]}
    assert found.match.copies == [(POOLED, STEPS)]
    assert found.groups == ("model.g", "user_tower.g")


def test_a_group_at_the_top() -> None:
    found = select({"tables.item": FLOAT}, {POOLED.removeprefix("model.g."): FLOAT}, (), Wishes())
    assert (found.groups, found.match.problems) == (("",), [])


def test_two_copies_become_two_tables_by_the_map(tmp_path: Path) -> None:
    path = tmp_path / "m.map"
    path.write_text(f"tables.item_in_sequence {STEPS}\n")
    needed = {"tables.item": FLOAT, "tables.item_in_sequence": FLOAT}
    found = select(needed, {POOLED: FLOAT, STEPS: FLOAT}, (), Wishes(map=read_name_map(path)))
    assert found.match.problems == []
    assert found.match.sources == {"tables.item": [POOLED], "tables.item_in_sequence": [STEPS]}
    assert found.mapped == ("tables.item_in_sequence",)


def test_the_map_is_checked_for_shape_and_type(tmp_path: Path) -> None:
    path = tmp_path / "m.map"
    path.write_text("head.* model.*\n")
    needed = {"tables.item": FLOAT, "head.a": FLOAT, "head.b": TensorInfo((), torch.int64)}
    stored = {POOLED: FLOAT, "model.a": TensorInfo((4, 5), torch.float32), "model.b": TensorInfo((), torch.float32)}
    found = select(needed, stored, (), Wishes(map=read_name_map(path)))
    assert found.match.problems == ["model.a: has shape [4, 5], the model needs [5, 4]", "model.b: is float32, the model needs int64"]


def test_what_is_no_tensor_is_told_unless_it_is_left_out() -> None:
    needed = {"tables.item": FLOAT, "head.a": FLOAT}
    stored = {POOLED: FLOAT, "model.a": FLOAT}
    assert select(needed, stored, ("model.extra",), Wishes()).match.problems == [
        "model.a: surplus, the model has nothing of that name",
        "head.a: missing",
        "model.extra: is no tensor; leave it out with --skip",
    ]
    found = select(needed, stored, ("model.extra",), Wishes(embeddings_only=True, skip=("model.e*",)))
    assert (found.match.problems, found.fresh, found.left_out) == ([], ("head.a",), ("model.extra", "model.a"))


def test_nothing_at_all() -> None:
    found = select({"head.a": FLOAT}, {}, (), Wishes())
    assert (found.match.problems, found.groups) == (["head.a: missing"], ())
