"""Sequences in groups: query, steps and number of steps, against values worked out by hand."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from emberline.encoding import encode
from emberline.errors import DataError
from emberline.schema import GroupKind, Keep, Pooling
from emberline.train.config.group_configs import SequenceGroupConfig
from emberline.train.data import Batch, batch_from_encoded
from emberline.train.embedding import DenseEmbeddingCollection, EmbeddingGroup, SequenceParts
from emberline.train.encoders import PoolingEncoderConfig
from emberline.train.features import AutoDisConfig, LfuPolicy, MlpEmbeddingConfig, ZchConfig
from emberline.train.zch import zch_modules

SEQ, JAGGED = GroupKind.SEQUENCE, GroupKind.JAGGED_SEQUENCE
ZCH = ZchConfig(zch_size=8, eviction_interval=1, eviction_policy=LfuPolicy())


def first(tensor: Tensor | None) -> Any:
    """The first number of each vector: `counted` tables hold constants in a row."""
    assert tensor is not None
    return tensor[..., 0].tolist()


def test_query_steps_and_their_number(make: Any) -> None:
    features = [make.sparse("item"), make.sequence("s"), make.numbers("t", 2)]
    group = EmbeddingGroup(features, [make.group("g", "s", "item", "t", group_type=SEQ)])
    make.counted(group, item_emb=100, s_emb=0)
    found = group(make.steps({"item": [[1], [], [3]], "s": [[4, 5], [], [6]]}, numbers={"t": [[[0.1, 0.2], [0.3, 0.4]], [], [[0.5, 0.6]]]}))
    assert list(found) == ["g.query", "g.sequence", "g.sequence_length"]
    assert first(found["g.query"]) == [101, 0, 103]
    zeros = [0.0] * 6
    expected = [[[4, 4, 4, 4, 0.1, 0.2], [5, 5, 5, 5, 0.3, 0.4]], [zeros, zeros], [[6, 6, 6, 6, 0.5, 0.6], zeros]]
    assert torch.equal(found["g.sequence"], torch.tensor(expected))
    assert (found["g.sequence_length"].tolist(), found["g.sequence_length"].dtype) == ([2, 0, 1], torch.int32)


def test_a_jagged_group_is_not_padded_and_agrees_with_a_padded_one(make: Any) -> None:
    features = [make.sparse("item"), make.sequence("s")]
    groups = [make.group("j", "item", "s", group_type=JAGGED), make.group("p", "item", "s", group_type=SEQ)]
    group = EmbeddingGroup(features, groups)
    found = group(make.steps({"item": [[1], [2]], "s": [[4, 5, 6], [7]]}))
    assert found["j.sequence"].shape == (4, 4)
    assert found["p.sequence"].shape == (2, 3, 4)
    assert torch.equal(found["j.sequence"], torch.cat([found["p.sequence"][0], found["p.sequence"][1, :1]]))
    assert torch.equal(found["j.query"], found["p.query"])
    assert [table.name for table in group.tables] == ["item_emb", "s_emb"]
    assert [lookup.key for lookup in group.sequence_lookups] == ["s"]


def test_a_group_has_the_keys_of_its_parts_only(make: Any) -> None:
    features = [make.sparse("item"), make.sequence("s")]
    group = EmbeddingGroup(features, [make.group("q", "item", group_type=SEQ), make.group("s", "s", group_type=JAGGED)])
    found = group(make.steps({"item": [[1]], "s": [[4, 5]]}))
    assert {key: tuple(tensor.shape) for key, tensor in found.items()} == {"q.query": (1, 4), "s.sequence": (2, 4), "s.sequence_length": (1,)}


def test_queries_are_pooled_and_embedded_as_in_deep_groups(make: Any) -> None:
    features = [
        make.sparse("mean", pooling=Pooling.MEAN),
        make.sparse("weighted", weighted=True),
        make.sparse("one"),
        make.dense("raw", 2),
        make.dense("mlp", 3, dense_embedding=MlpEmbeddingConfig(), embedding_dim=4),
        make.sequence("s"),
    ]
    features[2] = replace(features[2], spec=replace(features[2].spec, value_dim=1))
    names = ("mean", "weighted", "one", "raw", "mlp")
    group = EmbeddingGroup(features, [make.group("g", *names, "s", group_type=SEQ), make.group("deep", *names)])
    make.counted(group, mean_emb=0, weighted_emb=0, one_emb=0)
    ids = {"mean": [[1, 2], []], "weighted": [[3], [4]], "one": [[5], []], "s": [[0], []]}
    batch = make.steps(ids, dense={"raw": [[1, 2], [3, 4]], "mlp": [[1, 0, 0], [0, 1, 0]]}, weights={"weighted": [[2.0], [-0.5]]})
    found = group(batch)
    assert torch.equal(found["g.query"], found["deep"])
    assert found["g.query"][:, [0, 4, 8, 12, 13]].tolist() == [[1.5, 6, 5, 1, 2], [0, -2, 0, 3, 4]]
    (weight,) = [parameter for name, parameter in group.named_parameters() if "proj_w_mlp" in name]
    assert torch.equal(found["g.query"][:, 14:], weight[:2])
    assert group.group_dims("g.query") == [4, 4, 4, 2, 4]


@pytest.mark.parametrize(("pooling", "expected"), [(Pooling.SUM, [[3, 0], [7, 12], [0, 0]]), (Pooling.MEAN, [[1.5, 0], [7, 4], [0, 0]])])
def test_steps_of_several_ids_are_pooled_and_empty_steps_are_zeros(make: Any, pooling: Pooling, expected: list[list[float]]) -> None:
    group = EmbeddingGroup([make.sequence("m", value_dim=0, pooling=pooling)], [make.group("g", "m", group_type=SEQ)])
    make.counted(group, m_emb=0)
    found = group(make.steps(multi={"m": [[[1, 2], []], [[7], [5, 4, 3]], []]}))
    assert first(found["g.sequence"]) == expected
    assert found["g.sequence_length"].tolist() == [2, 2, 0]


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_weights_inside_of_sequences(make: Any, dtype: str) -> None:
    common = {"weighted": True, "dtype": dtype}
    features = [
        make.sequence("s", **common),
        make.sequence("m", pooling=Pooling.MEAN, **common),
        make.sequence("ms", value_dim=0, **common),
        make.sequence("mm", value_dim=0, pooling=Pooling.MEAN, **common),
    ]
    group = EmbeddingGroup(features, [make.group("g", "s", "m", "ms", "mm", group_type=SEQ)])
    make.counted(group, s_emb=0, m_emb=0, ms_emb=0, mm_emb=0)
    single, several = [[3, 4, 5]], [[[1, 2], [3], []]]
    weights = {"s": [[2.0, 0.0, -1.0]], "m": [[2.0, 0.0, -1.0]], "ms": [[10.0, 100.0, 0.5]], "mm": [[1.0, 3.0, 0.0]]}
    found = group(make.steps({"s": single, "m": single}, multi={"ms": several, "mm": several}, weights=weights))["g.sequence"]
    assert found.dtype == torch.float32
    assert found[0, :, 0].tolist() == [6, 0, -5]
    assert found[0, :, 4].tolist() == [3, 0, 5]
    assert found[0, :, 8].tolist() == [210, 1.5, 0]
    assert found[0, :, 12].tolist() == [1.75, 0, 0]


def test_a_step_without_its_one_id_is_zeros(make: Any) -> None:
    group = EmbeddingGroup([make.sequence("s")], [make.group("g", "s", group_type=SEQ)])
    make.counted(group, s_emb=0)
    found = group(make.steps(multi={"s": [[[4], [], [6]]]}))
    assert first(found["g.sequence"]) == [[4, 0, 6]]


@pytest.mark.parametrize(("embedding", "value_dim"), [(AutoDisConfig(num_channels=3), 1), (MlpEmbeddingConfig(), 1), (MlpEmbeddingConfig(), 2)])
@pytest.mark.parametrize("kind", [SEQ, JAGGED])
def test_dense_embeddings_of_steps_are_as_wide_as_the_group_says(make: Any, embedding: Any, value_dim: int, kind: GroupKind) -> None:
    features = [make.sequence("s"), make.numbers("n", value_dim, dense_embedding=embedding, embedding_dim=5), make.numbers("raw")]
    group = EmbeddingGroup(features, [make.group("g", "n", "s", "raw", group_type=kind)])
    rows = [[[0.5] * value_dim, [-2.0] * value_dim], [], [[3.0] * value_dim]]
    found = group(make.steps({"s": [[1, 2], [], [3]]}, numbers={"n": rows, "raw": [[[1], [2]], [], [[3]]]}))["g.sequence"]
    assert found.shape[-1] == group.group_total_dim("g.sequence") == 10
    steps = found if kind is JAGGED else found.flatten(0, 1)[[0, 1, 4]]
    (collection,) = [module for module in group.modules() if isinstance(module, DenseEmbeddingCollection)]
    expected = collection({"n": torch.tensor([step for row in rows for step in row])})["n"]
    assert torch.allclose(steps[:, :5], expected)
    assert steps[:, 9].tolist() == [1, 2, 3]
    if kind is SEQ:
        assert found[1].abs().sum() == 0  # padding stays zero, though an embedding of 0 is not


@pytest.mark.parametrize("kind", [SEQ, JAGGED])
def test_sequences_of_different_length_in_one_group_are_refused(make: Any, kind: GroupKind) -> None:
    features = [make.sequence("a"), make.sequence("b"), make.numbers("n")]
    group = EmbeddingGroup(features, [make.group("g", "a", "b", "n", group_type=kind)])
    numbers = {"n": [[[1]], [[1], [2]]]}
    with pytest.raises(DataError, match="group 'g' puts features 'a' and 'b' side by side, but they have 2 and 3 steps in row 1"):
        group(make.steps({"a": [[1], [2, 3]], "b": [[1], [2, 3, 4]]}, numbers=numbers))
    with pytest.raises(DataError, match="group 'g' puts features 'a' and 'n' side by side, but they have 0 and 1 steps in row 0"):
        group(make.steps({"a": [[], [2, 3]], "b": [[], [2, 3]]}, numbers=numbers))


def test_sequences_of_different_groups_may_differ_in_length(make: Any) -> None:
    groups = [make.group("a", "a", group_type=SEQ), make.group("b", "b", group_type=SEQ)]
    found = EmbeddingGroup([make.sequence("a"), make.sequence("b")], groups)(make.steps({"a": [[1], []], "b": [[], [2, 3]]}))
    assert (found["a.sequence"].shape, found["b.sequence"].shape) == ((2, 1, 4), (2, 2, 4))


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_no_rows_and_no_steps(make: Any, rows: int) -> None:
    features = [
        make.sparse("item"),
        make.sequence("s"),
        make.sequence("m", value_dim=0, pooling=Pooling.MEAN, weighted=True),
        make.numbers("n", dense_embedding=AutoDisConfig(num_channels=2), embedding_dim=3),
        make.sequence("z", zch=ZCH),
    ]
    names = ("item", "s", "m", "n", "z")
    groups = [make.group("p", *names, group_type=SEQ), make.group("j", *names, group_type=JAGGED), make.group("deep", "item", "s", "z")]
    group = EmbeddingGroup(features, groups)
    none: list[list[Any]] = [[] for _ in range(rows)]
    found = group(make.steps({"item": none, "s": none, "z": none}, multi={"m": none}, numbers={"n": none}))
    shapes = {"p.query": (rows, 4), "p.sequence": (rows, 0, 15), "p.sequence_length": (rows,), "j.query": (rows, 4), "j.sequence": (0, 15)}
    assert {key: tuple(tensor.shape) for key, tensor in found.items()} == {**shapes, "j.sequence_length": (rows,), "deep": (rows, 12)}
    assert all(not tensor.any() for tensor in found.values())
    sum(tensor.sum() for tensor in found.values() if tensor.is_floating_point()).backward()
    assert all(weight.grad is None or not weight.grad.any() for weight in group.parameters())


def test_zero_length_rows_do_not_see_their_neighbours(make: Any) -> None:
    group = EmbeddingGroup([make.sequence("s")], [make.group("g", "s", group_type=SEQ)])
    make.counted(group, s_emb=1)
    for lengths in ([4, 0, 1], [0, 0], [0], [0, 3], [2, 0, 0, 2]):
        ids = [list(range(length)) for length in lengths]
        found = group(make.steps({"s": ids}))
        longest = max(lengths)
        assert first(found["g.sequence"]) == [[1.0 + step for step in range(length)] + [0.0] * (longest - length) for length in lengths]


@pytest.mark.parametrize(
    ("most", "keep", "expected"),
    [
        (2, Keep.NEWEST, [[3, 4], [], [5]]),
        (2, Keep.OLDEST, [[1, 2], [], [5]]),
        (3, Keep.NEWEST, [[2, 3, 4], [], [5]]),
        (0, Keep.NEWEST, [[1, 2, 3, 4], [], [5]]),
    ],
)
def test_a_sequence_that_is_too_long_keeps_the_named_end(make: Any, most: int, keep: Keep, expected: list[list[int]]) -> None:
    features = [make.sequence("s"), make.numbers("n"), make.sequence("m", value_dim=0)]
    features = [replace(one, spec=replace(one.spec, sequence_length=most, keep=keep, encoded=True)) for one in features]
    group = EmbeddingGroup(features, [make.group("g", "s", "n", "m", group_type=SEQ)])
    make.counted(group, s_emb=0, m_emb=0)
    columns: dict[str, list[object]] = {
        "s": [[1, 2, 3, 4], [], [5]],
        "n": [[1.0, 2.0, 3.0, 4.0], [], [5.0]],
        "m": [[[1], [2], [3], [2, 2]], [], [[4, 1]]],
    }
    found = group(batch_from_encoded(features, encode([feature.spec for feature in features], columns)))
    longest = max(map(len, expected))
    for column in (0, 4, 5):
        assert found["g.sequence"][..., column].tolist() == [[*row, *[0] * (longest - len(row))] for row in expected]
    assert found["g.sequence_length"].tolist() == [len(row) for row in expected]


def test_one_name_is_one_table_pooled_and_step_by_step(make: Any) -> None:
    features = [
        make.sparse("item", embedding_name="t"),
        make.sequence("s", embedding_name="t"),
        make.sparse("neg", embedding_name="t", data_group="__NEG__"),
    ]
    groups = [
        make.group("deep", "item"),
        make.group("seq", "item", "s", group_type=SEQ),
        make.group("jag", "s", group_type=JAGGED),
        make.group("neg", "neg"),
    ]
    group = EmbeddingGroup(features, groups)
    assert [(table.name, table.rows) for table in group.tables] == [("t", 10)]
    assert sum(parameter.numel() for parameter in group.parameters()) == 40
    make.counted(group, t=0)
    batch, neg = make.steps({"item": [[1, 2]], "s": [[1, 4]]}), make.batch({"neg": [[5], [1], []]}, data_group="__NEG__")
    found = group(replace(batch, sparse_features=batch.sparse_features | neg.sparse_features))
    assert [first(found[key]) for key in ("deep", "seq.query", "seq.sequence", "jag.sequence", "neg")] == [[3], [3], [[1, 4]], [1, 4], [5, 1, 0]]
    sum(tensor.sum() for tensor in found.values() if tensor.is_floating_point()).backward()
    assert first(group.table_weights()["t"].grad) == [0, 5, 2, 0, 2, 1, 0, 0, 0, 0]


def test_readers_of_a_table_may_pool_differently_where_steps_are_kept(make: Any) -> None:
    features = [make.sparse("sum", embedding_name="t"), make.sequence("s", value_dim=0, embedding_name="t", pooling=Pooling.MEAN)]
    group = EmbeddingGroup(features, [make.group("g", "sum", "s", group_type=SEQ)])
    make.counted(group, t=0)
    found = group(make.steps({"sum": [[1, 2]]}, multi={"s": [[[1, 2]]]}))
    assert (first(found["g.query"]), first(found["g.sequence"])) == ([3], [[1.5]])
    features = [make.sparse("sum", embedding_name="t"), make.sparse("mean", embedding_name="t", pooling=Pooling.MEAN)]
    group = EmbeddingGroup(features, [make.group("q", "sum", group_type=SEQ), make.group("r", "mean", group_type=SEQ)])
    make.counted(group, t=0)
    found = group(make.steps({"sum": [[1, 2]], "mean": [[1, 2]]}))
    assert (first(found["q.query"]), first(found["r.query"])) == ([3], [1.5])


def test_suffixes_give_groups_tables_of_their_own(make: Any) -> None:
    features = [make.sparse("item"), make.sequence("s")]
    groups = [make.group(name, "item", "s", group_type=SEQ, embedding_name_suffix=name) for name in "xy"]
    group = EmbeddingGroup(features, groups)
    assert [table.name for table in group.tables] == ["item_emb_x", "s_emb_x", "item_emb_y", "s_emb_y"]
    make.counted(group, item_emb_x=0, s_emb_x=100, item_emb_y=1000, s_emb_y=2000)
    found = group(make.steps({"item": [[1], [2]], "s": [[3], [4, 5]]}))
    assert [first(found[f"{name}.query"]) for name in "xy"] == [[1, 2], [1001, 1002]]
    assert [first(found[f"{name}.sequence"]) for name in "xy"] == [[[103, 0], [104, 105]], [[2003, 0], [2004, 2005]]]


def test_a_sequence_in_a_deep_group_is_pooled_over_all_its_ids(make: Any) -> None:
    features = [make.sequence("s", pooling=Pooling.MEAN), make.sequence("m", value_dim=0)]
    group = EmbeddingGroup(features, [make.group("deep", "s", "m"), make.group("g", "s", group_type=SEQ)])
    make.counted(group, s_emb=0, m_emb=0)
    found = group(make.steps({"s": [[1, 2], []]}, multi={"m": [[[1, 2], [3]], [[]]]}))
    assert found["deep"][:, [0, 4]].tolist() == [[1.5, 6], [0, 0]]
    assert first(found["g.sequence"]) == [[1, 2], [0, 0]]


@pytest.mark.parametrize("kind", [GroupKind.DEEP, GroupKind.WIDE])
@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("pooling", list(Pooling))
def test_pooled_sequences_are_their_definition(make: Any, pooled_by_hand: Any, kind: GroupKind, kept: bool, pooling: Pooling) -> None:
    """Whether the steps are kept elsewhere too or not: then the table is one that is read step by step."""
    features = [make.sequence("s", pooling=pooling, weighted=True), make.sequence("m", value_dim=0, pooling=pooling)]
    others = [make.group("kept", "s", group_type=SEQ), make.group("more", "m", group_type=SEQ)] if kept else []
    group = EmbeddingGroup(features, [make.group("g", "s", "m", group_type=kind), *others])
    rows, weights = [[1, 2, 2], [], [9]], [[0.5, 2, 1], [], [3.0]]
    steps: list[list[list[int]]] = [[[1, 2], [], [3]], [[]], []]
    found = group(make.steps({"s": rows}, multi={"m": steps}, weights={"s": weights}))["g"]
    suffix = "_wide" if kind is GroupKind.WIDE else ""
    tables = [group.table_weights()[f"{name}_emb{suffix}"].detach() for name in "sm"]
    flat = [[one for step in row for one in step] for row in steps]
    expected = [pooled_by_hand(tables[0], rows, weights, pooling), pooled_by_hand(tables[1], flat, None, pooling)]
    assert torch.allclose(found.double(), torch.cat(expected, dim=1), atol=1e-6)


def test_tables_of_any_width_and_type(make: Any) -> None:
    features = [make.sequence("a", dim=3), make.sequence("b", dim=8, dtype="fp16"), make.sequence("c", dim=3, dtype="fp16")]
    group = EmbeddingGroup(features, [make.group("g", "b", "a", "c", group_type=SEQ)])
    make.counted(group, a_emb=0, b_emb=10, c_emb=20)
    found = group(make.steps({"a": [[1]], "b": [[2]], "c": [[3]]}))["g.sequence"]
    assert found.dtype == torch.float32
    assert found.tolist() == [[[12] * 8 + [1] * 3 + [23] * 3]]


def test_zch_reads_each_id_once_and_rows_agree(make: Any) -> None:
    features = [make.sparse("item", embedding_name="t", zch=ZCH), make.sequence("s", embedding_name="t", zch=ZCH)]
    groups = [make.group("deep", "item", "s"), make.group("seq", "item", "s", group_type=SEQ), make.group("jag", "s", group_type=JAGGED)]
    group = EmbeddingGroup(features, groups)
    make.counted(group, t=0)
    (zch,) = zch_modules(group).values()
    batch = make.steps({"item": [[7], [-9]], "s": [[7, 2**62], []]})
    group.train()(batch)
    assert zch.counters.seen == 4
    found = group.eval()(batch)
    rows = dict(zip((7, -9, 2**62), zch.rows_of(torch.tensor([7, -9, 2**62])).tolist(), strict=True))
    assert len(set(rows.values())) == 3
    assert first(found["seq.sequence"]) == [[rows[7], rows[2**62]], [0, 0]]
    assert found["deep"][:, 0].tolist() == first(found["seq.query"]) == [rows[7], rows[-9]]
    assert found["deep"][:, 4].tolist() == [rows[7] + rows[2**62], 0]
    assert first(group(make.steps({"item": [[1], []], "s": [[5], []]}))["seq.sequence"]) == [[7], [0]]  # ids never seen


@pytest.mark.parametrize("zch", [("a", "b"), ("a",), ()])
def test_all_some_or_no_sequences_with_zch(make: Any, zch: tuple[str, ...]) -> None:
    features = [make.sequence(name, rows=8, zch=ZCH if name in zch else None) for name in "ab"]
    group = EmbeddingGroup(features, [make.group("g", "a", "b", group_type=SEQ)])
    make.counted(group, a_emb=0, b_emb=100)
    found = group.eval()(make.steps({"a": [[1, 2], []], "b": [[3, 4], []]}))["g.sequence"]
    for place, name in enumerate("ab"):
        rows = [7, 7] if name in zch else [[1, 2], [3, 4]][place]
        assert found[..., 4 * place].tolist() == [[100 * place + row for row in rows], [0, 0]]


@pytest.mark.parametrize("pooling", list(Pooling))
def test_zch_steps_of_several_ids(make: Any, pooling: Pooling) -> None:
    features = [make.sequence("m", value_dim=0, zch=ZCH, pooling=pooling), make.sequence("s", value_dim=0, zch=ZCH)]
    group = EmbeddingGroup(features, [make.group("g", "m", "s", group_type=SEQ)])
    make.counted(group, m_emb=0, s_emb=0)
    found = group.eval()(make.steps(multi={"m": [[[1, 2], []]], "s": [[[1, 2], []]]}))["g.sequence"]
    assert found[0, :, 0].tolist() == [7 if pooling is Pooling.MEAN else 14, 0]
    assert found[0, :, 4].tolist() == [14, 0]


def test_data_groups_have_batches_of_their_own(make: Any) -> None:
    features = [
        make.sparse("u"),
        make.sequence("s", value_dim=0, embedding_name="t"),
        make.sparse("i", embedding_name="t", data_group="__NEG__"),
        make.sequence("c", data_group="__CNEG__"),
        make.numbers("n", data_group="__CNEG__"),
    ]
    nested = SequenceGroupConfig(feature_names=("s",))
    groups = [
        make.group("user", "u", sequence_groups=(nested,), sequence_encoders=(PoolingEncoderConfig(),)),
        make.group("item", "i"),
        make.group("cross", "c", "n", group_type=SEQ),
    ]
    group = EmbeddingGroup(features, groups)
    make.counted(group, u_emb=0, t=100, c_emb=1000)
    base = make.steps({"u": [[1], [2]]}, multi={"s": [[[1, 2], [3]], []]})
    neg = make.batch({"i": [[3], [4], [], [5]]}, data_group="__NEG__")
    cross = make.steps({"c": [[7, 8], [], [9]]}, numbers={"n": [[[1], [2]], [], [[3]]]}, data_group="__CNEG__")
    batch = replace(base, sparse_features=base.sparse_features | neg.sparse_features | cross.sparse_features)
    batch = replace(batch, sequence_dense_features=cross.sequence_dense_features)
    found = group(batch)
    assert list(found) == ["user", "user.sequence", "user.sequence_length", "item", "cross.sequence", "cross.sequence_length"]
    assert found["user"][:, [0, 4]].tolist() == [[1, 153], [2, 0]]
    assert first(found["user.sequence"]) == [[203, 103], [0, 0]]
    assert first(found["item"]) == [103, 104, 0, 105]
    assert found["cross.sequence"][..., [0, 4]].tolist() == [[[1007, 1], [1008, 2]], [[0, 0], [0, 0]], [[1009, 3], [0, 0]]]
    parts = group.sequence_lookup(batch)
    assert {stream: length.tolist() for stream, length in parts.lengths.items()} == {"s": [2, 0, 0, 0], "c": [2, 0, 1, 0]}
    assert group.lookup(batch).shape == (4, 8)


def test_the_cut_gives_what_forward_gives(make: Any) -> None:
    features = [
        make.sparse("item"),
        make.dense("x"),
        make.sequence("s"),
        make.sequence("m", value_dim=0),
        make.numbers("n", dense_embedding=MlpEmbeddingConfig(), embedding_dim=2),
    ]
    nested = SequenceGroupConfig(feature_names=("item", "s"))
    groups = [
        make.group("deep", "item", "x", sequence_groups=(nested,), sequence_encoders=(PoolingEncoderConfig(),)),
        make.group("seq", "x", "s", "n", group_type=SEQ),
        make.group("jag", "m", group_type=JAGGED),
    ]
    group = EmbeddingGroup(features, groups)
    assert group.has_sequences
    batch = make.steps(
        {"item": [[1], [2]], "s": [[1, 2], [3]]}, multi={"m": [[[1], []], [[4, 5]]]}, numbers={"n": [[[1], [2]], [[3]]]}, dense={"x": [[1], [2]]}
    )
    found = group(batch)
    parts = group.sequence_lookup(batch)
    assert {key: tuple(value.shape) for key, value in parts.values.items()} == {"n": (3, 1), "s": (3, 4), "m": (3, 4)}
    assert {stream: len(positions) for stream, positions in parts.positions.items()} == {"s": 2}
    again = group.assemble(group.lookup(batch), group.dense(batch), parts)
    assert list(again) == list(found)
    assert all(torch.equal(again[key], tensor) for key, tensor in found.items())


def test_padding_further_changes_zeros_only(make: Any) -> None:
    group = EmbeddingGroup([make.sequence("s")], [make.group("g", "s", group_type=SEQ)])
    batch = make.steps({"s": [[1, 2], [3]]})
    parts = group.sequence_lookup(batch)
    longer = group.assemble(group.lookup(batch), group.dense(batch), parts._replace(positions={"s": torch.arange(5)}))["g.sequence"]
    assert torch.equal(longer[:, :2], group(batch)["g.sequence"])
    assert longer.shape == (2, 5, 4)
    assert not longer[:, 2:].any()


class _Calls(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts calls of operators by name."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: dict[str, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        self.counts[name] = self.counts.get(name, 0) + 1
        return func(*args, **(kwargs or {}))


def test_a_group_is_padded_once_and_a_jagged_one_never(make: Any) -> None:
    features = [make.sequence("a"), make.sequence("b"), make.numbers("n"), make.sequence("c")]
    groups = [make.group("p", "a", "b", "n", group_type=SEQ), make.group("q", "a", "n", group_type=SEQ), make.group("j", "c", "a", group_type=JAGGED)]
    group = EmbeddingGroup(features, groups)
    batch = make.steps({"a": [[1, 2], []], "b": [[1, 2], []], "c": [[1, 2], []]}, numbers={"n": [[[1], [2]], []]})
    pooled, dense, parts = group.lookup(batch), group.dense(batch), group.sequence_lookup(batch)
    with _Calls() as calls:
        group.assemble(pooled, dense, parts)
    assert (calls.counts["jagged_to_padded_dense_forward"], calls.counts["cat"]) == (2, 3)


def test_assembling_looks_at_no_value(make: Any) -> None:
    """So it waits for no device: a fake tensor has no values, and raises where one is asked for."""
    features = [make.sparse("item"), make.sequence("s"), make.numbers("n")]
    group = EmbeddingGroup(features, [make.group("j", "item", "s", "n", group_type=JAGGED), make.group("p", "s", group_type=SEQ)])
    batch = make.steps({"item": [[1], [2]], "s": [[1, 2], []]}, numbers={"n": [[[1], [2]], []]})
    pooled, dense, parts = group.lookup(batch), group.dense(batch), group.sequence_lookup(batch)
    mode = FakeTensorMode()
    fakes: list[dict[str, Tensor]] = [{name: mode.from_tensor(tensor.detach()) for name, tensor in tensors.items()} for tensors in parts]
    fake_pooled, fake_dense = mode.from_tensor(pooled.detach()), mode.from_tensor(dense)
    with mode:
        found = group.assemble(fake_pooled, fake_dense, SequenceParts(*fakes))
    assert {key: tuple(tensor.shape) for key, tensor in found.items()} == {
        "j.query": (2, 4),
        "j.sequence": (2, 5),
        "j.sequence_length": (2,),
        "p.sequence": (2, 2, 4),
        "p.sequence_length": (2,),
    }


def _broken(make: Any, batch: Batch, what: str) -> Batch:
    sizes = {
        "missing sizes": {},
        "other sizes": {"m": [[1], [1, 1]]},
        "sizes of other rows": {"m": [[2], [1], [0]]},
    }
    steps = {
        "missing numbers": {},
        "wide numbers": {"n": make.jagged([[[1, 2]], [[3, 4], [5, 6]]])},
        "numbers of other rows": {"n": make.jagged([[[1]]])},
    }
    if what in sizes:
        return replace(batch, sequence_mulval_lengths={"__BASE__": make.kjt(sizes[what])} if sizes[what] else {})
    return replace(batch, sequence_dense_features=steps[what])


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("missing sizes", "sequence 'm' has steps of any number of ids, but sequence_mulval_lengths of __BASE__ does not say how many each has"),
        ("other sizes", "sequence 'm' has 2 ids in row 0, but its steps add up to 1"),
        ("sizes of other rows", "sequence 'm' has ids for 2 rows, but steps for 3"),
        ("missing numbers", "the batch has no sequence 'n'; it has none"),
        ("wide numbers", r"sequence 'n' has numbers of shape \[3, 2\], but value_dim 1"),
        ("numbers of other rows", "__BASE__ has 2 rows of sparse features but 1 of sequence n"),
    ],
)
def test_batches_that_contradict_themselves_are_refused(make: Any, what: str, words: str) -> None:
    features = [make.sequence("m", value_dim=0), make.numbers("n")]
    group = EmbeddingGroup(features, [make.group("g", "m", "n", group_type=SEQ)])
    batch = make.steps(multi={"m": [[[1, 2]], [[3], []]]}, numbers={"n": [[[1]], [[2], [3]]]})
    group(batch)
    with pytest.raises(DataError, match=words):
        group(_broken(make, batch, what))


@pytest.mark.parametrize("bad", [10, -1, 2**40])
def test_ids_outside_of_the_table_are_refused(make: Any, bad: int) -> None:
    group = EmbeddingGroup([make.sequence("s")], [make.group("g", "s", group_type=SEQ)])
    with pytest.raises(DataError, match=f"feature 's' has id {bad}, but its table holds rows 0 to 9"):
        group(make.steps({"s": [[1], [bad]]}))


@settings(max_examples=40, deadline=None)
@given(st.data(), st.integers(0, 4), st.sampled_from(Pooling), st.booleans(), st.booleans())
def test_sequences_are_their_definition(
    make: Any, pooled_by_hand: Any, data: st.DataObject, rows: int, pooling: Pooling, weighted: bool, several: bool
) -> None:
    """Each step is a bag of its own, pooled as a row is elsewhere; then come zeros up to the longest row."""
    feature = make.sequence("f", value_dim=0 if several else 1, dim=3, pooling=pooling, weighted=weighted)
    group = EmbeddingGroup([feature], [make.group("p", "f", group_type=SEQ), make.group("j", "f", group_type=JAGGED), make.group("d", "f")])
    step = st.lists(st.integers(0, 9), min_size=0 if several else 1, max_size=3 if several else 1)
    steps = data.draw(st.lists(st.lists(step, max_size=4), min_size=rows, max_size=rows))
    weights = [[[data.draw(st.sampled_from([-2.0, 0.0, 0.3, 1.0, 100.0])) for _ in one] for one in row] for row in steps]
    flat = {"f": [[weight for one in row for weight in one] for row in weights]} if weighted else None
    single = {"f": [[one for step_ids in row for one in step_ids] for row in steps]}
    batch = make.steps(multi={"f": steps}, weights=flat) if several else make.steps(single, weights=flat)
    found = group(batch)
    table = group.table_weights()["f_emb"]
    bags = [bag for row in steps for bag in row]
    expected = pooled_by_hand(table, bags, [one for row in weights for one in row] if weighted else None, pooling)
    assert torch.allclose(found["j.sequence"].double(), expected, rtol=1e-5, atol=1e-5)
    padded = torch.nn.utils.rnn.pad_sequence(list(expected.split([len(row) for row in steps])), batch_first=True) if rows else expected.view(0, 0, 3)
    assert torch.allclose(found["p.sequence"].double(), padded, rtol=1e-5, atol=1e-5)
    whole = pooled_by_hand(table, single["f"], flat["f"] if flat is not None else None, pooling)
    assert torch.allclose(found["d"].double(), whole, rtol=1e-5, atol=1e-5)
