"""Plans written by hand: every table once, whole, fused."""

import pytest
import torch

from emberline.errors import ConfigError
from emberline.train.config import parse_config
from emberline.train.embedding import EmbeddingGroup
from emberline.train.features import create_features
from emberline.train.sharding import create_sharders, create_single_process_plan, process_group, shard_model

TEXT = """
feature_configs { id_feature { feature_name: "a" embedding_dim: 4 num_buckets: 6 } }
feature_configs { id_feature { feature_name: "w" embedding_dim: 4 num_buckets: 6 weighted: true } }
feature_configs { id_feature { feature_name: "z" embedding_dim: 8 zch { zch_size: 6 lfu {} } } }
feature_configs { id_feature { feature_name: "y" embedding_dim: 8 weighted: true zch { zch_size: 7 lru {} } } }
feature_configs { raw_feature { feature_name: "x" embedding_dim: 5 mlp {} } }
feature_groups { group_name: "g" feature_names: ["a", "w", "z", "y", "x"] }
"""


def group_of(text: str) -> EmbeddingGroup:
    config = parse_config(text)
    return EmbeddingGroup(create_features(config.feature_configs), config.feature_groups, device=torch.device("meta"))


def test_every_table_is_planned_once() -> None:
    plan = create_single_process_plan(group_of(TEXT), create_sharders())
    found = {table: (path, sharding) for path, module in plan.plan.items() for table, sharding in module.items()}
    assert {table: (path, sharding.sharding_type, sharding.compute_kernel, sharding.ranks) for table, (path, sharding) in found.items()} == {
        "a_emb": ("pooled.ebc", "table_wise", "fused", [0]),
        "w_emb": ("pooled.weighted_ebc", "table_wise", "fused", [0]),
        "z_emb": ("pooled.mc_ebc", "row_wise", "fused", [0]),
        "y_emb": ("pooled.weighted_mc_ebc", "row_wise", "fused", [0]),
    }
    assert sum(len(module) for module in plan.plan.values()) == 4


@pytest.mark.parametrize("dim", [1, 2, 3, 6])
def test_kernels_really_cannot_do_the_widths_that_are_refused(dim: int) -> None:
    """Should a new fbgemm learn these widths, this test says so."""
    text = f"""
    feature_configs {{ id_feature {{ feature_name: "a" embedding_dim: {dim} num_buckets: 6 }} }}
    feature_groups {{ group_name: "g" feature_names: "a" }}
    """
    group = group_of(text)
    with pytest.raises(
        ConfigError, match=f"table 'a_emb', read by a, has embedding_dim {dim}: training needs a multiple of 4, such as {4 if dim < 4 else 8}"
    ):
        create_single_process_plan(group, create_sharders())
    allowed = group_of(text.replace(f"embedding_dim: {dim}", "embedding_dim: 4"))
    plan = create_single_process_plan(allowed, create_sharders())
    with process_group(), pytest.raises(AssertionError, match="not divisible by 4"):
        shard_model(group, plan, create_sharders())
