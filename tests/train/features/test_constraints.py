"""What a config may ask of a table's placement."""

from typing import Any

import pytest

from emberline.errors import ConfigError
from emberline.schema import TableKind
from emberline.train.config import parse_config, parse_train_config
from emberline.train.config.planner_config import TableConstraintsConfig
from emberline.train.features import create_features
from emberline.train.features.configs import EmbeddingConstraints
from emberline.train.features.constraints import constraint_problems, of_table

FEATURES = """
feature_configs { id_feature { feature_name: "u" embedding_dim: 16 num_buckets: 9 } }
feature_configs { id_feature { feature_name: "z" embedding_dim: 16 zch { zch_size: 9 lfu {} } } }
feature_groups { group_name: "deep" feature_names: ["u", "z"] }
feature_groups { group_name: "wide" group_type: WIDE feature_names: "u" }
"""
OPTIMIZERS = "sparse_optimizer { sgd_optimizer {} } dense_optimizer { sgd_optimizer {} }"


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        ({"min_partition": 0}, "min_partition must be at least 1, found 0"),
        ({"cache_load_factor": 0.0}, "cache_load_factor must be between 0 and 1, found 0.0"),
        ({"cache_load_factor": 1.0}, "cache_load_factor must be between 0 and 1, found 1.0"),
        ({"cache_load_factor": float("nan")}, "cache_load_factor must be between 0 and 1, found nan"),
        ({"pooling_factor": -1.0}, "pooling_factor must be a number of 0 or more, found -1.0"),
        ({"pooling_factor": float("inf")}, "pooling_factor must be a number of 0 or more, found inf"),
        ({"max_hbm_mib": 0.0}, "max_hbm_mib must be above 0, found 0.0"),
        ({"ranks": (1, 0, 1)}, "ranks must be given once each, found 1, 0, 1"),
        ({"sharding_types": ("data_parallel",), "compute_kernels": ("fused",)}, "data_parallel needs compute_kernels to allow dense"),
        ({"sharding_types": ("row_wise",), "compute_kernels": ("dense",)}, "the dense kernel needs sharding_types to allow data_parallel"),
        ({"sharding_types": ("table-wise",)}, "unknown sharding type 'table-wise'; did you mean 'table_wise'?"),
        ({"compute_kernels": ("uvm",)}, "unknown compute kernel 'uvm'; known: dense, fused, fused_uvm, fused_uvm_caching, key_value"),
    ],
)
def test_what_no_device_has_is_refused(asked: dict[str, Any], problem: str) -> None:
    assert constraint_problems(EmbeddingConstraints(**asked)) == [problem]


def test_everything_at_once_is_fine() -> None:
    asked = EmbeddingConstraints(
        sharding_types=("column_wise", "data_parallel"),
        compute_kernels=("dense", "fused"),
        min_partition=8,
        cache_load_factor=0.5,
        pooling_factor=0.0,
        ranks=(3, 0),
        max_hbm_mib=0.5,
    )
    assert constraint_problems(asked) == []
    assert constraint_problems(EmbeddingConstraints(), TableKind.ZCH) == []


def test_ids_a_row_belong_to_the_feature_and_the_rest_to_the_table() -> None:
    assert of_table(None) is None
    assert of_table(EmbeddingConstraints(pooling_factor=3.0)) is None
    assert of_table(EmbeddingConstraints(pooling_factor=3.0, ranks=(1,))) == EmbeddingConstraints(ranks=(1,))
    text = """feature_configs { id_feature { feature_name: "a" embedding_name: "t" embedding_dim: 4 num_buckets: 9
                embedding_constraints { pooling_factor: 2.5 sharding_types: "row_wise" min_partition: 4 ranks: [0, 1] max_hbm_mib: 1.5 } } }"""
    (feature,) = create_features(parse_config(text).feature_configs)
    assert feature.pooling_factor == 2.5
    assert feature.constraints == EmbeddingConstraints(sharding_types=("row_wise",), min_partition=4, ranks=(0, 1), max_hbm_mib=1.5)


def test_constraints_of_all_tables_and_the_planner_are_read_and_checked() -> None:
    text = f"""{OPTIMIZERS} global_embedding_constraints {{ sharding_types: "table_wise" cache_load_factor: 0.25 }}
               planner {{ storage_reserve: 0.2 sample_batches: 3 hbm_bandwidth: 2000 ssd_gib: 10 }}"""
    config = parse_train_config(text)
    assert config.global_embedding_constraints == EmbeddingConstraints(sharding_types=("table_wise",), cache_load_factor=0.25)
    assert (config.planner.storage_reserve, config.planner.sample_batches, config.planner.ssd_gib) == (0.2, 3, 10.0)
    assert config.planner.bandwidths == {"hbm": 2000.0, "ddr": None, "hbm_to_ddr": None, "intra_node": None, "inter_node": None}
    with pytest.raises(ConfigError) as caught:
        parse_train_config(
            f"""{OPTIMIZERS} global_embedding_constraints {{ min_partition: 0 }}
                planner {{ storage_reserve: 1 ddr_bandwidth: 0 ssd_gib: -1 }}"""
        )
    assert sorted(caught.value.problems) == [
        "train_config: global_embedding_constraints: min_partition must be at least 1, found 0",
        "train_config: planner: ddr_bandwidth must be a number above 0, found 0.0",
        "train_config: planner: ssd_gib must be a number of 0 or more, found -1.0",
        "train_config: planner: storage_reserve must be in [0, 1), found 1.0",
    ]


def test_zch_tables_know_rows_and_fused_kernels_only() -> None:
    wrong = EmbeddingConstraints(sharding_types=("table_wise",), compute_kernels=("dense",))
    assert constraint_problems(wrong, TableKind.ZCH) == [
        "sharding_types must allow row_wise, the only one that ZCH tables know",
        "compute_kernels must allow fused: ZCH tables do not know the dense kernel",
    ]


def test_tables_have_constraints_by_name() -> None:
    config = parse_config(
        f"""{FEATURES} train_config {{ {OPTIMIZERS}
        table_constraints {{ table: "u_emb" sharding_types: "column_wise" ranks: [0, 1] pooling_factor: 2 }}
        table_constraints {{ table: "u_emb_wide" compute_kernels: "fused" min_partition: 8 cache_load_factor: 0.5 max_hbm_mib: 3 }} }}"""
    )
    assert config.need_train().constraints_by_table == {
        "u_emb": TableConstraintsConfig(table="u_emb", sharding_types=("column_wise",), ranks=(0, 1), pooling_factor=2.0),
        "u_emb_wide": TableConstraintsConfig(table="u_emb_wide", compute_kernels=("fused",), min_partition=8, cache_load_factor=0.5, max_hbm_mib=3.0),
    }


def test_wrong_table_constraints_are_told_all_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(
            f"""{FEATURES} train_config {{ {OPTIMIZERS}
            table_constraints {{ table: "u_em" }} table_constraints {{ table: "u_emb" ranks: [1, 1] }} table_constraints {{ table: "u_emb" }}
            table_constraints {{ table: "z_emb" sharding_types: "table_wise" }} }}"""
        )
    assert sorted(caught.value.problems) == sorted(
        [
            "train_config: table_constraints: table 'u_emb': ranks must be given once each, found 1, 1",
            "train_config: table_constraints: unknown table 'u_em'; did you mean 'u_emb'?",
            "train_config: table_constraints: table 'u_emb' is there 2 times; keep one",
            "train_config: table_constraints: table 'z_emb': sharding_types must allow row_wise, the only one that ZCH tables know",
        ]
    )
    with pytest.raises(ConfigError, match="train_config: table_constraints: table is missing"):
        parse_config(f"{FEATURES} train_config {{ {OPTIMIZERS} table_constraints {{ ranks: 0 }} }}")
