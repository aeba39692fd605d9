"""Tables whose ids are any int64: placeholders without memory, which a reader or sharding gives rows."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from emberline.errors import ConfigError, DataError
from emberline.schema import GroupKind, Pooling, TableKind, TableSpec
from emberline.train import embedding
from emberline.train.dynamic.options import DynamicEmbOptions, Initializer, InitializerMode
from emberline.train.embedding import EmbeddingGroup
from emberline.train.embedding.registry import TableRegistry
from emberline.train.embedding.sides import Sides
from emberline.train.features import Feature
from emberline.train.features.placement import DynamicEmbParameterConstraints, TableConstraints

LOWEST, HIGHEST = -(2**63), 2**63 - 1
KEYS = (LOWEST, -1, 0, 7, HIGHEST)
"""Ids that have rows in these tests."""


def options(capacity: int) -> DynamicEmbOptions:
    return DynamicEmbOptions(max_capacity=capacity, initializer=Initializer(mode=InitializerMode.CONSTANT))


def growing(make: Any, name: str, kind: str = "sparse", capacity: int = 10**12, **other: Any) -> Feature:
    feature: Feature = getattr(make, kind)(name, rows=capacity, dynamicemb=options(capacity), **other)
    assert feature.raw_ids
    return feature


def vector(table: str, key: int, dim: int) -> list[float]:
    """The row of a key: zeros of those that have none."""
    return [float(KEYS.index(key) * 10 + place + len(table)) if key in KEYS else 0.0 for place in range(dim)]


def reader(dims: Mapping[str, int]) -> Any:
    def read(table: str, ids: Tensor) -> Tensor:
        assert ids.dtype == torch.int64
        assert ids.tolist() == sorted(set(ids.tolist()))
        return torch.tensor([vector(table, key, dims[table]) for key in ids.tolist()]).view(-1, dims[table])

    return read


def test_the_embedding_knows_nothing_of_what_the_ids_find() -> None:
    files = sorted(Path(embedding.__file__).parent.glob("**/*.py"))
    told = [path.name for path in files if re.search(r"dynamic_?emb|train\.dynamic", path.read_text(encoding="utf-8"), re.IGNORECASE)]
    assert told == []
    print(f"{len(files)} files of the embedding know nothing of it")
    assert len(files) > 20


@pytest.mark.parametrize("device", ["cpu", "meta", None])
def test_placeholders_take_no_memory(make: Any, device: str | None) -> None:
    """A million million rows of 1000 numbers, beside tables that are there."""
    some = [growing(make, "a", dim=1000), make.sparse("b", dim=1000), growing(make, "s", "sequence", dim=1000), make.sequence("t", dim=1000)]
    groups = [make.group("g", "a", "b"), make.group("q", "s", "t", group_type=GroupKind.JAGGED_SEQUENCE)]
    torch.manual_seed(0)
    weights = EmbeddingGroup(some, groups, device=device).table_weights()
    assert {name: (weight.is_meta, tuple(weight.shape)) for name, weight in weights.items()} == {
        "a_emb": (True, (10**12, 1000)),
        "b_emb": (device == "meta", (10, 1000)),
        "s_emb": (True, (10**12, 1000)),
        "t_emb": (device == "meta", (10, 1000)),
    }
    if device != "meta":  # uniform in +-sqrt(1 / 10), as their configs say
        bounds = [float(weights[name].detach().abs().max()) for name in ("b_emb", "t_emb")]
        assert all(0.3 < bound <= 10**-0.5 for bound in bounds)


def test_tables_beside_placeholders_keep_type_and_trainability(make: Any) -> None:
    some = [growing(make, "a", dtype="bf16", trainable=False), make.sparse("b", dtype="bf16"), make.sparse("c", trainable=False)]
    weights = EmbeddingGroup(some, [make.group("g", "a", "b", "c")]).table_weights()
    assert {name: (weight.dtype, weight.requires_grad, weight.is_meta) for name, weight in weights.items()} == {
        "a_emb": (torch.bfloat16, False, True),
        "b_emb": (torch.bfloat16, True, False),
        "c_emb": (torch.float32, False, False),
    }


def test_features_pass_on_marks_and_constraints_and_a_kind(make: Any) -> None:
    asked = growing(make, "a", capacity=100)
    group = EmbeddingGroup([asked, make.sparse("b"), growing(make, "s", "sequence")], [
        make.group("g", "a", "b"), make.group("q", "s", group_type=GroupKind.SEQUENCE)
    ])  # fmt: skip
    assert group.tables[0] == TableSpec(name="a_emb", rows=100, dim=4, kind=TableKind.DYNAMIC)
    configs = [*group.pooled.ebc.embedding_bag_configs(), *group.sequence_tables.ec_dict["4"].embedding_configs()]  # type: ignore[operator]
    assert {config.name: config.use_dynamicemb for config in configs} == {"a_emb": True, "b_emb": False, "s_emb": True}
    found = group.parameter_constraints("model")
    assert {path: type(own) for path, own in found.items()} == {
        "model.pooled.ebc.a_emb": DynamicEmbParameterConstraints,
        "model.pooled.ebc.b_emb": TableConstraints,
        "model.sequence_tables.ec_dict.4.s_emb": DynamicEmbParameterConstraints,
    }
    own = found["model.pooled.ebc.a_emb"]
    assert isinstance(own, DynamicEmbParameterConstraints)
    assert (own.dynamicemb_options, own.readers, own.pooling_factors) == (asked.dynamicemb, ("a",), [1.0])


def test_means_are_weighted_sums(make: Any) -> None:
    registry = TableRegistry([growing(make, "a", pooling=Pooling.MEAN), make.sparse("b", pooling=Pooling.MEAN)], [make.group("g", "a", "b")])
    assert {table.name: (table.by_weighted_sum, table.learns_ids) for table in registry.tables} == {"a_emb": (True, True), "b_emb": (False, False)}


def test_rows_are_there_only_where_somebody_gives_them(make: Any) -> None:
    some = [growing(make, "a"), growing(make, "s", "sequence")]
    group = EmbeddingGroup(some, [make.group("g", "a")])
    with pytest.raises(ConfigError, match="table 'a_emb' takes raw ids, and has rows only where the model is sharded"):
        group(make.batch({"a": [[1]]}))
    steps = EmbeddingGroup(some, [make.group("q", "s", group_type=GroupKind.SEQUENCE)])
    with pytest.raises(ConfigError, match="table 's_emb' takes raw ids"):
        steps(make.steps({"s": [[1]]}))


def test_other_tables_are_still_looked_at(make: Any) -> None:
    group = EmbeddingGroup([growing(make, "a"), make.sparse("b", rows=10)], [make.group("g", "a", "b")])
    group.read_rows_by(reader({"a_emb": 4, "b_emb": 4}))
    with pytest.raises(DataError, match="feature 'b' has id 10, but its table holds rows 0 to 9"):
        group(make.batch({"a": [[HIGHEST]], "b": [[10]]}))


def test_features_by_hand_must_fit(make: Any) -> None:
    with pytest.raises(ConfigError, match="feature 'a': its table has 8 rows, but max_capacity 9"):
        EmbeddingGroup([make.sparse("a", rows=8, dynamicemb=options(9))], [make.group("g", "a")])


KEY = st.sampled_from([*KEYS, 1, -2]) | st.integers(LOWEST, HIGHEST)


@settings(max_examples=15, deadline=None)
@given(rows=st.lists(st.tuples(st.lists(KEY, max_size=4), st.lists(KEY, max_size=4)), max_size=5), pooling=st.sampled_from(Pooling))
def test_any_ids_are_read_by_a_reader(make: Any, rows: Sequence[tuple[list[int], list[int]]], pooling: Pooling) -> None:
    """Pooled, weighted, and step by step, against sums by hand."""
    some = [growing(make, "a", pooling=pooling), growing(make, "w", weighted=True, dim=2), growing(make, "s", "sequence", dim=3)]
    groups = [make.group("g", "a", "w"), make.group("q", "s", group_type=GroupKind.JAGGED_SEQUENCE)]
    group = EmbeddingGroup(some, groups, device="meta").eval()
    group.read_rows_by(reader({"a_emb": 4, "w_emb": 2, "s_emb": 3}))
    bags = {"a": [first for first, _ in rows], "w": [second for _, second in rows], "s": [first for first, _ in rows]}
    weights = {"w": [[0.5 * place for place in range(len(row))] for row in bags["w"]]}
    found = group(make.steps(bags, weights=weights))
    for row, (ids, others) in enumerate(rows):
        plain = [sum(vector("a_emb", key, 4)[place] for key in ids) / (max(1, len(ids)) if pooling is Pooling.MEAN else 1) for place in range(4)]
        weighed = [sum(0.5 * at * vector("w_emb", key, 2)[place] for at, key in enumerate(others)) for place in range(2)]
        torch.testing.assert_close(found["g"][row], torch.tensor(plain + weighed))
    steps = [vector("s_emb", key, 3) for ids in bags["s"] for key in ids]
    torch.testing.assert_close(found["q.sequence"], torch.tensor(steps).view(-1, 3))


def test_ids_of_users_are_not_learned_from_tiled_batches(make: Any) -> None:
    user = growing(make, "a")
    sides = Sides(TableRegistry([replace(user, spec=replace(user.spec, side="user"))], [make.group("g", "a")]))
    sides.check(training=False)
    with pytest.raises(DataError, match="a tiled batch would have tables that learn their ids, a_emb, count a user's once"):
        sides.check(training=True)
