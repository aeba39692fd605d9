"""What a feature says to the planner of its table."""

import pickle
from dataclasses import replace

from emberline.train.config import parse_config
from emberline.train.features import Feature, create_features
from emberline.train.features.placement import DynamicEmbParameterConstraints, TableConstraints


def one(more: str) -> Feature:
    config = parse_config(f"feature_configs {{ id_feature {{ feature_name: 'x' embedding_dim: 16 {more} }} }}")
    return create_features(config.feature_configs)[0]


def test_static_features_ask_for_what_their_config_says_or_nothing() -> None:
    assert one("num_buckets: 9").parameter_constraints() is None
    asked = one("num_buckets: 9 embedding_constraints { sharding_types: 'row_wise' max_hbm_mib: 2 }").parameter_constraints()
    assert asked == TableConstraints(sharding_types=["row_wise"], max_hbm=2 << 20)
    assert type(asked) is TableConstraints


def test_dynamic_features_have_constraints_of_their_own() -> None:
    feature = one(
        "dynamicemb { max_capacity: 9 } embedding_constraints { sharding_types: ['row_wise', 'table_wise'] max_hbm_mib: 2 pooling_factor: 3 }"
    )
    found = feature.parameter_constraints()
    assert found == DynamicEmbParameterConstraints(
        sharding_types=["row_wise"], compute_kernels=["customized_kernel"], max_hbm=2 << 20, dynamicemb_options=feature.dynamicemb
    )
    assert isinstance(found, DynamicEmbParameterConstraints)
    assert found.use_dynamicemb
    assert feature.pooling_factor == 3.0
    assert hash(found) == hash(replace(found)) != hash(replace(found, dynamicemb_options=None))
    assert pickle.loads(pickle.dumps(found)) == found


def test_features_by_hand_are_looked_at() -> None:
    feature = one("dynamicemb { max_capacity: 9 }")
    zch = one("zch { zch_size: 9 lfu {} }").zch
    assert replace(feature, rows=8).table_problems == ["its table has 8 rows, but max_capacity 9"]
    assert replace(feature, zch=zch).table_problems == ["zch and dynamicemb exclude each other"]
    assert one("num_buckets: 9").table_problems == []
