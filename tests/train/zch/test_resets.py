"""Rows that change owner start afresh: vector and moments, before the new owner reads them."""

from collections.abc import Callable

import pytest
import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from emberline.schema import FeatureKind, FeatureSpec, RawIdEncoder
from emberline.train.config.functions import InitSpec
from emberline.train.config.group_configs import FeatureGroupConfig
from emberline.train.data import Batch
from emberline.train.embedding import EmbeddingGroup
from emberline.train.features import Feature, LfuPolicy, ZchConfig
from emberline.train.zch import zch_modules, zero_moments

HALF = InitSpec.parse("nn.init.constant_,val=0.5")


def build(*, trainable: bool = True) -> EmbeddingGroup:
    spec = FeatureSpec(name="f", kind=FeatureKind.SPARSE, columns=("f",), encoder=RawIdEncoder())
    zch = ZchConfig(zch_size=3, eviction_interval=1, eviction_policy=LfuPolicy())
    feature = Feature(name="f", spec=spec, embedding_dim=2, embedding_name="t", rows=3, zch=zch, init=HALF, trainable=trainable)
    return EmbeddingGroup([feature], [FeatureGroupConfig(group_name="g", feature_names=("f",))])


def batch(*ids: int) -> Batch:
    kjt = KeyedJaggedTensor(keys=["f"], values=torch.tensor(ids), lengths=torch.ones(len(ids), dtype=torch.int32))
    return Batch(sparse_features={"__BASE__": kjt})


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam, torch.optim.Adagrad])
def test_a_new_owner_begins_with_the_initial_vector_and_no_moments(optimizer: Callable[..., torch.optim.Optimizer]) -> None:
    group = build()
    weight = group.pooled.table_weights()["t"]
    optim = optimizer(group.parameters(), lr=0.1)
    group.on_row_reset(zero_moments(optim))
    for _ in range(2):
        optim.zero_grad()
        group(batch(1, 2))["g"].sum().backward()
        optim.step()
    assert (weight[:2] != 0.5).all()
    kept = weight[0].tolist()
    result = group(batch(9, 9, 9, 1))["g"]
    assert result.tolist() == [[0.5, 0.5]] * 3 + [kept]
    assert zch_modules(group)["t"].counters.evicted == 1
    for moment in optim.state[weight].values():
        if moment.shape == weight.shape:
            assert moment[1].tolist() == [0, 0]
            assert (moment[0] != 0).all()


def test_a_table_that_was_never_trained_keeps_its_vectors() -> None:
    group = build()
    weight = group.pooled.table_weights()["t"]
    with torch.no_grad():
        weight.copy_(torch.arange(6.0).view(3, 2))
    group.pooled.mark_untrained()
    group(batch(1, 2))
    assert group(batch(9, 9, 9))["g"][0].tolist() == [2, 3]
    assert weight.tolist() == [[0, 1], [2, 3], [4, 5]]


def test_values_that_were_loaded_count_as_trained() -> None:
    group = build()
    with torch.no_grad():
        group.pooled.table_weights()["t"].copy_(torch.arange(6.0).view(3, 2))
    group(batch(1, 2))
    assert group(batch(9, 9, 9))["g"][0].tolist() == [0.5, 0.5]


def test_a_frozen_table_keeps_its_vectors() -> None:
    group = build(trainable=False)
    with torch.no_grad():
        group.pooled.table_weights()["t"].copy_(torch.arange(6.0).view(3, 2))
    group(batch(1, 2))
    assert group(batch(9, 9, 9))["g"][0].tolist() == [2, 3]
