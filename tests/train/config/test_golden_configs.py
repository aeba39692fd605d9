"""Configs as TorchEasyRec's users write them load unchanged; those with sequences are refused by name."""

from pathlib import Path

import pytest

from emberline.errors import ConfigError
from emberline.train.config import load_config, parse_train_config
from emberline.train.features import create_features

# Case -> rows, width and output width of each feature.
SUPPORTED = {
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


@pytest.mark.parametrize("case", sorted(SUPPORTED))
def test_rows_and_widths(golden_root: Path, case: str) -> None:
    config = load_config(golden_root / case / "config.pbtxt")
    features = create_features(config.feature_configs)
    assert {feature.name: (feature.rows, feature.output_dim) for feature in features} == SUPPORTED[case]
    assert config.notes == ()


def test_all_others_are_refused_because_of_sequences(golden_root: Path, said: list[str]) -> None:
    others = sorted(path.parent.name for path in golden_root.glob("*/config.pbtxt") if path.parent.name not in SUPPORTED)
    for case in others:
        with pytest.raises(ConfigError) as caught:
            load_config(golden_root / case / "config.pbtxt")
        assert all("sequence" in problem.lower() and "is not supported yet" in problem for problem in caught.value.problems), caught.value.problems
    said.append(f"golden configs: {len(SUPPORTED)} load, {len(others)} refused by name")
    assert others


@pytest.mark.parametrize("case", ["fused_sgd", "fused_adagrad", "fused_rowwise_adagrad"])
def test_configs_of_fused_training(golden_root: Path, case: str) -> None:
    folder = golden_root.parent / "fused" / case
    features = create_features(load_config(folder / "config.pbtxt").feature_configs)
    assert [feature.embedding_name for feature in features] == ["a_emb", "m_emb", "w_emb", "sh", "sh"]
    optimizer = parse_train_config((folder / "train_config.pbtxt").read_text()).sparse_optimizer.optimizer
    assert optimizer.lr == (0.05 if case == "fused_sgd" else 0.1)
