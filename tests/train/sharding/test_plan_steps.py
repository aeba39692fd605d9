"""Plans of tables that are read step by step, beside pooled ones."""

from typing import Any

import pytest
from torch import nn

from emberline.errors import ConfigError
from emberline.schema import BucketEncoder, FeatureKind, FeatureSpec, GroupKind, RawIdEncoder
from emberline.train.config.group_configs import FeatureGroupConfig
from emberline.train.embedding import EmbeddingGroup
from emberline.train.features import Feature, LfuPolicy, ZchConfig
from emberline.train.sharding import create_sharders, create_single_process_plan
from emberline.train.sharding.plan import check_dims

ZCH = ZchConfig(zch_size=8, eviction_interval=1, eviction_policy=LfuPolicy())


def feature(name: str, *, dim: int = 4, sequence: bool = False, zch: bool = False) -> Feature:
    encoder = RawIdEncoder() if zch else BucketEncoder(rows=8)
    spec = FeatureSpec(name=name, kind=FeatureKind.SPARSE, columns=(name,), encoder=encoder, sequence=sequence, value_dim=1 if sequence else 0)
    return Feature(name=name, spec=spec, embedding_dim=dim, embedding_name=f"{name}_emb", rows=8, zch=ZCH if zch else None)


def model(*features: Feature) -> nn.Module:
    names = tuple(feature.name for feature in features)
    group = FeatureGroupConfig(group_name="g", feature_names=names, group_type=GroupKind.SEQUENCE)
    return EmbeddingGroup(features, [group], device="meta")


def test_tables_lie_whole_on_the_one_rank_and_zch_tables_by_rows() -> None:
    features = [feature("a"), feature("s", sequence=True), feature("t", dim=8, sequence=True), feature("z", zch=True)]
    plan = create_single_process_plan(model(*features, feature("zs", sequence=True, zch=True)), create_sharders()).plan
    found: dict[str, Any] = {path: {table: placed.sharding_type for table, placed in tables.items()} for path, tables in plan.items()}
    assert found == {
        "pooled.ebc": {"a_emb": "table_wise"},
        "pooled.mc_ebc": {"z_emb": "row_wise"},
        "sequence_tables.ec_dict.4": {"s_emb": "table_wise"},
        "sequence_tables.ec_dict.8": {"t_emb": "table_wise"},
        "sequence_tables.mc_ec_dict.4": {"zs_emb": "row_wise"},
    }
    kernels = {placed.compute_kernel for tables in plan.values() for placed in tables.values()}
    assert kernels == {"fused"}


def test_widths_that_gpu_kernels_do_not_know_are_named() -> None:
    features = [feature("a", dim=3), feature("s", dim=6, sequence=True), feature("z", dim=4, zch=True), feature("zs", dim=5, sequence=True, zch=True)]
    with pytest.raises(ConfigError) as caught:
        check_dims(model(*features), create_sharders(), "cuda")
    assert sorted(problem.split(":")[0] for problem in caught.value.problems) == [
        "table 'a_emb', read by a, has embedding_dim 3",
        "table 's_emb', read by s, has embedding_dim 6",
        "table 'zs_emb', read by zs, has embedding_dim 5",
    ]


def test_a_model_without_tables_has_an_empty_plan() -> None:
    assert create_single_process_plan(nn.Linear(2, 2), create_sharders()).plan == {}
