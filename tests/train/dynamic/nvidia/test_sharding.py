"""Collections with tables on NVIDIA's kernel: what TorchRec and the kernel get, and what the kernel is spared."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed._shard.metadata import ShardMetadata
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, EmbeddingCollection, EmbeddingConfig, KeyedJaggedTensor, optim
from torchrec.distributed.types import EnumerableShardingSpec, ParameterSharding
from torchrec.modules.embedding_configs import DataType

from emberline.errors import ConfigError
from emberline.train.dynamic.nvidia.package import find_package
from emberline.train.dynamic.nvidia.sharding import kernel_sharding, nvidia_sharding
from emberline.train.dynamic.nvidia.tables import GuardedTables
from emberline.train.dynamic.options import (
    DynamicEmbOptions,
    DynamicRuntime,
    FrequencyAdmission,
    Initializer,
    InitializerMode,
    KernelKind,
    ScoreStrategy,
)
from emberline.train.dynamic.sharding import DynamicEmbParameterSharding, with_growth
from tests.train.dynamic.fake_nvidia import (
    CALLS,
    NewSharding,
    NewTables,
    OldSharding,
    Pooling,
    Scores,
    ShardedBags,
    ShardedSteps,
    fake_package,
)

CONSTANT = Initializer(mode=InitializerMode.CONSTANT, value=0.5)
OPTIONS = DynamicEmbOptions(max_capacity=300, initializer=CONSTANT, score_strategy=ScoreStrategy.STEP)
META = torch.device("meta")
RUNTIME = DynamicRuntime(seed=3)


def grows(options: DynamicEmbOptions = OPTIONS) -> DynamicEmbParameterSharding:
    """As the planner has it."""
    shards = [ShardMetadata(shard_offsets=[150 * rank, 0], shard_sizes=[150, 8], placement=f"rank:{rank}/cuda:{rank}") for rank in range(2)]
    return with_growth(ParameterSharding("row_wise", "fused", [0, 1], EnumerableShardingSpec(shards)), options)


STATIC = ParameterSharding("table_wise", "fused", [0])


class Base:
    """Stands for our sharded collection."""

    _is_weighted = False

    def __init__(self, lookups: list[nn.Module]) -> None:
        self._lookups = lookups

    def input_dist(self, ctx: Any, features: KeyedJaggedTensor) -> KeyedJaggedTensor:
        return features

    def _create_lookups(self) -> None:
        CALLS.append(("create_lookups", {}))


def bags(*, weighted: bool = False) -> EmbeddingBagCollection:
    tables = [EmbeddingBagConfig(name=name, embedding_dim=8, num_embeddings=300, feature_names=[f"f_{name}"]) for name in ("grows", "fixed")]
    tables[0].data_type = DataType.FP16
    made = EmbeddingBagCollection(tables=tables, is_weighted=weighted, device=META)
    made.embedding_bags["grows"].weight._optimizer_classes = [optim.Adam]
    return made


def steps(second: DynamicEmbOptions) -> tuple[EmbeddingCollection, dict[str, ParameterSharding]]:
    tables = [EmbeddingConfig(name=name, embedding_dim=8, num_embeddings=300, feature_names=[f"f_{name}"]) for name in ("a", "b")]
    return EmbeddingCollection(tables=tables, device=META), {"a": grows(), "b": grows(second)}


@pytest.mark.parametrize("new", [True, False])
def test_bags_are_sharded_by_theirs(new: bool) -> None:
    with fake_package(new=new):
        found = nvidia_sharding(find_package(), RUNTIME, Base, bags(), {"grows": grows(), "fixed": STATIC}, 2)
        assert found.params["fixed"] is STATIC
        theirs: Any = found.params["grows"]
        assert type(theirs) is (NewSharding if new else OldSharding)
        assert (theirs.sharding_type, theirs.compute_kernel, theirs.ranks) == ("row_wise", "customized_kernel", [0, 1])
        placed = [(shard.shard_offsets, shard.shard_sizes, str(shard.placement)) for shard in theirs.sharding_spec.shards]
        assert placed == [([0, 0], [256, 8], "rank:0/cuda:0"), ([256, 0], [256, 8], "rank:1/cuda:1")]
        options = theirs.dynamicemb_options
        assert (options.max_capacity, options.dim, options.embedding_dtype, options.score_strategy) == (256, 8, torch.float16, Scores.STEP)
        assert options.local_hbm_for_values == 256 * 48
        if not new:
            assert (theirs.customized_compute_kernel, theirs.dist_type) == ("DynamicEmb", "roundrobin")
        assert issubclass(found.kind, Base)
        assert issubclass(found.kind, ShardedBags)
        assert found.arguments == {}


def test_which_kernel_is_the_jobs_choice() -> None:
    cuda, cpu = torch.device("cuda", 0), torch.device("cpu")
    params = {"grows": grows(), "fixed": STATIC}
    with fake_package():
        chosen = kernel_sharding(DynamicRuntime(), Base, bags(), params, 2, cuda)
        assert issubclass(chosen.kind, ShardedBags)
        assert type(chosen.params["grows"]) is NewSharding
        for runtime, device in ((DynamicRuntime(kernel=KernelKind.EMBERLINE), cuda), (DynamicRuntime(), cpu), (DynamicRuntime(), None)):
            ours = kernel_sharding(runtime, Base, bags(), params, 2, device)
            assert (ours.kind, ours.params, ours.arguments) == (Base, params, {})
        static = kernel_sharding(DynamicRuntime(kernel=KernelKind.NVIDIA), Base, bags(), {"grows": STATIC, "fixed": STATIC}, 2, cpu)
        assert static.kind is Base
        with pytest.raises(ConfigError, match="needs CUDA"):
            kernel_sharding(DynamicRuntime(kernel=KernelKind.NVIDIA), Base, bags(), params, 2, cpu)


def test_steps_get_what_reads_are_counted_by() -> None:
    with fake_package():
        package = find_package()
        module, params = steps(OPTIONS)
        found = nvidia_sharding(package, RUNTIME, Base, module, params, 2)
        assert issubclass(found.kind, ShardedSteps)
        assert found.arguments == {"score_strategy": Scores.STEP, "has_admit_strategy": False}
        admitting = DynamicEmbOptions(max_capacity=300, initializer=CONSTANT, admission=FrequencyAdmission(threshold=2, counter_capacity=10))
        counting = DynamicEmbOptions(max_capacity=300, initializer=CONSTANT, score_strategy=ScoreStrategy.LFU)
        for other in (admitting, counting):
            module, params = steps(other)
            with pytest.raises(ConfigError, match="tables a, b: NVIDIA's kernel wants one score_strategy"):
                nvidia_sharding(package, RUNTIME, Base, module, params, 2)


def test_weights_are_refused_where_they_would_be_counts() -> None:
    params = {"grows": grows(), "fixed": STATIC}
    with fake_package(new=False), pytest.raises(ConfigError, match="tables grows: dynamicemb unknown takes weights of bags for counts of reads"):
        nvidia_sharding(find_package(), RUNTIME, Base, bags(weighted=True), params, 2)
    with fake_package():
        assert issubclass(nvidia_sharding(find_package(), RUNTIME, Base, bags(weighted=True), params, 2).kind, ShardedBags)


@pytest.mark.parametrize("weighted", [True, False])
def test_weights_reach_only_tables_that_weigh(weighted: bool) -> None:
    features = KeyedJaggedTensor(["f"], torch.tensor([5, -7, 9]), torch.tensor([0.25, 2.0, 4.0]), torch.tensor([2, 1]))
    with fake_package():
        found = nvidia_sharding(find_package(), RUNTIME, Base, bags(), {"grows": grows(), "fixed": STATIC}, 2)
        sharded = found.kind([])
        sharded._is_weighted = weighted
        passed = sharded.input_dist(None, features)
    assert passed.values().tolist() == [5, -7, 9]
    assert (passed.lengths().tolist(), passed.stride()) == ([2, 1], 2)
    assert (None if passed.weights_or_none() is None else passed.weights().tolist()) == ([0.25, 2.0, 4.0] if weighted else None)


def test_weights_are_taken_off_uneven_batches() -> None:
    features = KeyedJaggedTensor(
        ["f", "g"], torch.tensor([5, -7, 9]), torch.ones(3), torch.tensor([2, 0, 1]), stride_per_key_per_rank=torch.tensor([[2], [1]])
    )
    with fake_package():
        found = nvidia_sharding(find_package(), RUNTIME, Base, bags(), {"grows": grows(), "fixed": STATIC}, 2)
        passed = found.kind([]).input_dist(None, features)
    assert passed.weights_or_none() is None
    assert passed.stride_per_key() == [2, 1]
    assert passed.to_dict()["g"].values().tolist() == [9]


def test_a_table_that_is_only_read_gets_an_optimiser_that_does_nothing() -> None:
    module = bags()
    weight = module.embedding_bags["grows"].weight
    del weight._optimizer_classes
    with fake_package():
        found = nvidia_sharding(find_package(), RUNTIME, Base, module, {"grows": grows(), "fixed": STATIC}, 2)
        assert found.params["grows"].dynamicemb_options.training is False
    assert (weight._optimizer_classes, weight._optimizer_kwargs) == ([torch.optim.SGD], [{"lr": 0.0}])


def test_frozen_tables_are_refused() -> None:
    module = bags()
    module.embedding_bags["grows"].weight.requires_grad_(False)
    with fake_package(), pytest.raises(ConfigError, match="table 'grows' is frozen"):
        nvidia_sharding(find_package(), RUNTIME, Base, module, {"grows": grows(), "fixed": STATIC}, 2)


class Kernel(nn.Module):
    """As TorchRec's lookups hold NVIDIA's kernels."""

    def __init__(self, tables: nn.Module) -> None:
        super().__init__()
        self._emb_module = tables


def test_every_kernel_of_a_collection_is_guarded_once() -> None:
    with fake_package():
        found = nvidia_sharding(find_package(), RUNTIME, Base, bags(), {"grows": grows(), "fixed": STATIC}, 2)
        tables = NewTables(Pooling.SUM, [8], ("grows",))
        lookup = nn.ModuleList([Kernel(tables), nn.Linear(1, 1)])
        found.kind([lookup])._create_lookups()
        assert CALLS == [("create_lookups", {})]
    kernel: Any = lookup[0]
    assert isinstance(kernel._emb_module, GuardedTables)
    assert kernel._emb_module._emb_module is tables
    assert [(table.name, table.max_rows) for table in kernel._emb_module.described] == [("grows", 256)]
    assert kernel._emb_module.dtype is torch.float16
