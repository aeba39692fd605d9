"""Fused optimisers against formulas written out; recorded steps of the reference are replayed in `tests/golden`."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from emberline.errors import ConfigError
from emberline.train.config import parse_config, parse_train_config
from emberline.train.config.optimizer_configs import FusedAdagradConfig, FusedAdamConfig, FusedRowWiseAdagradConfig, FusedSgdConfig, SparseOptimizer
from emberline.train.config.pipeline import PipelineConfig
from emberline.train.data import Batch
from emberline.train.embedding import EmbeddingGroup
from emberline.train.features import create_features
from emberline.train.optim import ModelOptimizer, apply_sparse_optimizer, check_device, set_initial_moments
from emberline.train.sharding import create_sharders, create_single_process_plan, shard_model


class Model(nn.Module):
    def __init__(self, group: EmbeddingGroup) -> None:
        super().__init__()
        self.group = group


@dataclass
class Sharded:
    group: EmbeddingGroup
    model: DistributedModelParallel
    weights: dict[str, Tensor]

    def moments(self) -> dict[str, Tensor]:
        found = {}
        for states in self.model.fused_optimizer.state_dict()["state"].values():
            found.update({name: moment.local_shards()[0].tensor for name, moment in states.items()})
        return found


def shard(config: PipelineConfig, optimizer: SparseOptimizer) -> Sharded:
    group = EmbeddingGroup(create_features(config.feature_configs), config.feature_groups, device="meta")
    apply_sparse_optimizer(group.pooled.table_weights(), optimizer)
    model, sharders = Model(group), create_sharders()
    sharded = shard_model(model, create_single_process_plan(model, sharders), sharders)
    set_initial_moments(sharded, optimizer)
    state = {name.split(".")[-2]: value for name, value in sharded.state_dict().items() if name.endswith(".weight")}
    return Sharded(group, sharded, {name: value.local_shards()[0].tensor for name, value in state.items()})


TEXT = """
feature_configs { id_feature { feature_name: "s" embedding_dim: 4 num_buckets: 6 } }
feature_configs { id_feature { feature_name: "m" embedding_dim: 4 num_buckets: 6 pooling: "mean" } }
feature_configs { id_feature { feature_name: "w" embedding_dim: 4 num_buckets: 6 pooling: "mean" weighted: true } }
feature_configs { id_feature { feature_name: "f" embedding_dim: 4 num_buckets: 6 trainable: false DTYPE } }
feature_groups { group_name: "g" feature_names: ["s", "m", "w", "f"] }
"""
KEYS = ["s", "m", "w", "f"]


def random_batch(seed: int, rows: int = 5) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, 4, (4, rows), generator=generator, dtype=torch.int32)
    counts = lengths.sum(1).tolist()
    counts_by_key = dict(zip(KEYS, counts, strict=True))
    weights = torch.cat([torch.rand(n, generator=generator) + 0.5 if key == "w" else torch.ones(n) for key, n in counts_by_key.items()])
    values = torch.randint(0, 6, (sum(counts),), generator=generator)
    return Batch(sparse_features={"__BASE__": KeyedJaggedTensor(keys=KEYS, values=values, lengths=lengths.flatten(), weights=weights)})


@pytest.mark.parametrize(
    "optimizer",
    [
        FusedSgdConfig(lr=0.1),
        FusedAdagradConfig(lr=0.1),
        FusedAdagradConfig(lr=0.1, initial_accumulator_value=0.5),
        FusedRowWiseAdagradConfig(lr=0.1),
        FusedRowWiseAdagradConfig(lr=0.1, initial_accumulator_value=0.25),
    ],
)
def test_every_pooling_learns_as_autograd_says(optimizer: SparseOptimizer) -> None:
    config = parse_config(TEXT.replace("DTYPE", ""))
    sharded = shard(config, optimizer)
    plain = EmbeddingGroup(create_features(config.feature_configs), config.feature_groups)
    for name, weight in plain.pooled.table_weights().items():
        weight.data.copy_(sharded.weights[name])
    moments: dict[str, Tensor] = {}
    for step in range(3):
        batch = random_batch(step)
        cotangent = torch.randn(5, 16, generator=torch.Generator().manual_seed(step))
        own, expected = sharded.group(batch)["g"], plain(batch)["g"]
        torch.testing.assert_close(own, expected, atol=1e-5, rtol=1e-5)
        torch.autograd.backward(own, cotangent)
        torch.autograd.backward(expected, cotangent)
        for name, weight in plain.pooled.table_weights().items():
            if weight.grad is not None:
                _reference_step(optimizer, name, weight, moments)
                weight.grad = None
            torch.testing.assert_close(sharded.weights[name], weight.data, atol=1e-5, rtol=1e-5)


def _reference_step(optimizer: SparseOptimizer, name: str, weight: nn.Parameter, moments: dict[str, Tensor]) -> None:
    assert weight.grad is not None
    gradient = weight.grad
    if isinstance(optimizer, FusedSgdConfig):
        weight.data -= optimizer.lr * gradient
        return
    assert isinstance(optimizer, FusedAdagradConfig | FusedRowWiseAdagradConfig)
    squares = gradient.square() if isinstance(optimizer, FusedAdagradConfig) else gradient.square().mean(1, keepdim=True)
    moments[name] = moments.get(name, torch.full_like(squares, optimizer.initial_accumulator_value)) + squares
    weight.data -= optimizer.lr * gradient / (moments[name].sqrt() + 1e-8)


@pytest.mark.parametrize("dtype", ["", 'data_type: "FP16"', 'data_type: "BF16"'])
@pytest.mark.parametrize("optimizer", [FusedSgdConfig(lr=0.5), FusedAdagradConfig(lr=0.5), FusedRowWiseAdagradConfig(lr=0.5)])
def test_frozen_tables_do_not_move(optimizer: SparseOptimizer, dtype: str) -> None:
    sharded = shard(parse_config(TEXT.replace("DTYPE", dtype)), optimizer)
    frozen, trained = sharded.weights["f_emb"].clone(), sharded.weights["s_emb"].clone()
    for step in range(3):
        out = sharded.group(random_batch(step))["g"]
        torch.autograd.backward(out, torch.full_like(out, 100.0))
    assert torch.equal(sharded.weights["f_emb"], frozen)
    assert not torch.equal(sharded.weights["s_emb"], trained)
    assert not any(name.startswith("f_emb") for name in sharded.moments())


@pytest.mark.parametrize("name", ["adadelta", "rmsprop"])
def test_what_fbgemm_has_not_is_refused_on_a_gpu(name: str) -> None:
    config = parse_train_config(f"sparse_optimizer {{ {name}_optimizer {{}} }} dense_optimizer {{ sgd_optimizer {{}} }}").sparse_optimizer.optimizer
    check_device(config, "cpu")
    with pytest.raises(ConfigError, match=f"sparse_optimizer: {name}_optimizer is for CPUs: fbgemm has no cuda kernel for it; use another"):
        check_device(config, "cuda")
    check_device(FusedAdamConfig(), "cuda")


def test_tables_are_no_business_of_the_dense_optimiser() -> None:
    sharded = shard(parse_config(TEXT.replace("DTYPE", "")), FusedSgdConfig(lr=0.5))
    train = parse_train_config("sparse_optimizer { sgd_optimizer {} } dense_optimizer { adam_optimizer {} }")
    optimizer = ModelOptimizer(sharded.model, train.dense_optimizer, train.sparse_optimizer)
    assert optimizer.dense_state() == {}
    before = {name: weight.clone() for name, weight in sharded.weights.items()}
    optimizer.start_step()
    optimizer.step()
    assert all(torch.equal(before[name], weight) for name, weight in sharded.weights.items())
