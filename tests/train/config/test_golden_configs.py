"""Configs as TorchEasyRec's users write them load unchanged."""

import json
from pathlib import Path

import pytest

from emberline.train.config import load_config, parse_train_config
from emberline.train.features import create_features

# Case -> rows, width and output width of each feature.
PLAIN = {
    "deep_ids": {"user_id": (50, 8), "item_id": (40, 8), "tags": (30, 4), "kws": (7, 12), "city": (20, 6), "shop_city": (20, 6)},
    "raw_boundaries": {"price": (5, 8), "scores": (4, 4), "scores_sum": (4, 4), "plain": (0, 1)},
    "raw_dense_embedding": {
        **{"z1": (0, 6), "m2": (0, 4), "a1": (0, 6), "d1": (0, 6), "m1": (0, 4), "m3": (0, 8), "vec": (0, 5)},
        **{"plain": (0, 1), "plain2": (0, 2), "uid": (20, 4)},
    },
    "raw_passthrough": {"price": (0, 1), "vec": (0, 3), "age": (0, 1), "uid": (20, 4)},
    "weighted_ids": {"plain": (20, 4), "wsum": (30, 8), "wmean": (30, 4)},
    "wide_and_deep": {"a": (30, 16), "b": (25, 8), "c": (15, 8), "r": (0, 1)},
    "zch_lfu": {"uid": (8, 8), "iid": (10, 4), "cat": (10, 4)},
    "zch_lru": {"uid": (9, 8), "iid": (12, 4)},
}


@pytest.mark.parametrize("case", sorted(PLAIN))
def test_rows_and_widths(golden_root: Path, case: str) -> None:
    config = load_config(golden_root / case / "config.pbtxt")
    features = create_features(config.feature_configs)
    assert {feature.name: (feature.rows, feature.output_dim) for feature in features} == PLAIN[case]
    assert config.notes == ()


# Case -> rows, width, values a step, most steps and side of each sequence feature.
SEQUENCES = {
    "enc_din": {
        **{"click__item_id": (40, 8, 1, 10, "user"), "click__cate": (10, 4, 1, 10, "user"), "click__dt": (0, 1, 1, 10, "user")},
        **{"buy__item_id": (40, 8, 1, 10, "user"), "buy__cate": (10, 4, 1, 10, "user")},
    },
    "seq_basic": {
        **{"click_seq__item_id": (40, 8, 1, 10, "user"), "click_seq__brand": (12, 4, 1, 10, "user"), "click_seq__price": (0, 1, 1, 10, "user")},
        "query_hist": (25, 4, 1, 5, "user"),
    },
    "seq_jagged": {"s__iid": (30, 6, 1, 10, "user"), "s__ts": (0, 1, 1, 10, "user")},
    "seq_multival": {
        **{"hist__tag": (30, 8, 0, 8, "user"), "hist__kw": (20, 4, 0, 8, "user"), "hist__iid": (20, 4, 1, 8, "user")},
        "hist__pos": (0, 2, 2, 8, "user"),
    },
    "tile2_user_item": {"clk__iid": (30, 8, 1, 6, "user"), "clk__itag": (12, 4, 0, 6, "user"), "clk__dt": (0, 1, 1, 6, "user")},
    "two_data_groups": {"clk__iid": (30, 8, 1, 6, "user")},
}


@pytest.mark.parametrize("case", sorted(SEQUENCES))
def test_sequences(golden_root: Path, case: str) -> None:
    features = create_features(load_config(golden_root / case / "config.pbtxt").feature_configs)
    found = {
        feature.name: (feature.rows, feature.output_dim, feature.value_dim, feature.sequence_length, feature.spec.side)
        for feature in features
        if feature.is_sequence
    }
    assert found == SEQUENCES[case]


def test_every_config_loads_with_its_groups_and_data_groups(golden_root: Path, said: list[str]) -> None:
    paths = sorted(golden_root.glob("*/config.pbtxt"))
    for path in paths:
        meta = json.loads((path.parent / "meta.json").read_text())
        config = load_config(path)
        assert [group.group_name for group in config.feature_groups] == meta["group_names"]
        assert {group.group_name: str(group.group_type) for group in config.feature_groups} == meta["group_type"]
        features = create_features(config.feature_configs, neg_fields=meta.get("neg_fields") or ())
        if path.parent.name == "two_data_groups":
            assert {feature.name: feature.data_group for feature in features} == {
                **dict.fromkeys(("uid", "age", "clk__iid"), "__BASE__"),
                **dict.fromkeys(("iid", "icat", "iprice"), "__NEG__"),
            }
    said.append(f"golden configs: {len(paths)} load")
    assert len(paths) >= len(PLAIN) + len(SEQUENCES)


def test_defaults_of_nested_groups(golden_root: Path) -> None:
    (din,) = load_config(golden_root / "enc_din" / "config.pbtxt").feature_groups
    assert [(group.group_name, group.embedding_name_suffix) for group in din.nested_groups] == [("deep", "")]
    assert [encoder.input for encoder in din.encoders] == ["deep"]
    assert [encoder.input for encoder in din.sequence_encoders] == [""]
    pooled, _ = load_config(golden_root / "enc_pool_simple_attention" / "config.pbtxt").feature_groups
    assert [encoder.input for encoder in pooled.encoders] == ["click_g", "buy_g", "click_g", "buy_g", "click_g"]


@pytest.mark.parametrize("case", ["fused_sgd", "fused_adagrad", "fused_rowwise_adagrad"])
def test_configs_of_fused_training(golden_root: Path, case: str) -> None:
    folder = golden_root.parent / "fused" / case
    features = create_features(load_config(folder / "config.pbtxt").feature_configs)
    assert [feature.embedding_name for feature in features] == ["a_emb", "m_emb", "w_emb", "sh", "sh"]
    optimizer = parse_train_config((folder / "train_config.pbtxt").read_text()).sparse_optimizer.optimizer
    assert optimizer.lr == (0.05 if case == "fused_sgd" else 0.1)
