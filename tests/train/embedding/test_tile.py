"""Tiled batches give what the same rows give with each user's values written out."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from emberline.errors import ConfigError, DataError
from emberline.schema import GroupKind
from emberline.train.data import Batch, Tile
from emberline.train.embedding import EmbeddingGroup
from emberline.train.embedding.pooled import PooledTables
from emberline.train.embedding.sequence import SequenceTables
from tests.train.embedding.tiled_case import Case, draw, features, groups, sided

COMPUTED = {"deep", "user", "none", "item", "jag.query", "seq.sequence", "seq_user.sequence", "steps.sequence", "steps_2.sequence"}
"""Encoders' outputs and dense embeddings, whose matrix products may round otherwise for another number of rows; all others agree in all bits."""


def build(make: Any, *, zch: bool = False, norm: bool = False) -> EmbeddingGroup:
    torch.manual_seed(0)
    group = EmbeddingGroup(features(make, zch=zch), groups(make, norm=norm))
    if zch:
        group.train()(draw(make, 99, [0, 1, 2, 3], 4).untiled)
    for parameter in group.parameters():
        torch.nn.init.normal_(parameter)
    return group


def check(group: EmbeddingGroup, case: Case) -> dict[str, Tensor]:
    expected, found = group(case.untiled), group(case.tiled)
    assert list(found) == list(expected)
    for key, tensor in found.items():
        assert tensor.dtype == expected[key].dtype, key
        assert tensor.shape == expected[key].shape, key
        tolerance = 1e-5 if key in COMPUTED else 0.0
        torch.testing.assert_close(tensor, expected[key], rtol=tolerance, atol=tolerance)
    return dict(found)


ROWS = st.integers(1, 4).flatmap(lambda users: st.tuples(st.just(users), st.lists(st.integers(0, users - 1), max_size=6)))


@pytest.fixture(scope="module")
def plain(make: Any) -> EmbeddingGroup:
    return build(make).eval()


@given(shape=ROWS, seed=st.integers(0, 2**31), most=st.sampled_from([0, 3]))
@settings(max_examples=30, deadline=None)
def test_answers_equal_the_untiled_ones(make: Any, plain: EmbeddingGroup, shape: tuple[int, list[int]], seed: int, most: int) -> None:
    num_users, rows = shape
    check(plain, draw(make, seed, rows, num_users, most))


@pytest.mark.parametrize(("rows", "users"), [([0, 0, 0], 1), ([1, 0, 1, 2], 3), ([], 1), ([], 0), ([2, 2], 4), ([0], 1)])
def test_zch_in_eval_mode_and_unused_users(make: Any, rows: list[int], users: int) -> None:
    group = build(make, zch=True).eval()
    check(group, draw(make, 5, rows, users, 3))


@pytest.mark.parametrize("rows", [[0, 0, 0], [1, 0, 1, 2]])
@pytest.mark.parametrize("norm", [False, True])
def test_gradients_equal_the_untiled_ones(make: Any, rows: list[int], norm: bool) -> None:
    group, case = build(make, norm=norm).train(), draw(make, 8, rows, 3 if 1 in rows else 1)
    state = {name: value.clone() for name, value in group.state_dict().items()}
    gradients, after = [], []
    for batch in (case.untiled, case.tiled):
        group.load_state_dict(state)
        group.zero_grad()
        result = group(batch)
        torch.manual_seed(1)
        sum((value * torch.randn(value.shape)).sum() for value in result.values() if value.is_floating_point()).backward()
        gradients.append({name: parameter.grad for name, parameter in group.named_parameters()})
        after.append({name: value.clone() for name, value in group.named_buffers() if value.is_floating_point()})
    assert any("running_mean" in name for name in after[0]) == norm
    for first, second in (gradients, after):
        for name, value in first.items():
            assert value is not None, name
            torch.testing.assert_close(second[name], value, rtol=1e-4, atol=1e-4)  # equal rows make normalisation magnify noise


def test_one_users_sequence_is_a_view(make: Any, plain: EmbeddingGroup) -> None:
    group, case = plain, draw(make, 3, [0] * 50, 1)
    found = check(group, case)
    for key in ("user", "seq_user.query", "seq_user.sequence", "seq_user.sequence_length", "seq.sequence", "own.query"):
        assert found[key].shape[0] == 50
        assert found[key].stride(0) == 0, key
    assert found["seq_user.sequence"].untyped_storage().nbytes() < 2 * 4 * found["seq_user.sequence"][0].numel()


def test_each_table_sees_a_user_once(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, int]] = []
    for cls in (PooledTables, SequenceTables):
        ask = cls.ask

        def counted(self: Any, kjt: KeyedJaggedTensor, *more: Any, ask: Any = ask, **named: Any) -> Any:
            seen.append({key: kjt[key].values().numel() for key in kjt.keys()})  # noqa: SIM118
            return ask(self, kjt, *more, **named)

        monkeypatch.setattr(cls, "ask", counted)
    group, case = build(make).eval(), draw(make, 3, [0] * 9, 1)
    assert case.tiled.tile is not None
    user, item = case.tiled.tile.user.sparse_features["__BASE__"], case.tiled.sparse_features["__BASE__"]
    group(case.tiled)
    expected = {name: part[name].values().numel() for part in (user, item) for name in part.keys()}  # noqa: SIM118
    assert seen == [expected, expected]
    assert {"t", "uid_emb", "z", "tags_emb"} <= {table.name for table in group.tables}
    assert len(group.tables) == len({table.name for table in group.tables})


def test_encoders_of_users_run_once_for_each(make: Any) -> None:
    group, case = build(make).eval(), draw(make, 4, [0, 1, 0, 1, 1], 2)
    rows: list[int] = []
    for encoders in group.encoders_by_group().values():
        for encoder in encoders:
            encoder.register_forward_hook(lambda _module, _inputs, output: rows.append(output.shape[0]))
    group(case.tiled)
    assert rows == [5, 2, 2, 2, 5, 2, 2, 2, 2]  # the pooling of clicks ignores the item's query


def test_a_batch_is_left_as_it_was(make: Any, plain: EmbeddingGroup) -> None:
    group, case = plain, draw(make, 6, [2, 0, 0], 4)
    assert case.tiled.tile is not None
    before = [tensor.clone() for tensor in tensors(case.tiled)]
    first, second = group(case.tiled), group(case.tiled)
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert all(torch.equal(one, other) for one, other in zip(before, tensors(case.tiled), strict=True))


def tensors(batch: Batch) -> list[Tensor]:
    """All tensors of a batch and its tile."""
    parts = [*batch.sparse_features.values(), *batch.dense_features.values(), *batch.sequence_dense_features.values()]
    found = [part.values() for part in (*parts, *batch.sequence_mulval_lengths.values())]
    found += [part.lengths() for part in parts if hasattr(part, "lengths")]
    return found if batch.tile is None else [*found, batch.tile.rows, *tensors(batch.tile.user)]


def test_the_cut_gives_what_forward_gives(make: Any, plain: EmbeddingGroup) -> None:
    group, case = plain, draw(make, 6, [2, 0, 0], 4)
    parts = group.tiled_lookup(case.tiled)
    user, item = group.sides.user, group.sides.item
    assert [lookup.feature for lookup in user.lookups + item.lookups].count("cross") == 1
    assert sorted(lookup.key for lookup in user.lookups + item.lookups) == sorted(lookup.key for lookup in group.lookups)
    assert {lookup.feature for lookup in user.sequence_lookups} == {"clk", "tags"}
    assert [feature.name for feature in user.dense] == ["uage", "upair", "uplain"]
    assert [feature.name for feature in item.dense] == ["iprice", "iplain"]
    assert parts.user.pooled.shape == (2, sum(lookup.dim for lookup in user.lookups))
    assert parts.item.pooled.shape == (3, sum(lookup.dim for lookup in item.lookups))
    assert (parts.user.dense.shape, parts.item.dense.shape) == ((2, 5), (3, 2))
    assert parts.rows is not None
    assert parts.rows.tolist() == [1, 0, 0]
    found, expected = group.assemble_tiled(parts), group(case.tiled)
    assert list(found) == list(expected)
    assert all(torch.equal(found[key], expected[key]) for key in found)
    one = draw(make, 6, [0, 0], 1)
    parts = group.tiled_lookup(one.tiled)._replace(rows=None)
    found, expected = group.assemble_tiled(parts), group(one.tiled)
    assert all(torch.equal(found[key], expected[key]) for key in expected)


def small(make: Any) -> tuple[EmbeddingGroup, Batch]:
    """Two users, three rows."""
    some = [sided(make.sparse("u"), "user"), sided(make.dense("x"), "user"), sided(make.sparse("i"), "item")]
    group = EmbeddingGroup(some, [make.group("g", "u", "x", "i")])
    tile = Tile(make.batch({"u": [[1], [2]]}, {"x": [[0.5], [1.5]]}), torch.tensor([0, 1, 0]))
    return group, replace(make.batch({"i": [[1], [2], [3]]}), tile=tile)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (torch.tensor([0, 1]), "tile.rows has 2 numbers for 3 rows"),
        (torch.tensor([0, 2, 0]), "tile.rows gives row 1 to user 2, but there are 2 users"),
        (torch.tensor([0, 0, -1]), "tile.rows gives row 2 to user -1"),
        (torch.tensor([0, 1, 0], dtype=torch.int32), "tile.rows must be a flat int64 tensor, not torch.int32"),
        (torch.tensor([0.0, 1.0, 0.0]), "not torch.float32"),
        (torch.tensor([[0, 1, 0]]), r"of shape \(1, 3\)"),
    ],
)
def test_rows_that_cannot_be_right_are_refused(make: Any, rows: Tensor, words: str) -> None:
    group, batch = small(make)
    assert group(batch)["g"].shape == (3, 9)
    assert batch.tile is not None
    with pytest.raises(DataError, match=words):
        group(replace(batch, tile=replace(batch.tile, rows=rows)))


def test_features_on_the_wrong_side_or_missing_are_refused(make: Any) -> None:
    group, batch = small(make)
    tile = batch.tile
    assert tile is not None
    both = replace(batch, sparse_features=make.batch({"i": [[1], [2], [3]], "u": [[1], [2], [1]]}).sparse_features)
    with pytest.raises(DataError, match="feature 'u' is the user's and must come on the user side of the batch's tile, but came with the rows"):
        group(both)
    wrong = replace(tile, user=make.batch({"u": [[1], [2]], "i": [[1], [2]]}, {"x": [[0.5], [1.5]]}))
    with pytest.raises(DataError, match="feature 'i' is not the user's and must come with the rows"):
        group(replace(batch, tile=wrong))
    with pytest.raises(DataError, match="dense features of __BASE__ of the user side"):
        group(replace(batch, tile=replace(tile, user=make.batch({"u": [[1], [2]]}))))
    with pytest.raises(DataError, match="sparse features of __BASE__ of the user side: u missing"):
        group(replace(batch, tile=replace(tile, user=make.batch({"other": [[1], [2]]}, {"x": [[0.5], [1.5]]}))))
    with pytest.raises(DataError, match="sparse features of __BASE__ of the item side: i missing"):
        group(replace(batch, sparse_features=make.batch({"other": [[1], [2], [3]]}).sparse_features))
    with pytest.raises(DataError, match="2 rows of sparse features but 1 of dense ones"):
        group(replace(batch, tile=replace(tile, user=make.batch({"u": [[1], [2]]}, {"x": [[0.5]]}))))


def test_a_tile_holds_features_only(make: Any) -> None:
    group, batch = small(make)
    tile = batch.tile
    assert tile is not None
    with pytest.raises(DataError, match="labels or sample weights"):
        group(replace(batch, tile=replace(tile, user=replace(tile.user, labels={"y": torch.ones(2)}))))
    with pytest.raises(DataError, match="cannot be tiled themselves"):
        group(replace(batch, tile=replace(tile, user=replace(tile.user, tile=tile))))
    neg = make.batch({"u": [[1], [2]]}, data_group="__NEG__").sparse_features
    with pytest.raises(DataError, match="features of __NEG__; only __BASE__ has a user side"):
        group(replace(batch, tile=replace(tile, user=replace(tile.user, sparse_features=tile.user.sparse_features | neg))))


def test_features_without_a_side_are_named_all_at_once(make: Any) -> None:
    group = EmbeddingGroup([make.sparse("a"), make.sparse("b"), make.sparse("unread")], [make.group("g", "a", "b")])
    tile = Tile(make.batch({"a": [[1]]}), torch.tensor([0]))
    with pytest.raises(ConfigError, match="'a' has no side") as caught:
        group(replace(make.batch({"b": [[1]]}), tile=tile))
    assert len(caught.value.problems) == 2
    assert group(make.batch({"a": [[1]], "b": [[2]]}))["g"].shape == (1, 8)


def test_the_untiled_lookups_refuse_tiled_batches(make: Any) -> None:
    group, batch = small(make)
    for ask in (group.lookup, group.sequence_lookup, group.dense):
        with pytest.raises(DataError, match="the batch is tiled"):
            ask(batch)
    with pytest.raises(DataError, match="the batch is not tiled"):
        group.tiled_lookup(make.batch({"u": [[1]], "i": [[1]]}, {"x": [[1.0]]}))


def test_zch_tables_of_users_do_not_learn_from_tiled_batches(make: Any) -> None:
    group, case = build(make, zch=True), draw(make, 5, [0, 0], 1)
    with pytest.raises(DataError, match="tables that learn their ids, z, count a user's once"):
        group.train()(case.tiled)
    with pytest.raises(DataError, match="untile_batch"):
        group.tiled_lookup(case.tiled)
    zch = features(make, zch=True)
    of_items = EmbeddingGroup(zch, [make.group("g", "iz", "uid")])
    assert of_items.train()(case.tiled)["g"].shape == (2, 8)


def test_sequences_of_both_sides_must_be_alike_in_each_row(make: Any) -> None:
    some = [sided(make.sequence("u"), "user"), sided(make.sequence("i"), "item")]
    for kind in (GroupKind.SEQUENCE, GroupKind.JAGGED_SEQUENCE):
        group = EmbeddingGroup(some, [make.group("g", "u", "i", group_type=kind)])
        tile = Tile(make.steps({"u": [[1, 2], [3]]}), torch.tensor([1, 0]))
        with pytest.raises(DataError, match="group 'g' puts features 'u' and 'i' side by side, but they have 1 and 2 steps in row 0"):
            group(replace(make.steps({"i": [[1, 2], [3, 4]]}), tile=tile))
        assert group(replace(make.steps({"i": [[1], [3, 4]]}), tile=tile))["g.sequence_length"].tolist() == [1, 2]


def test_negatives_come_as_ever(make: Any) -> None:
    some = [
        sided(make.sparse("u"), "user"),
        sided(make.sparse("i"), "item"),
        sided(make.sparse("n", embedding_name="i_emb", data_group="__NEG__"), "item"),
    ]
    group = EmbeddingGroup(some, [make.group("g", "u", "i"), make.group("neg", "n")])
    make.counted(group, u_emb=0, i_emb=100)
    base = make.batch({"i": [[1], [2]]}).sparse_features | make.batch({"n": [[3], [4], [5]]}, data_group="__NEG__").sparse_features
    batch = Batch(sparse_features=base, tile=Tile(make.batch({"u": [[7]]}), torch.tensor([0, 0])))
    found = group(batch)
    assert found["g"].tolist() == [[7] * 4 + [101] * 4, [7] * 4 + [102] * 4]
    assert found["neg"].tolist() == [[103] * 4, [104] * 4, [105] * 4]
    with pytest.raises(ConfigError, match="groups read __NEG__; use forward"):
        group.tiled_lookup(batch)


def test_a_model_of_one_side_only(make: Any) -> None:
    some = [sided(make.sparse("u"), "user"), sided(make.sparse("i"), "item")]
    tile = Tile(make.batch({"u": [[7], [8]]}), torch.tensor([1, 1, 0]))
    batch = replace(make.batch({"i": [[1], [2], [3]]}), tile=tile)
    user, item = EmbeddingGroup(some, [make.group("g", "u")]), EmbeddingGroup(some, [make.group("g", "i")])
    make.counted(user, u_emb=0)
    make.counted(item, i_emb=0)
    assert user(batch)["g"][:, 0].tolist() == [8, 8, 7]
    assert user(Batch(tile=tile))["g"][:, 0].tolist() == [8, 8, 7]
    assert item(batch)["g"][:, 0].tolist() == [1, 2, 3]
