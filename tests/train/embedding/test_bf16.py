"""BF16 tables in every way to read them: values of the rounded rows, and training as in FP32, each row rounded once a step."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

from emberline.schema import GroupKind, Pooling
from emberline.train.embedding import EmbeddingGroup
from emberline.train.features import Feature, LfuPolicy, ZchConfig
from emberline.train.zch import zch_modules, zero_moments
from tests.train.embedding.test_sharded import batches, everything, sequence_batches, sequences, shard

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.usefixtures("group_of_one"),
]
WORLDS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {"pooled": (everything, batches), "sequences": (sequences, sequence_batches)}


def in_type(parts: tuple[list[Feature], list[Any]], dtype: str) -> EmbeddingGroup:
    features, groups = parts
    return EmbeddingGroup([replace(feature, dtype=dtype) if feature.is_sparse else feature for feature in features], groups)


def sharded_tables(sharded: Any) -> dict[str, Tensor]:
    found = {name.split(".")[-2]: value for name, value in sharded.state_dict().items() if name.endswith(".weight") and "embedding" in name}
    return {name: value.local_shards()[0].tensor for name, value in found.items() if hasattr(value, "local_shards")}


def test_rows_are_rounded_and_sums_are_not(make: Any, pooled_by_hand: Any) -> None:
    """A bag of 300 ones would stick at 256 in bfloat16, and 1 + 1/128 at 1."""
    zch = ZchConfig(zch_size=8, eviction_interval=1, eviction_policy=LfuPolicy())
    features = [
        make.sparse("sum", dtype="bf16"),
        make.sparse("mean", dtype="bf16", pooling=Pooling.MEAN),
        make.sparse("weighted", dtype="bf16", weighted=True),
        make.sparse("zch", dtype="bf16", zch=zch),
        make.sequence("steps", dtype="bf16"),
        make.sequence("bags", dtype="bf16", value_dim=0),
    ]
    flat = [make.group("g", "sum", "mean", "weighted", "zch")]
    group = EmbeddingGroup(
        features, [*flat, make.group("s", "steps", group_type=GroupKind.SEQUENCE), make.group("j", "bags", group_type=GroupKind.JAGGED_SEQUENCE)]
    )
    with torch.no_grad():
        for weight in group.table_weights().values():
            assert weight.dtype == torch.bfloat16
            weight.copy_(torch.linspace(0.1, 3.3, weight.numel()).view_as(weight))
    ids = {"sum": [[1] * 300, []], "mean": [[2, 3, 4], []], "weighted": [[5, 6], []], "zch": [[77], []], "steps": [[1, 2], [3]]}
    weights = {"weighted": [[0.3, 1.1], []]}
    found = group(make.steps(ids, multi={"bags": [[[1] * 300, []], [[9, 9]]]}, weights=weights))
    tables = {name: weight.detach() for name, weight in group.table_weights().items()}
    expected = [
        pooled_by_hand(tables[f"{name}_emb"], ids[name], weights.get(name), Pooling.MEAN if name == "mean" else Pooling.SUM)
        for name in ("sum", "mean", "weighted")
    ]
    torch.testing.assert_close(found["g"][:, :12].double(), torch.cat(expected, dim=1), rtol=1e-6, atol=1e-6)
    row = int(group.eval().pooled.mc_ebc._managed_collision_collection._managed_collision_modules["zch_emb"].rows_of(torch.tensor([77])))
    assert torch.equal(found["g"][0, 12:], tables["zch_emb"][row].float())
    assert torch.equal(found["s.sequence"][:, 0], tables["steps_emb"][[1, 3]].float())
    torch.testing.assert_close(found["j.sequence"][0].double(), 300 * tables["bags_emb"][1].double(), rtol=1e-6, atol=0)
    assert {tensor.dtype for name, tensor in found.items() if "length" not in name} == {torch.float32}


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adagrad, RowWiseAdagrad])
def test_a_step_is_that_of_an_fp32_table_rounded(make: Any, optimizer: Callable[..., torch.optim.Optimizer], world: str) -> None:
    parts, draw = WORLDS[world]
    other = in_type(parts(make), "bf16")
    plain = in_type(parts(make), "fp32")
    plain.load_state_dict({name: value.float() if value.is_floating_point() else value for name, value in other.state_dict().items()})
    sharded = shard(other, optimizer)
    tables = sharded_tables(sharded)
    assert {table.dtype for table in tables.values()} == {torch.bfloat16}
    trained = {name: weight for name, weight in plain.table_weights().items() if weight.requires_grad}
    assert tables.keys() == plain.table_weights().keys()
    optim = optimizer(trained.values(), lr=0.1, eps=1e-8) if optimizer is not torch.optim.SGD else optimizer(trained.values(), lr=0.1)
    plain.on_row_reset(zero_moments(optim))
    moved = 0
    for batch in draw(make, 8):
        expected, found = plain(batch), sharded(batch)
        optim.zero_grad()
        for name, tensor in expected.items():
            torch.testing.assert_close(found[name], tensor, rtol=1e-5, atol=1e-5)
        for outputs in (expected, found):
            torch.autograd.backward(sum(tensor.square().sum() for tensor in outputs.values() if tensor.is_floating_point()))
        optim.step()
        for name, weight in plain.table_weights().items():
            torch.testing.assert_close(tables[name].float(), weight.detach(), rtol=2**-7, atol=1e-5)
            moved += int((tables[name].float() != weight).sum())
            with torch.no_grad():
                weight.copy_(tables[name])
    assert moved > 20  # so that numbers between two of bfloat16 were met
    assert all(module.counters.evicted > 0 for module in zch_modules(plain).values())


def test_one_step_moves_the_plain_group_too(make: Any) -> None:
    group = EmbeddingGroup([make.sparse("f", dtype="bf16")], [make.group("g", "f")])
    make.counted(group, f_emb=0)
    optim = torch.optim.SGD(group.parameters(), lr=0.5)
    group(make.batch({"f": [[1, 2], [2]]}))["g"].sum().backward()
    optim.step()
    assert group.table_weights()["f_emb"][:4, 0].tolist() == [0, 0.5, 1, 3]
