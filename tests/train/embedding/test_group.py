from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor, KeyedTensor

from emberline.errors import ConfigError, DataError
from emberline.schema import GroupKind, GroupSpec, Pooling
from emberline.train.config.functions import InitSpec
from emberline.train.data import Batch
from emberline.train.embedding import EmbeddingGroup
from emberline.train.features import AutoDisConfig, LfuPolicy, MlpEmbeddingConfig, ZchConfig

ZCH = ZchConfig(zch_size=8, eviction_interval=1, eviction_policy=LfuPolicy())
Bags = list[list[int]]


def test_a_group_holds_its_features_side_by_side_in_config_order(make: Any) -> None:
    features = [make.sparse("a", dim=2), make.dense("d", 2), make.sparse("b", dim=3)]
    group = EmbeddingGroup(features, [make.group("g", "b", "d", "a"), make.group("h", "d")])
    make.counted(group, a_emb=100, b_emb=200)
    batch = make.batch({"a": [[1, 2], []], "b": [[3], [4, 4]]}, {"d": [[7, 8], [9, 10]]})
    result = group(batch)
    assert list(result) == ["g", "h"]
    assert result["g"].tolist() == [[203, 203, 203, 7, 8, 203, 203], [408, 408, 408, 9, 10, 0, 0]]
    assert result["h"].tolist() == [[7, 8], [9, 10]]


def test_accessors(make: Any) -> None:
    features = [
        make.sparse("a", dim=16),
        make.sparse("b", dim=8),
        make.dense("d", 3),
        make.dense("m", dense_embedding=MlpEmbeddingConfig(), embedding_dim=5),
    ]
    groups = [make.group("wide", "a", "b", group_type=GroupKind.WIDE), make.group("deep", "a", "d", "b", "m")]
    group = EmbeddingGroup(features, groups)
    assert group.group_names() == ["wide", "deep"]
    assert group.grouped_features_keys() == ["deep", "wide"]
    assert (group.has_group("deep"), group.has_group("deep.query"), group.has_group("dee")) == (True, True, False)
    assert (group.group_type("wide"), group.group_type("deep.query")) == (GroupKind.WIDE, GroupKind.DEEP)
    assert (group.group_dims("wide"), group.group_dims("deep")) == ([4, 4], [16, 3, 8, 5])
    assert (group.group_total_dim("wide"), group.group_total_dim("deep")) == (8, 32)
    assert group.group_feature_dims("deep") == {"a": 16, "d": 3, "b": 8, "m": 5}
    assert group.groups == (GroupSpec(name="wide", kind=GroupKind.WIDE, dim=8), GroupSpec(name="deep", kind=GroupKind.DEEP, dim=32))
    assert {table.name for table in group.tables} == {"a_emb_wide", "b_emb_wide", "a_emb", "b_emb"}
    with pytest.raises(ConfigError, match="there is no feature group 'tall'; the groups are wide, deep"):
        group.group_dims("tall")


def test_wide_tables_take_their_own_dim_and_init(make: Any) -> None:
    groups = [make.group("w", "a", group_type=GroupKind.WIDE), make.group("d", "a")]
    group = EmbeddingGroup([make.sparse("a", dim=8)], groups, wide_embedding_dim=3, wide_init_fn="nn.init.constant_,val=0.5")
    weights = group.pooled.table_weights()
    assert torch.equal(weights["a_emb_wide"], torch.full((10, 3), 0.5))
    assert weights["a_emb"].shape == (10, 8)
    with pytest.raises(ConfigError, match="wide_init_fn: "):
        EmbeddingGroup([make.sparse("a")], groups, wide_init_fn="os.system,cmd='x'")


@st.composite
def bags(draw: st.DrawFn, rows: int) -> Bags:
    return draw(st.lists(st.lists(st.integers(0, 9), max_size=4), min_size=rows, max_size=rows))


@settings(max_examples=40, deadline=None)
@given(st.data(), st.integers(0, 5), st.sampled_from(Pooling), st.booleans(), st.sampled_from(["fp32", "fp16", "bf16"]))
def test_pooling_is_its_definition(
    make: Any, pooled_by_hand: Any, data: st.DataObject, rows: int, pooling: Pooling, weighted: bool, dtype: str
) -> None:
    feature = make.sparse("f", dim=5, pooling=pooling, weighted=weighted, dtype=dtype)
    group = EmbeddingGroup([feature], [make.group("g", "f")])
    ids = data.draw(bags(rows))
    weights = [[data.draw(st.sampled_from([-2.0, 0.0, 0.3, 1.0, 2.5, 100.0])) for _ in bag] for bag in ids] if weighted else None
    batch = make.batch({"f": ids}, weights={"f": weights} if weights is not None else None)
    found = group(batch)["g"]
    expected = pooled_by_hand(group.pooled.table_weights()["f_emb"], ids, weights, pooling)
    assert found.dtype == torch.float32
    assert torch.allclose(found.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_weighted_sum_and_mean_have_one_meaning(make: Any, dtype: str) -> None:
    features = [make.sparse("s", weighted=True, dtype=dtype), make.sparse("m", weighted=True, pooling=Pooling.MEAN, dtype=dtype)]
    group = EmbeddingGroup(features, [make.group("g", "s", "m")])
    make.counted(group, s_emb=0, m_emb=0)
    ids = [[1, 2], [1, 2], [], [4, 6]]
    weights = [[10.0, 100.0], [3.0, -3.0], [], [1.0, 1.0]]
    batch = make.batch({"s": ids, "m": ids}, weights={"s": weights, "m": weights})
    found = group(batch)["g"]
    assert found[:, 0].tolist() == [210, -3, 0, 10]
    assert found[:, 4].tolist() == pytest.approx([210 / 110, 0, 0, 5])
    without = group(make.batch({"s": ids, "m": ids}))["g"]
    assert without[:, 0].tolist() == [3, 3, 0, 10]
    assert without[:, 4].tolist() == pytest.approx([1.5, 1.5, 0, 5])


def test_weights_on_a_feature_that_is_not_weighted_are_refused(make: Any) -> None:
    group = EmbeddingGroup([make.sparse("f"), make.sparse("w", weighted=True)], [make.group("g", "f", "w")])
    batch = make.batch({"f": [[1, 2]], "w": [[3]]}, weights={"f": [[10.0, 100.0]], "w": [[0.5]]})
    with pytest.raises(DataError, match="feature 'f' has weights, but is not declared weighted"):
        group(batch)


def test_a_plain_reader_of_a_table_that_others_read_with_weights(make: Any) -> None:
    features = [make.sparse("p", embedding_name="t", pooling=Pooling.MEAN), make.sparse("w", embedding_name="t", weighted=True, pooling=Pooling.MEAN)]
    group = EmbeddingGroup(features, [make.group("g", "p", "w")])
    make.counted(group, t=0)
    found = group(make.batch({"p": [[2, 4]], "w": [[2, 4]]}, weights={"w": [[1.0, 3.0]]}))["g"]
    assert found[0, ::4].tolist() == pytest.approx([3, 3.5])


def test_column_order_does_not_depend_on_pooling_or_on_the_order_of_keys(make: Any) -> None:
    poolings = {"f0": (4, Pooling.SUM), "f1": (8, Pooling.MEAN), "f2": (4, Pooling.SUM)}
    features = [make.sparse(name, dim=dim, pooling=pooling) for name, (dim, pooling) in poolings.items()]
    group = EmbeddingGroup(features, [make.group("g", "f0", "f1", "f2")])
    make.counted(group, f0_emb=0, f1_emb=100, f2_emb=200)
    found = group(make.batch({"f2": [[1], [2]], "f0": [[3, 4], []], "f1": [[], [5]]}))["g"]
    assert found.tolist() == [[7] * 4 + [0] * 8 + [201] * 4, [0] * 4 + [105] * 8 + [202] * 4]


@pytest.mark.parametrize("bad", [10, -1, 2**40])
@pytest.mark.parametrize("weighted", [False, True])
def test_ids_out_of_range_are_refused_by_name(make: Any, bad: int, weighted: bool) -> None:
    group = EmbeddingGroup([make.sparse("ok"), make.sparse("f", weighted=weighted)], [make.group("g", "ok", "f")])
    assert group(make.batch({"ok": [[0]], "f": [[9]]}))["g"].shape == (1, 8)
    with pytest.raises(DataError, match=f"feature 'f' has id {bad}, but its table holds rows 0 to 9"):
        group(make.batch({"ok": [[0]], "f": [[bad]]}))


def test_a_feature_of_two_tables_is_named_plainly_when_its_id_is_refused(make: Any) -> None:
    group = EmbeddingGroup([make.sparse("f")], [make.group("g", "f"), make.group("w", "f", group_type=GroupKind.WIDE)])
    with pytest.raises(DataError, match="feature 'f' has id 10"):
        group(make.batch({"f": [[10]]}))


def test_missing_parts_of_a_batch_are_named_and_surplus_ones_ignored(make: Any) -> None:
    group = EmbeddingGroup([make.sparse("a"), make.sparse("b"), make.dense("d", 2)], [make.group("g", "a", "b", "d")])
    numbers = {"d": [[1.0, 2.0]]}
    group(make.batch({"x": [[99]], "a": [[1]], "b": [[2]]}, {"e": [[0.0]], **numbers}))
    with pytest.raises(DataError, match="sparse features of __BASE__: b missing; the batch has a"):
        group(make.batch({"a": [[1]]}, numbers))
    with pytest.raises(DataError, match="dense features of __BASE__: d missing; the batch has e"):
        group(make.batch({"a": [[1]], "b": [[2]]}, {"e": [[1.0]]}))
    with pytest.raises(DataError, match="no dense features of __BASE__; it has none"):
        group(make.batch({"a": [[1]], "b": [[2]]}))
    with pytest.raises(DataError, match="no sparse features of __BASE__"):
        group(make.batch(None, numbers))
    with pytest.raises(DataError, match="feature 'd' has 1 numbers a row, but value_dim 2"):
        group(make.batch({"a": [[1]], "b": [[2]]}, {"d": [[1.0]]}))
    with pytest.raises(DataError, match="__BASE__ has 1 rows of sparse features but 2 of dense ones"):
        group(make.batch({"a": [[1]], "b": [[2]]}, {"d": [[1.0, 2.0], [3.0, 4.0]]}))


def everything(make: Any) -> EmbeddingGroup:
    features = [
        make.sparse("a"),
        make.sparse("m", pooling=Pooling.MEAN, dim=8),
        make.sparse("w", weighted=True),
        make.sparse("z", zch=ZCH),
        make.sparse("v", zch=ZCH, weighted=True, pooling=Pooling.MEAN),
        make.dense("d", 2),
        make.dense("e", dense_embedding=AutoDisConfig(num_channels=3), embedding_dim=4),
        make.dense("l", 3, dense_embedding=MlpEmbeddingConfig(), embedding_dim=4),
        make.dense("unread"),
    ]
    groups = [make.group("g", "w", "d", "a", "z", "e", "m", "v", "l"), make.group("h", "z", "a", group_type=GroupKind.WIDE)]
    torch.manual_seed(0)
    return EmbeddingGroup(features, groups)


def everything_batch(make: Any, rows: int) -> Batch:
    ids = {name: [[row % 10, (3 * row) % 10] if row % 3 else [] for row in range(rows)] for name in "amwzv"}
    torch.manual_seed(rows)
    numbers = KeyedTensor(keys=["l", "e", "d"], length_per_key=[3, 1, 2], values=torch.randn(rows, 6))
    return Batch(sparse_features=make.batch(ids).sparse_features, dense_features={"__BASE__": numbers})


@pytest.mark.parametrize("rows", [0, 1, 2, 7])
@pytest.mark.parametrize("training", [False, True])
def test_any_number_of_rows(make: Any, rows: int, training: bool) -> None:
    group = everything(make).train(training)
    batch = everything_batch(make, rows)
    result = group(batch)
    assert {name: tensor.shape for name, tensor in result.items()} == {"g": (rows, 34), "h": (rows, 8)}
    again = group.eval().assemble(group.lookup(batch), group.dense(batch))
    if not training:
        assert all(torch.equal(again[name], result[name]) for name in result)


def test_dense_holds_all_dense_features_in_config_order(make: Any) -> None:
    group = everything(make)
    batch = everything_batch(make, 2)
    numbers = batch.dense_features["__BASE__"]
    dense = group.dense(batch)
    assert group.dense_dim == 7
    assert torch.equal(dense, torch.cat([numbers["d"], numbers["e"], numbers["l"], torch.zeros(2, 1)], dim=1))


def test_a_batch_whose_bags_are_all_empty(make: Any) -> None:
    group = EmbeddingGroup([make.sparse("a", pooling=Pooling.MEAN), make.sparse("z", zch=ZCH)], [make.group("g", "a", "z")])
    assert torch.equal(group(make.batch({"a": [[], []], "z": [[], []]}))["g"], torch.zeros(2, 8))


class Assembled(nn.Module):
    def __init__(self, group: EmbeddingGroup) -> None:
        super().__init__()
        self.group = group

    def forward(self, pooled: torch.Tensor, dense: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(self.group.assemble(pooled, dense).values())


@pytest.mark.parametrize("how", ["trace", "export"])
def test_assemble_can_be_traced_and_exported_for_any_number_of_rows(make: Any, how: str) -> None:
    group = everything(make).eval()
    program = Assembled(group)
    widths = (sum(lookup.dim for lookup in group.lookups), group.dense_dim)
    example = tuple(torch.randn(3, width) for width in widths)
    if how == "trace":
        exported: Any = torch.jit.trace(program, example)  # type: ignore[no-untyped-call]
    else:
        dynamic = torch.export.Dim.DYNAMIC
        exported = torch.export.export(program, example, dynamic_shapes=({0: dynamic}, {0: dynamic})).module()
    for rows in (0, 1, 2, 7):
        inputs = [torch.randn(rows, width) for width in widths]
        for found, expected in zip(exported(*inputs), program(*inputs), strict=True):
            assert found.shape == expected.shape
            assert torch.allclose(found, expected, atol=1e-6)


def test_data_groups_may_have_batches_of_their_own_and_share_a_table(make: Any) -> None:
    features = [
        make.sparse("u", embedding_name="t"),
        make.dense("ud"),
        make.sparse("i", embedding_name="t", data_group="__NEG__"),
        make.dense("id", 2, data_group="__NEG__"),
        make.sparse("x", data_group="__NEG__", zch=ZCH),
    ]
    group = EmbeddingGroup(features, [make.group("user", "u", "ud"), make.group("item", "x", "id", "i")])
    assert [table.name for table in group.tables] == ["t", "x_emb"]
    make.counted(group, t=0, x_emb=100)
    base, neg = (
        make.batch({"u": [[1, 2]]}, {"ud": [[5.0]]}),
        make.batch({"x": [[77], [], [77]], "i": [[3], [4], []]}, {"id": [[1, 2], [3, 4], [5, 6]]}, data_group="__NEG__"),
    )
    batch = Batch(sparse_features=base.sparse_features | neg.sparse_features, dense_features=base.dense_features | neg.dense_features)
    result = group.eval()(batch)
    assert result["user"].tolist() == [[3, 3, 3, 3, 5]]
    assert result["item"].tolist() == [[107] * 4 + [1, 2] + [3] * 4, [0] * 4 + [3, 4] + [4] * 4, [107] * 4 + [5, 6] + [0] * 4]
    assert group.lookup(batch).shape == (3, 12)
    loss = result["user"].sum() + result["item"].sum()
    loss.backward()
    gradient = group.pooled.table_weights()["t"].grad
    assert gradient is not None
    assert gradient[:, 0].tolist() == [0, 1, 1, 1, 1, 0, 0, 0, 0, 0]


def test_gradients_of_all_readers_of_a_table_add_up(make: Any) -> None:
    group = EmbeddingGroup(
        [make.sparse("a", embedding_name="t"), make.sparse("b", embedding_name="t")], [make.group("g", "a", "b"), make.group("h", "b")]
    )
    result = group(make.batch({"a": [[1, 1]], "b": [[1, 2]]}))
    (result["g"].sum() + 10 * result["h"].sum()).backward()
    gradient = group.pooled.table_weights()["t"].grad
    assert gradient is not None
    assert gradient[:4, 0].tolist() == [0, 13, 11, 0]


def test_a_frozen_table_gets_no_gradient(make: Any) -> None:
    group = EmbeddingGroup([make.sparse("a", trainable=False), make.sparse("b")], [make.group("g", "a", "b")])
    group(make.batch({"a": [[1]], "b": [[1]]}))["g"].sum().backward()
    assert {name: weight.requires_grad for name, weight in group.pooled.table_weights().items()} == {"a_emb": False, "b_emb": True}
    assert {name: weight.grad is None for name, weight in group.pooled.table_weights().items()} == {"a_emb": True, "b_emb": False}


@pytest.mark.parametrize("zch", [("a", "b"), ("a",), ()])
def test_all_some_or_no_features_with_zch(make: Any, zch: tuple[str, ...]) -> None:
    features = [make.sparse(name, rows=8, pooling=Pooling.MEAN if name == "b" else Pooling.SUM, zch=ZCH if name in zch else None) for name in "ab"]
    group = EmbeddingGroup(features, [make.group("g", "a", "b")])
    make.counted(group, a_emb=0, b_emb=100)
    group.pooled.requires_grad_(False)
    batch = make.batch({"a": [[1, 2], []], "b": [[1, 2], []]})
    found = group(batch)["g"]
    rows = {name: [5, 6] if name in zch else [1, 2] for name in "ab"}  # ZCH fills the last free rows, in the order of ids
    assert found[0].tolist() == [sum(rows["a"])] * 4 + [100 + sum(rows["b"]) / 2] * 4
    assert found[1].tolist() == [0] * 8


def test_no_groups_give_an_empty_result(make: Any) -> None:
    group = EmbeddingGroup([make.sparse("a")], [])
    assert group(make.batch({"a": [[1]]})) == {}
    assert group.grouped_features_keys() == []


def test_the_features_init_is_used(make: Any) -> None:
    group = EmbeddingGroup([make.sparse("a", init=InitSpec.parse("nn.init.constant_,val=3"))], [make.group("g", "a")])
    assert torch.equal(group.pooled.table_weights()["a_emb"], torch.full((10, 4), 3.0))


def test_a_batch_without_keys_is_refused_by_name(make: Any) -> None:
    group = EmbeddingGroup([make.sparse("a")], [make.group("g", "a")])
    empty = KeyedJaggedTensor(keys=[], values=torch.empty(0, dtype=torch.int64), lengths=torch.empty(0, dtype=torch.int32))
    with pytest.raises(DataError, match="a missing; the batch has none"):
        group(Batch(sparse_features={"__BASE__": empty}))


def test_narrow_ids_and_wide_weights_are_cast_at_the_edge(make: Any) -> None:
    group = EmbeddingGroup([make.sparse("w", weighted=True), make.sparse("z", zch=ZCH)], [make.group("g", "w", "z")])
    make.counted(group, w_emb=0, z_emb=100)
    kjt = KeyedJaggedTensor(
        keys=["z", "w"],
        values=torch.tensor([500, 2, 4], dtype=torch.int32),
        lengths=torch.tensor([1, 2]),
        weights=torch.tensor([1.0, 0.5, 2.0], dtype=torch.float64),
    )
    assert group(Batch(sparse_features={"__BASE__": kjt}))["g"].tolist() == [[9] * 4 + [106] * 4]
