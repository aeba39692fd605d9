"""The same group under DistributedModelParallel: one process, gloo, fused kernels, the plan of a training run."""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad
from torchrec.sparse.jagged_tensor import JaggedTensor

from emberline.errors import DataError
from emberline.schema import GroupKind, Pooling
from emberline.train.config.functions import InitSpec
from emberline.train.config.group_configs import SequenceGroupConfig
from emberline.train.config.optimizer_configs import FusedSgdConfig
from emberline.train.data import Batch
from emberline.train.embedding import EmbeddingGroup
from emberline.train.encoders import PoolingEncoderConfig
from emberline.train.features import DistanceLfuPolicy, Feature, LfuPolicy, LruPolicy, MlpEmbeddingConfig, TtlPolicy, ZchConfig
from emberline.train.optim import apply_sparse_optimizer
from emberline.train.sharding import create_sharders, create_single_process_plan
from emberline.train.zch import HashedZchModule, zch_modules, zero_moments

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.usefixtures("group_of_one"),
]
OptimizerClass = Callable[..., torch.optim.Optimizer]


class Model(nn.Module):
    """A group, and a parameter of its own, without which DMP has nothing to replicate."""

    def __init__(self, group: EmbeddingGroup) -> None:
        super().__init__()
        self.group = group
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, batch: Any) -> dict[str, torch.Tensor]:
        return {name: tensor * self.scale if tensor.is_floating_point() else tensor for name, tensor in self.group(batch).items()}


def shard(group: EmbeddingGroup, optimizer: OptimizerClass = torch.optim.SGD, lr: float = 0.1) -> DistributedModelParallel:
    """The group sharded, with the values that its tables have now."""
    values = {name: weight.detach().clone() for name, weight in group.table_weights().items()}
    trainable = [weight for weight in group.table_weights().values() if weight.requires_grad]
    apply_optimizer_in_backward(optimizer, trainable, {"lr": lr})
    for weight in group.table_weights().values():
        if not weight.requires_grad:  # as a training run does it
            apply_sparse_optimizer({"": weight}, FusedSgdConfig())
    model = Model(group)
    sharders = create_sharders()
    plan = create_single_process_plan(model, sharders)
    sharded = DistributedModelParallel(model, device=torch.device("cpu"), plan=plan, sharders=sharders)
    for name, tensor in sharded.state_dict().items():
        if name.endswith(".weight") and name.split(".")[-2] in values:
            tensor.local_shards()[0].tensor.copy_(values[name.split(".")[-2]])
    return sharded


def twins(features: list[Feature], groups: list[Any]) -> tuple[EmbeddingGroup, EmbeddingGroup]:
    """Two groups with equal values."""
    one, two = EmbeddingGroup(features, groups), EmbeddingGroup(features, groups)
    two.load_state_dict(one.state_dict())
    return one, two


def test_mixed_poolings_and_dims_keep_their_columns(make: Any) -> None:
    poolings = {"f0": (4, Pooling.SUM), "f1": (8, Pooling.MEAN), "f2": (4, Pooling.SUM)}
    features = [make.sparse(name, dim=dim, pooling=pooling) for name, (dim, pooling) in poolings.items()]
    group = EmbeddingGroup(features, [make.group("g", "f0", "f1", "f2")])
    make.counted(group, f0_emb=0, f1_emb=100, f2_emb=200)
    found = shard(group)(make.batch({"f2": [[1], [2]], "f0": [[3, 4], []], "f1": [[], [5]]}))["g"]
    assert found.tolist() == [[7] * 4 + [0] * 8 + [201] * 4, [0] * 4 + [105] * 8 + [202] * 4]


def everything(make: Any, dtype: str = "fp16") -> tuple[list[Feature], list[Any]]:
    init = {"init": InitSpec.parse("nn.init.constant_,val=0.5")}  # so that rows that start afresh are alike

    def zch(rows: int, interval: int, policy: Any) -> ZchConfig:
        return ZchConfig(zch_size=rows, eviction_interval=interval, eviction_policy=policy)

    features = [
        make.sparse("f0", **init),
        make.sparse("f1", dim=8, pooling=Pooling.MEAN, **init),
        make.sparse("f2", dtype=dtype, **init),
        make.sparse("w", weighted=True, pooling=Pooling.MEAN, **init),
        make.sparse("z0", zch=zch(8, 2, LfuPolicy()), **init),
        make.sparse("z1", dim=8, pooling=Pooling.MEAN, zch=zch(9, 1, LruPolicy()), **init),
        make.sparse("z2", dim=8, pooling=Pooling.MEAN, weighted=True, zch=zch(7, 3, DistanceLfuPolicy()), **init),
    ]
    groups = [
        make.group("deep", "z2", "f2", "w", "f1", "z0", "f0", "z1"),
        make.group("wide", "f0", "z0", group_type=GroupKind.WIDE),
    ]
    return features, groups


def batches(make: Any, steps: int) -> list[Any]:
    torch.manual_seed(3)

    def draw(name: str, rows: int) -> list[list[int]]:
        odd = [2**63 - 1, -(2**63), -5, 2**40] if name.startswith("z") else []
        return [[[*range(10), *odd][i] for i in torch.randint(0, 10 + len(odd), (int(torch.randint(0, 4, ())),)).tolist()] for _ in range(rows)]

    result = []
    for step in range(steps):
        ids = {name: draw(name, 0 if step == 4 else 5) for name in ("z1", "f1", "f0", "w", "z0", "f2", "z2")}
        weights = {name: [torch.rand(len(bag)).add(0.5).tolist() for bag in ids[name]] for name in ("w", "z2")}
        result.append(make.batch(ids, weights=weights))
    return result


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adagrad, RowWiseAdagrad])
def test_training_equals_the_unsharded_group(make: Any, optimizer: OptimizerClass) -> None:
    dtype = "fp16" if optimizer is torch.optim.SGD else "fp32"  # the plain Adagrad divides by an eps that is 0 in fp16
    plain, other = twins(*everything(make, dtype))
    sharded = shard(other, optimizer)
    optim = optimizer(plain.parameters(), lr=0.1, eps=1e-8) if optimizer is not torch.optim.SGD else optimizer(plain.parameters(), lr=0.1)
    plain.on_row_reset(zero_moments(optim))
    maps, sharded_maps = zch_modules(plain), zch_modules(sharded)
    for batch in batches(make, 12):
        expected, found = plain(batch), sharded(batch)
        for name, tensor in expected.items():
            assert torch.allclose(found[name], tensor, atol=2e-3 if dtype == "fp16" else 1e-6), name
        for table, module in maps.items():
            state, sharded_state = module.state_for_checkpoint(), sharded_maps[table].state_for_checkpoint()
            assert state.keys() == sharded_state.keys()
            assert all(torch.equal(state[part], sharded_state[part]) for part in state), table
        optim.zero_grad()
        sum(tensor.square().sum() for tensor in expected.values()).backward()
        optim.step()
        sum(tensor.square().sum() for tensor in found.values()).backward()
    assert all(module.counters.evicted > 0 for module in maps.values())


def test_a_sharded_state_loads_unsharded_and_back(make: Any) -> None:
    plain, other = twins(*everything(make))
    sharded = shard(other)
    for batch in batches(make, 5):
        sharded(batch)
    for table, module in zch_modules(sharded).items():
        zch_modules(plain)[table].load_state_from_checkpoint(module.state_for_checkpoint())
    again = shard(twins(*everything(make))[0])
    for table, module in zch_modules(again).items():
        module.load_state_from_checkpoint(zch_modules(plain)[table].state_for_checkpoint())
    for batch in batches(make, 8)[5:]:
        sharded(batch), again(batch)
    for table, module in zch_modules(sharded).items():
        state, restored = module.state_for_checkpoint(), zch_modules(again)[table].state_for_checkpoint()
        assert all(torch.equal(state[part], restored[part]) for part in state)


def test_eval_reads_only(make: Any) -> None:
    sharded = shard(EmbeddingGroup(*everything(make)))
    first, *others = batches(make, 6)
    sharded(first)
    before = {table: module.state_for_checkpoint() for table, module in zch_modules(sharded).items()}
    sharded.eval()
    answer = sharded(first)
    for batch in others:
        sharded(batch)
    assert all(torch.equal(tensor, answer[name]) for name, tensor in sharded(first).items())
    for table, module in zch_modules(sharded).items():
        assert all(torch.equal(before[table][part], tensor) for part, tensor in module.state_for_checkpoint().items())


@pytest.mark.parametrize("pooling", list(Pooling))
def test_weights_mean_the_same_as_unsharded(make: Any, pooling: Pooling) -> None:
    feature = make.sparse("f", weighted=True, pooling=pooling)
    plain, other = twins([feature], [make.group("g", "f")])
    sharded = shard(other)
    for weights in ([[10.0, 100.0], [2.0, -2.0], []], None):
        batch = make.batch({"f": [[1, 2], [1, 2], []]}, weights={"f": weights} if weights is not None else None)
        assert torch.allclose(sharded(batch)["g"], plain(batch)["g"], rtol=1e-5)


@pytest.mark.parametrize("bad", [10, -1, 2**40])
def test_ids_out_of_range_are_refused_here_too(make: Any, bad: int) -> None:
    sharded = shard(EmbeddingGroup([make.sparse("f")], [make.group("g", "f")]))
    with pytest.raises(DataError, match=f"feature 'f' has id {bad}"):
        sharded(make.batch({"f": [[bad]]}))


@pytest.mark.parametrize("zch", [("a", "b"), ("a",), ()])
def test_all_some_or_no_features_with_zch(make: Any, zch: tuple[str, ...]) -> None:
    config = ZchConfig(zch_size=10, eviction_interval=1, eviction_policy=LfuPolicy())
    features = [make.sparse(name, pooling=Pooling.MEAN if name == "b" else Pooling.SUM, zch=config if name in zch else None) for name in "ab"]
    plain, other = twins(features, [make.group("g", "a", "b")])
    sharded = shard(other)
    for rows in (2, 0, 1):
        batch = make.batch({"a": [[1, 2], []][:rows], "b": [[1, 2], []][:rows]})
        assert torch.allclose(sharded(batch)["g"], plain(batch)["g"], rtol=1e-5)


def test_data_groups_with_batches_of_their_own_share_a_table_here_too(make: Any) -> None:
    zch = ZchConfig(zch_size=8, eviction_interval=1, eviction_policy=LfuPolicy())
    features = [
        make.sparse("u", embedding_name="t"),
        make.sparse("i", embedding_name="t", data_group="__NEG__"),
        make.sparse("x", zch=zch, data_group="__NEG__", pooling=Pooling.MEAN),
    ]
    group = EmbeddingGroup(features, [make.group("user", "u"), make.group("item", "i", "x")])
    make.counted(group, t=0, x_emb=100)
    base, neg = make.batch({"u": [[1, 2]]}), make.batch({"i": [[3], [4], []], "x": [[7], [], [-7, 7]]}, data_group="__NEG__")
    result = shard(group)(Batch(sparse_features=base.sparse_features | neg.sparse_features))
    assert result["user"].tolist() == [[3] * 4]
    assert result["item"].tolist() == [[3] * 4 + [105] * 4, [4] * 4 + [0] * 4, [0] * 4 + [105.5] * 4]


SORTED_MAP = ZchConfig(zch_size=8, eviction_interval=2, eviction_policy=LfuPolicy())
MAP_BY_HASHES = ZchConfig(zch_size=8, kind="mpzch", buckets=2, eviction_policy=TtlPolicy(hours=1))


def sequences(make: Any, config: ZchConfig = SORTED_MAP) -> tuple[list[Feature], list[Any]]:
    """Tables that are read step by step, pooled, weighted, by ZCH, in several widths, from two data groups' worth of groups."""
    init = {"init": InitSpec.parse("nn.init.constant_,val=0.5")}
    zch = {"zch": config}
    features = [
        make.sparse("item", embedding_name="t", pooling=Pooling.MEAN, **init),
        make.sequence("s", embedding_name="t", **init),
        make.sequence("m", value_dim=0, dim=8, pooling=Pooling.MEAN, weighted=True, **init),
        make.sequence("f", dim=8, trainable=False, **init),
        make.sparse("zi", embedding_name="z", weighted=True, **zch, **init),
        make.sequence("zs", embedding_name="z", **zch, **init),
        make.numbers("n", dense_embedding=MlpEmbeddingConfig(), embedding_dim=4),
    ]
    pool = PoolingEncoderConfig(input="nested")
    nested = SequenceGroupConfig(group_name="nested", feature_names=("item", "s"))
    groups = [
        make.group("deep", "item", "zi", "f", sequence_groups=(nested,), sequence_encoders=(pool,)),
        make.group("pad", "zi", "s", "f", "n", group_type=GroupKind.SEQUENCE),
        make.group("jag", "m", group_type=GroupKind.JAGGED_SEQUENCE),
        make.group("zch", "zs", group_type=GroupKind.JAGGED_SEQUENCE),
    ]
    return features, groups


def sequence_batches(make: Any, steps: int) -> list[Batch]:
    torch.manual_seed(5)

    def ids(most: int) -> list[int]:
        return torch.randint(0, 10, (int(torch.randint(0, most + 1, ())),)).tolist()

    result = []
    for step in range(steps):
        rows = 0 if step == 3 else 4
        s = [ids(0 if step == 5 else 4) for _ in range(rows)]
        m = [[ids(3) for _ in range(int(torch.randint(0, 3, ())))] for _ in range(rows)]
        columns = {
            "zi": [ids(2) for _ in range(rows)],
            "s": s,
            "item": [ids(2) for _ in range(rows)],
            "f": [torch.randint(0, 10, (len(row),)).tolist() for row in s],
            "zs": [[one * 2**40 for one in ids(4)] for _ in range(rows)],
        }
        numbers = torch.rand(sum(len(row) for row in s), 1)
        lengths = torch.tensor([len(row) for row in s], dtype=torch.int32)
        flat = [[one for one_step in row for one in one_step] for row in m]
        weights = {name: [torch.rand(len(row)).add(0.5).tolist() for row in values] for name, values in (("m", flat), ("zi", columns["zi"]))}
        batch = make.batch(columns | {"m": flat}, weights=weights)
        sizes = make.kjt({"m": [[len(one) for one in row] for row in m]})
        dense = {"n": JaggedTensor(values=numbers, lengths=lengths)}
        result.append(replace(batch, sequence_dense_features=dense, sequence_mulval_lengths={"__BASE__": sizes}))
    return result


@pytest.mark.parametrize(
    ("optimizer", "config"),
    [(torch.optim.SGD, SORTED_MAP), (torch.optim.Adagrad, SORTED_MAP), (RowWiseAdagrad, SORTED_MAP), (torch.optim.Adagrad, MAP_BY_HASHES)],
)
def test_training_on_sequences_equals_the_unsharded_group(make: Any, optimizer: OptimizerClass, config: ZchConfig) -> None:
    plain, other = twins(*sequences(make, config))
    sharded = shard(other, optimizer)
    tables = [weight for weight in plain.table_weights().values() if weight.requires_grad]
    optim = optimizer(tables, lr=0.1, eps=1e-8) if optimizer is not torch.optim.SGD else optimizer(tables, lr=0.1)
    plain.on_row_reset(zero_moments(optim))
    maps, sharded_maps = zch_modules(plain), zch_modules(sharded)
    for hour, batch in enumerate(sequence_batches(make, 8)):
        for one in (maps["z"], sharded_maps["z"]):
            if isinstance(one, HashedZchModule):
                one.clock = functools.partial(int, hour)
        expected, found = plain(batch), sharded(batch)
        assert list(found) == list(expected)
        for name, tensor in expected.items():
            assert torch.allclose(found[name], tensor, atol=1e-6), name
        state, sharded_state = maps["z"].state_for_checkpoint(), sharded_maps["z"].state_for_checkpoint()
        assert all(torch.equal(state[part], sharded_state[part]) for part in state)
        optim.zero_grad()
        for outputs in (expected, found):
            sum(tensor.square().sum() for tensor in outputs.values() if tensor.is_floating_point()).backward()
        optim.step()
    assert maps["z"].counters.evicted > 0
    frozen = {name: tensor for name, tensor in sharded.state_dict().items() if "f_emb" in name}
    assert [tensor.local_shards()[0].tensor.unique().tolist() for tensor in frozen.values()] == [[0.5]]
