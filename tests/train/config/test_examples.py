from pathlib import Path

import pytest

from emberline.train.config import load_config
from emberline.train.features import create_features


def test_every_example_loads_without_a_note(repository: Path, said: list[str]) -> None:
    paths = sorted((repository / "examples").glob("*.pbtxt"))
    for path in paths:
        config = load_config(path)
        assert config.notes == (), path
        assert config.need_train().num_epochs, path
        assert config.need_model().name, path
        assert create_features(config.feature_configs, fg_mode=config.data.fg_mode), path
    said.append(f"examples: {len(paths)} configs load")
    assert len(paths) >= 2


@pytest.mark.parametrize(("name", "groups"), [("dlrm", {"dense": 13, "sparse": 26}), ("deepfm", {"wide": 26, "fm": 26, "deep": 39})])
def test_criteo_has_13_numbers_and_26_categories(repository: Path, name: str, groups: dict[str, int]) -> None:
    config = load_config(repository / "examples" / f"{name}_criteo.pbtxt")
    features = create_features(config.feature_configs, fg_mode=config.data.fg_mode)
    assert [feature.is_sparse for feature in features] == [False] * 13 + [True] * 26
    assert {group.group_name: len(group.feature_names) for group in config.feature_groups} == groups
    assert config.need_model().name == name
