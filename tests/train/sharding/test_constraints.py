"""Constraints of all tables: each table's own, then those of all, then what was measured, then what is assumed."""

from torch import nn
from torchrec.distributed.types import CacheParams

from emberline.train.embedding.constraints import ASSUMED_STEPS
from emberline.train.features import EmbeddingConstraints
from emberline.train.features.placement import TableConstraints
from emberline.train.sharding.constraints import Traffic, default_constraints, gather_constraints
from tests.train.sharding.cases import deep, group_of, id_feature, steps, steps_feature, zch_feature


def test_every_table_is_there_by_full_path_zch_tables_too() -> None:
    model = nn.Module()
    text = (
        id_feature(
            "a",
            10,
            16,
            'sharding_types: ["table_wise", "row_wise"] compute_kernels: "fused" min_partition: 8 cache_load_factor: 0.25 '
            "ranks: [1, 0] max_hbm_mib: 2 pooling_factor: 1.5",
        )
        + zch_feature("z", 10, 16, 'sharding_types: "row_wise"')
        + steps_feature("s", 10)
        + deep("a", "z")
        + steps("s")
    )
    model.add_module("deeper", nn.Sequential(group_of(text)))
    found = gather_constraints(model)
    assert set(found) == {"deeper.0.pooled.ebc.a_emb", "deeper.0.pooled.mc_ebc.z_emb", "deeper.0.sequence_tables.ec_dict.16.s_emb"}
    assert found["deeper.0.pooled.ebc.a_emb"] == TableConstraints(
        sharding_types=["table_wise", "row_wise"],
        compute_kernels=["fused"],
        min_partition=8,
        cache_params=CacheParams(load_factor=0.25),
        ranks=(1, 0),
        max_hbm=2 << 20,
        pooling_factors=[1.5],
        pooling_sources=("config",),
        readers=("a",),
    )
    assert found["deeper.0.pooled.mc_ebc.z_emb"].sharding_types == ["row_wise"]


def test_what_nobody_says_comes_from_the_constraints_of_all() -> None:
    group = group_of(id_feature("a", 10, 16, 'sharding_types: "table_wise"') + id_feature("b", 10) + deep("a", "b"))
    everywhere = EmbeddingConstraints(sharding_types=("row_wise",), ranks=(0, 1), cache_load_factor=0.5)
    found = gather_constraints(group, everywhere)
    assert {path: own.sharding_types for path, own in found.items()} == {"pooled.ebc.a_emb": ["table_wise"], "pooled.ebc.b_emb": ["row_wise"]}
    assert {own.ranks for own in found.values()} == {(0, 1)}
    assert {own.cache_params.load_factor for own in found.values()} == {0.5}
    assert default_constraints(everywhere).sharding_types == ["row_wise"]
    assert default_constraints(None) == TableConstraints()


def test_ids_a_row_are_counted_said_or_assumed_in_this_order_config_first() -> None:
    text = (
        id_feature("said", 10, 16, "pooling_factor: 2")
        + id_feature("seen", 10)
        + id_feature("many", 10, 16, more="value_dim: 7")
        + steps_feature("bounded", 10, more="sequence_length: 20")
        + steps_feature("unbounded", 10)
        + deep("said", "seen", "many")
        + steps("bounded", "unbounded")
    )
    group = group_of(text)
    found = gather_constraints(group, None, {"seen": Traffic(ids=4.5, rows=10), "said": Traffic(ids=9.0, rows=10)})
    numbers = {own.readers[0]: (own.pooling_factors[0], own.pooling_sources[0]) for own in found.values()}
    assert numbers == {
        "said": (2.0, "config"),
        "seen": (4.5, "measured"),
        "many": (7.0, "assumed"),
        "bounded": (20.0, "assumed"),
        "unbounded": (float(ASSUMED_STEPS), "assumed"),
    }
    shared = gather_constraints(group, EmbeddingConstraints(pooling_factor=3.0), {"seen": Traffic(ids=4.5, rows=10)})
    assert {own.readers[0]: own.pooling_factors[0] for own in shared.values()} == {
        "said": 2.0,
        "seen": 3.0,
        "many": 3.0,
        "bounded": 3.0,
        "unbounded": 3.0,
    }


def test_each_reader_of_a_table_has_its_number_in_order() -> None:
    text = (
        id_feature("a", 10, 16, "pooling_factor: 2", 'embedding_name: "t"')
        + id_feature("b", 10, 16, "pooling_factor: 5", 'embedding_name: "t"')
        + deep("b", "a")
    )
    (own,) = gather_constraints(group_of(text), None, {"a": Traffic(1.0, 30.0), "b": Traffic(1.0, 10.4)}).values()
    assert (own.readers, own.pooling_factors, own.batch_sizes) == (("b", "a"), [5.0, 2.0], [10, 30])


def test_rows_of_a_batch_count_only_where_all_readers_were_seen() -> None:
    text = id_feature("a", 10, more='embedding_name: "t"') + id_feature("b", 10, more='embedding_name: "t"') + deep("b", "a")
    (own,) = gather_constraints(group_of(text), None, {"a": Traffic(4.0, 30.0)}).values()
    assert (own.pooling_factors, own.batch_sizes) == ([1.0, 4.0], None)
