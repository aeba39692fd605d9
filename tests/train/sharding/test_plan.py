"""Plans written by hand: every table once, whole, fused."""

import pytest
import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from emberline.errors import ConfigError
from emberline.train.config import parse_config
from emberline.train.config.optimizer_configs import FusedSgdConfig
from emberline.train.data.batch import Batch
from emberline.train.embedding import EmbeddingGroup
from emberline.train.features import create_features
from emberline.train.optim import apply_sparse_optimizer
from emberline.train.sharding import create_sharders, create_single_process_plan, process_group, shard_model
from emberline.train.sharding.plan import check_dims

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
def test_any_width_is_trained_on_a_cpu(dim: int) -> None:
    text = f"""
    feature_configs {{ id_feature {{ feature_name: "a" embedding_dim: {dim} num_buckets: 6 }} }}
    feature_groups {{ group_name: "g" feature_names: "a" }}
    """
    group = group_of(text)
    apply_sparse_optimizer(group.table_weights(), FusedSgdConfig(lr=0.5))
    ids = KeyedJaggedTensor(keys=["a"], values=torch.tensor([1, 2, 1]), lengths=torch.tensor([2, 1]))
    with process_group():
        sharded = shard_model(group, create_single_process_plan(group, create_sharders()), create_sharders())
        before = sharded(Batch(sparse_features={"__BASE__": ids}))["g"]
        torch.autograd.backward(before, torch.tensor([[1.0], [4.0]]).expand(2, dim))
        after = sharded(Batch(sparse_features={"__BASE__": ids}))["g"]
    torch.testing.assert_close(before - after, torch.tensor([[0.5 * (5 + 1)], [0.5 * 5]]).expand(2, dim))


def test_widths_that_gpu_kernels_do_not_know_are_refused() -> None:
    text = 'feature_configs { id_feature { feature_name: "a" embedding_dim: 6 num_buckets: 6 } }'
    group = group_of(text + 'feature_groups { group_name: "g" feature_names: "a" }')
    check_dims(group, create_sharders(), "cpu")
    with pytest.raises(
        ConfigError, match="table 'a_emb', read by a, has embedding_dim 6: training on a GPU needs a multiple of 4, such as embedding_dim: 8"
    ):
        check_dims(group, create_sharders(), "cuda")
    both = text + 'feature_groups { group_name: "g" feature_names: "a" } feature_groups { group_name: "w" group_type: WIDE feature_names: "a" }'
    config = parse_config(both)
    wide = EmbeddingGroup(create_features(config.feature_configs), config.feature_groups, wide_embedding_dim=1, device="meta")
    with pytest.raises(ConfigError) as caught:
        check_dims(wide, create_sharders(), "cuda")
    assert caught.value.problems[1] == (
        "table 'a_emb_wide', read by a, has wide_embedding_dim 1: training on a GPU needs a multiple of 4, such as wide_embedding_dim: 4; on CPUs "
        "any width will do"
    )
