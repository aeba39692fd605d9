"""Odd batches and tables, each with its right answer or its refusal by name."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from emberline.errors import ConfigError, DataError
from emberline.schema import GroupKind, Pooling
from emberline.train.data import Batch
from emberline.train.embedding import EmbeddingGroup
from tests.train.embedding.telling import FORMS, Rows, features, sequence_rows, system

pytestmark = pytest.mark.filterwarnings("ignore:The TorchScript type system:UserWarning")
SEQUENCE, JAGGED = GroupKind.SEQUENCE, GroupKind.JAGGED_SEQUENCE
CLICK = ("cat_a", "int_a", "click_seq__cat_a", "click_seq__int_a")


def test_totals_in_place_of_lengths_are_refused(make: Any) -> None:
    """Two features of three rows with 3 and 2 ids: lengths of one row, which the numbers beside them do not have."""
    group = EmbeddingGroup([make.sparse("a"), make.sparse("b"), make.dense("x")], [make.group("g", "a", "b", "x")])
    totals = KeyedJaggedTensor(keys=["a", "b"], values=torch.arange(5), lengths=torch.tensor([3, 2]))
    right = make.batch({"a": [[0, 1], [], [2]], "b": [[3], [4], []]}, {"x": [[1], [2], [3]]})
    assert group(right)["g"].shape == (3, 9)
    with pytest.raises(DataError, match="__BASE__ has 1 rows of sparse features but 3 of dense ones"):
        group(replace(right, sparse_features={"__BASE__": totals}))


def test_features_of_unequal_batches_are_refused(make: Any) -> None:
    """Two rows of one feature and one of another, glued together."""
    group = EmbeddingGroup([make.sparse("a"), make.sparse("b")], [make.group("g", "a", "b")])
    glued = KeyedJaggedTensor(keys=["a", "b"], values=torch.tensor([1, 2, 3]), lengths=torch.ones(3, dtype=torch.int32))
    with pytest.raises(DataError, match="3 lengths do not make whole rows of 2 features"):
        group(Batch(sparse_features={"__BASE__": glued}))
    told = KeyedJaggedTensor(
        keys=["a", "b"], values=torch.tensor([1, 2, 3]), lengths=torch.ones(3, dtype=torch.int32), stride_per_key_per_rank=[[2], [1]]
    )
    with pytest.raises(DataError, match="features have different numbers of rows; a data group has one batch size"):
        group(Batch(sparse_features={"__BASE__": told}))


@pytest.mark.parametrize("weights", [torch.ones(1), torch.ones(3), torch.ones(2, 1)])
def test_weights_of_a_wrong_count_are_refused(make: Any, weights: torch.Tensor) -> None:
    group = EmbeddingGroup([make.sparse("a", weighted=True)], [make.group("g", "a")])
    kjt = KeyedJaggedTensor(keys=["a"], values=torch.tensor([1, 2]), lengths=torch.tensor([2]), weights=weights)
    with pytest.raises(DataError, match="weights for 2 ids; each id has one weight"):
        group(Batch(sparse_features={"__BASE__": kjt}))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int64])
def test_weights_of_other_types_are_cast(make: Any, dtype: torch.dtype) -> None:
    group = EmbeddingGroup([make.sparse("a", weighted=True)], [make.group("g", "a")])
    make.counted(group, a_emb=0)
    kjt = KeyedJaggedTensor(keys=["a"], values=torch.tensor([1, 2]), lengths=torch.tensor([2]), weights=torch.tensor([10, 100]).to(dtype))
    found = group(Batch(sparse_features={"__BASE__": kjt}))["g"]
    assert (found.dtype, found.tolist()) == (torch.float32, [[210.0] * 4])


@pytest.mark.parametrize("form", FORMS)
def test_a_system_without_tables(make: Any, form: str) -> None:
    groups = [make.group("deep", "int_a"), make.group("steps", "int_a", "click_seq__int_a", group_type=SEQUENCE)]
    rows = sequence_rows((2, 0))
    asked = system(make, features(), groups, rows, form)
    assert asked.group.tables == ()
    assert asked.group.table_weights() == {}
    assert asked.check(Rows({}, numbers=rows.numbers, dense=rows.dense))["steps.sequence"].shape == (2, 2, 1)


def test_every_key_that_is_promised_can_be_read(make: Any) -> None:
    groups = [
        make.group("wide", "cat_a", group_type=GroupKind.WIDE),
        make.group("deep", "cat_b", "cat_a", "int_a"),
        make.group("seq", *CLICK, group_type=SEQUENCE),
        make.group("jag", *CLICK, group_type=JAGGED),
    ]
    rows = sequence_rows((3, 1))
    asked = system(make, features(), groups, rows)
    found = asked.check(rows)
    keys = asked.group.grouped_features_keys()
    assert keys == sorted(found)
    for key in keys:
        if not key.endswith("_length"):
            assert found[key].shape[-1] == asked.group.group_total_dim(key) == sum(asked.group.group_dims(key)), key


def test_a_number_that_is_none_reaches_its_readers_only(make: Any) -> None:
    """Nothing hides it: a mean of nothing is zeros, a mean of NaN is NaN."""
    some = [make.sparse("a", pooling=Pooling.MEAN), make.sequence("s", value_dim=0, pooling=Pooling.MEAN), make.sequence("t")]
    groups = [make.group("deep", "a"), make.group("seq", "s", group_type=SEQUENCE), make.group("other", "t", group_type=SEQUENCE)]
    group = EmbeddingGroup(some, groups)
    make.counted(group, a_emb=0, s_emb=0, t_emb=0)
    with torch.no_grad():
        for name in ("a_emb", "s_emb", "t_emb"):
            group.table_weights()[name][3] = torch.nan
    batch = make.steps({"a": [[3, 1], [], [2]], "t": [[3], [3, 1], []]}, multi={"s": [[[3, 1], []], [], [[1, 2]]]})
    found = group(batch)
    assert found["deep"][:, 0].isnan().tolist() == [True, False, False]
    assert found["deep"][1:, 0].tolist() == [0, 2]
    assert found["seq.sequence"][..., 0].isnan().tolist() == [[True, False], [False, False], [False, False]]
    assert found["other.sequence"][..., 0].nan_to_num(-1).tolist() == [[-1, 0], [-1, 1], [0, 0]]


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_groups_are_single_precision_whatever_their_tables_are(make: Any, dtype: str) -> None:
    some = [make.sparse("a", dtype=dtype, pooling=Pooling.MEAN), make.sequence("s", dtype=dtype)]
    group = EmbeddingGroup(some, [make.group("deep", "a", "s"), make.group("seq", "a", "s", group_type=SEQUENCE)])
    make.counted(group, a_emb=0, s_emb=1)
    found = group(make.steps({"a": [[1, 2], []], "s": [[3, 4], [5]]}))
    assert {tensor.dtype for key, tensor in found.items() if not key.endswith("_length")} == {torch.float32}
    assert found["deep"][:, [0, 4]].tolist() == [[1.5, 9], [0, 6]]
    assert found["seq.sequence"][..., 0].tolist() == [[4, 5], [6, 0]]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_a_batch_is_left_as_it_was_and_lengths_have_its_type(make: Any, dtype: torch.dtype) -> None:
    groups = [make.group("deep", "cat_a", "int_a"), make.group("seq", *CLICK, group_type=SEQUENCE)]
    rows = sequence_rows((2, 0))
    asked = system(make, features(), groups, rows)
    batch = rows.batch(make)
    kjt = batch.sparse_features["__BASE__"]
    batch.sparse_features["__BASE__"] = KeyedJaggedTensor(keys=kjt.keys(), values=kjt.values(), lengths=kjt.lengths().to(dtype))
    kept = [kjt.values().clone(), kjt.lengths().clone(), batch.dense_features["__BASE__"].values().clone()]
    first, second = asked.answer(batch), asked.answer(batch)
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert first["seq.sequence_length"].dtype == dtype
    after = [batch.sparse_features["__BASE__"].values(), batch.sparse_features["__BASE__"].lengths(), batch.dense_features["__BASE__"].values()]
    assert all(torch.equal(one, other.to(one.dtype)) for one, other in zip(kept, after, strict=True))
    assert list(batch.dense_features["__BASE__"].keys()) == ["int_a"]


def test_more_ids_than_32_bits_count_are_refused_before_they_are_read(make: Any) -> None:
    """Of a batch that was made by hand, too: offsets would wrap. The ids are one, seen 2^31 times."""
    group = EmbeddingGroup([make.sparse("a")], [make.group("g", "a")])
    kjt = KeyedJaggedTensor(keys=["a"], values=torch.zeros(1, dtype=torch.int64).expand(2**31), lengths=torch.tensor([2**31]))
    with pytest.raises(DataError, match="one batch holds 2147483648 ids, more than 2147483647"):
        group(Batch(sparse_features={"__BASE__": kjt}))


@pytest.mark.parametrize(("name", "message"), [("seq.sequence_length", "has no width"), ("nope.query", "there is no feature group 'nope.query'")])
def test_what_has_no_width_is_told(make: Any, name: str, message: str) -> None:
    group = EmbeddingGroup(features(), [make.group("seq", *CLICK, group_type=SEQUENCE)])
    for accessor in (group.group_dims, group.group_total_dim, group.group_feature_dims):
        with pytest.raises(ConfigError, match=message):
            accessor(name)
