"""Our kernels in TorchRec's sharded modules, beside fbgemm's in TorchRec's own."""

import copy
from typing import Any

import pytest
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch import Tensor, nn
from torch.distributed.optim.apply_optimizer_in_backward import _apply_optimizer_in_backward
from torchrec import optim
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.sharding_plan import column_wise, construct_module_sharding_plan, data_parallel, row_wise, table_wise
from torchrec.distributed.types import ShardingPlan
from torchrec.modules.embedding_configs import DataType, EmbeddingBagConfig, EmbeddingConfig, PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from emberline.errors import ConfigError, DataError
from emberline.train.checkpoint.shards import table_shards
from emberline.train.sharding import create_sharders, create_single_process_plan, process_group
from emberline.train.sharding.cpu_kernels import CpuBags, CpuSteps, CpuTables
from tests.train.kernels.by_hand import Batch, TablesByHand
from tests.train.sharding.test_plan import TEXT, group_of

pytestmark = [pytest.mark.filterwarnings("ignore::UserWarning"), pytest.mark.filterwarnings("ignore::FutureWarning")]
ROWS, DIMS = (30, 8), (4, 8)


class Both(nn.Module):
    """Pooled tables of two widths, one read twice, and tables of steps."""

    def __init__(self, pooling: PoolingType = PoolingType.SUM, dims: tuple[int, ...] = DIMS, dtype: DataType = DataType.FP32) -> None:
        super().__init__()
        bags = [("a", ["f", "g"]), ("b", ["h"])]
        self.bags = EmbeddingBagCollection(
            tables=[
                EmbeddingBagConfig(name=name, num_embeddings=rows, embedding_dim=dim, feature_names=keys, pooling=pooling, data_type=dtype)
                for (name, keys), rows, dim in zip(bags, ROWS, dims, strict=True)
            ],
            device=torch.device("meta"),
        )
        self.steps = EmbeddingCollection(
            tables=[
                EmbeddingConfig(name=name, num_embeddings=rows, embedding_dim=dims[1], feature_names=[key], data_type=dtype)
                for name, key, rows in (("c", "s", 9), ("d", "t", 5))
            ],
            device=torch.device("meta"),
        )

    def forward(self, bags: KeyedJaggedTensor, steps: KeyedJaggedTensor) -> tuple[Tensor, Tensor]:
        pooled, found = self.bags(bags), self.steps(steps)
        return pooled.values(), torch.cat([found[key].values() for key in ("s", "t")])


def sharded(model: Both, sharders: list[Any], placement: Any, optimizer: Any, arguments: dict[str, Any]) -> DistributedModelParallel:
    _apply_optimizer_in_backward(optimizer, model.parameters(), dict(arguments))  # TorchRec writes into them
    plan = {}
    for name in ("bags", "steps"):
        module = getattr(model, name)
        sharder = next(sharder for sharder in sharders if sharder.module_type is type(module))
        tables = dict.fromkeys(sharder.shardable_parameters(module), placement)
        plan[name] = construct_module_sharding_plan(module, tables, sharder=sharder, local_size=1, world_size=1, device_type="cpu")
    return DistributedModelParallel(model, device=torch.device("cpu"), plan=ShardingPlan(plan), sharders=sharders, init_data_parallel=False)


def shards(values: dict[str, Any]) -> dict[str, list[Tensor]]:
    return {name: [shard.tensor for shard in value.local_shards()] for name, value in values.items()}


def weights_of(model: DistributedModelParallel) -> dict[str, list[Tensor]]:
    return shards({name: value for name, value in model.state_dict().items() if name.endswith("weight")})


def moments_of(model: DistributedModelParallel) -> dict[str, list[Tensor]]:
    states = model.fused_optimizer.state_dict()["state"]
    return shards({f"{path}/{name}": value for path, state in states.items() for name, value in state.items()})


def batch(seed: int) -> tuple[KeyedJaggedTensor, KeyedJaggedTensor]:
    generator = torch.Generator().manual_seed(seed)

    def of(keys: list[str], rows: int) -> KeyedJaggedTensor:
        lengths = torch.randint(4, (len(keys) * 3,), generator=generator)
        return KeyedJaggedTensor(keys=keys, values=torch.randint(rows, (int(lengths.sum()),), generator=generator), lengths=lengths)

    return of(["f", "g", "h"], 8), of(["s", "t"], 5)


PLACEMENTS = {
    "table_wise": table_wise(rank=0, compute_kernel="fused"),
    "row_wise": row_wise(compute_kernel="fused"),
    "column_wise": column_wise(ranks=[0, 0], compute_kernel="fused"),
}
LIKE_FBGEMM = {
    "sgd": (torch.optim.SGD, {"lr": 0.2}),
    "adagrad": (torch.optim.Adagrad, {"lr": 0.2}),
    "rowwise": (optim.RowWiseAdagrad, {"lr": 0.2}),
}


@pytest.mark.parametrize("dtype", [DataType.FP32, DataType.BF16])
def test_one_rank_s_copies_are_as_any_other_table(dtype: DataType) -> None:
    with process_group():
        found = []
        for placement in (data_parallel(), PLACEMENTS["table_wise"]):
            torch.manual_seed(3)
            model = sharded(Both(dtype=dtype), create_sharders(), placement, optim.Adam, {"lr": 0.1})
            torch.manual_seed(3)
            for seed in range(3):
                pooled, steps = model(*batch(seed))
                (pooled.sum() + steps.sin().sum()).backward()
            kernels: list[Any] = [kernel.emb_module for kernel in _kernels(model)]
            groups = [group for kernel in kernels for group in (kernel.split_embedding_weights(), *kernel.split_optimizer_states())]
            found.append([part for group in groups for part in group])
            assert all(getattr(parameter, "_in_backward_optimizers", None) for parameter in model.parameters())  # none for the dense optimiser
        for own, other in zip(*found, strict=True):
            assert torch.equal(own, other)


@pytest.mark.parametrize("placement", list(PLACEMENTS))
@pytest.mark.parametrize("kind", list(LIKE_FBGEMM))
@pytest.mark.parametrize("pooling", [PoolingType.SUM, PoolingType.MEAN])
def test_training_and_states_are_those_of_torchrec(placement: str, kind: str, pooling: PoolingType) -> None:
    optimizer, arguments = LIKE_FBGEMM[kind]
    dims = (8, 8) if placement == "column_wise" else DIMS
    with process_group():
        ours = sharded(Both(pooling, dims), create_sharders(), PLACEMENTS[placement], optimizer, arguments)
        theirs_sharders = [EmbeddingBagCollectionSharder(), EmbeddingCollectionSharder()]
        theirs = sharded(Both(pooling, dims), theirs_sharders, copy.deepcopy(PLACEMENTS[placement]), optimizer, arguments)
        for own, other in zip(weights_of(ours).values(), weights_of(theirs).values(), strict=True):
            for part, wanted in zip(own, other, strict=True):
                part.copy_(wanted)
        for seed in range(4):
            found, expected = ours(*batch(seed)), theirs(*batch(seed))
            grads = [torch.randn(part.shape, generator=torch.Generator().manual_seed(seed)) for part in expected]
            for one, other in zip(found, expected, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
            torch.autograd.backward(found, grads)
            torch.autograd.backward(expected, [grad.clone() for grad in grads])
        for read in (weights_of, moments_of):
            own_parts, other_parts = read(ours), read(theirs)
            assert own_parts.keys() == other_parts.keys()
            for name, parts in other_parts.items():
                for part, wanted in zip(own_parts[name], parts, strict=True):
                    torch.testing.assert_close(part, wanted, rtol=1e-5, atol=1e-6)
        names = [name for name, _ in theirs.named_parameters()]
        assert [name for name, _ in ours.named_parameters()] == names
        assert [tuple(value.shape) for _, value in ours.named_parameters()] == [tuple(value.shape) for _, value in theirs.named_parameters()]
        assert list(ours.fused_optimizer.params) == list(theirs.fused_optimizer.params)


OTHERS = {
    "adam": (optim.Adam, {"lr": 0.1, "beta1": 0.8, "weight_decay": 0.1}, ["momentum1", "exp_avg_sq"]),
    "partial_rowwise_adam": (optim.PartialRowWiseAdam, {"lr": 0.1}, ["momentum1", "exp_avg_sq"]),
    "lamb": (optim.LAMB, {"lr": 0.1, "weight_decay": 0.1}, ["momentum1", "exp_avg_sq"]),
    "partial_rowwise_lamb": (optim.PartialRowWiseLAMB, {"lr": 0.1}, ["momentum1", "exp_avg_sq"]),
    "lars": (optim.LarsSGD, {"lr": 0.1, "momentum": 0.5}, ["momentum1"]),
}


@pytest.mark.parametrize("kind", list(OTHERS))
def test_optimisers_that_fbgemm_has_on_gpus_only(kind: str) -> None:
    optimizer, arguments, names = OTHERS[kind]
    with process_group():
        model = sharded(Both(), create_sharders(), PLACEMENTS["table_wise"], optimizer, arguments)
        kernel = next(module for module in _kernels(model) if isinstance(module, CpuBags)).emb_module
        by_hand = TablesByHand([table.double().numpy() for table in kernel.split_embedding_weights()], [0, 0, 1], kernel.tables.optimizer)
        assert kernel.tables.optimizer.lr == 0.1
        for seed in range(3):
            bags, steps = batch(seed)
            pooled, _ = model(bags, steps)
            grad = torch.randn(pooled.shape, generator=torch.Generator().manual_seed(seed))
            pooled.backward(grad)
            parts = [torch.split(feature.values(), feature.lengths().tolist()) for feature in bags.to_dict().values()]
            by_hand.hold(Batch([[[(int(one), 1.0) for one in bag] for bag in part] for part in parts]), grad.double().numpy())
            by_hand.apply()
        for place, weights in enumerate(kernel.split_embedding_weights()):
            torch.testing.assert_close(weights.double(), torch.from_numpy(by_hand.weights(place)), rtol=1e-4, atol=1e-5)
        state = model.fused_optimizer.state_dict()["state"]["bags.embedding_bags.a.weight"]
        assert list(state) == [f"a.{name}" for name in names]


def _kernels(model: nn.Module) -> list[nn.Module]:
    lookups = [lookup for part in model.modules() for lookup in getattr(part, "_lookups", ())]
    return [part for lookup in lookups for part in lookup.modules() if isinstance(part, CpuBags | CpuSteps)]


def test_averages_by_weight_of_a_table_cut_by_rows() -> None:
    """TorchRec divides them by the sums of the weights; averages without weights, by the number of ids, beside them or not."""
    ids, weights, lengths = torch.tensor([3, 7, 3]), torch.tensor([0.25, 0.5, 2.3]), torch.tensor([2, 0, 1])
    tables = [EmbeddingBagConfig(name="t", num_embeddings=9, embedding_dim=4, feature_names=["f"], pooling=PoolingType.MEAN)]
    found = []
    with process_group():
        for is_weighted in (True, False):
            module = EmbeddingBagCollection(tables=tables, is_weighted=is_weighted, device=torch.device("meta"))
            _apply_optimizer_in_backward(torch.optim.SGD, module.parameters(), {"lr": 0.1})
            sharder = create_sharders()[0]
            plan = construct_module_sharding_plan(
                module, {"t": row_wise(compute_kernel="fused")}, sharder=sharder, local_size=1, world_size=1, device_type="cpu"
            )
            model = nn.ModuleDict({"bags": module})
            sharded = DistributedModelParallel(
                model, device=torch.device("cpu"), plan=ShardingPlan({"bags": plan}), sharders=[sharder], init_data_parallel=False
            )
            (shard,) = table_shards(sharded)
            shard.weight.copy_(torch.arange(36.0).view(9, 4))
            bags = KeyedJaggedTensor(keys=["f"], values=ids, lengths=lengths, weights=weights if is_weighted else None)
            found.append(model["bags"](bags).values().detach())
    row = torch.arange(36.0).view(9, 4)
    torch.testing.assert_close(found[0], torch.stack([(0.25 * row[3] + 0.5 * row[7]) / 0.75, torch.zeros(4), row[3]]), atol=1e-4, rtol=1e-5)
    assert found[1].tolist() == torch.stack([(row[3] + row[7]) / 2, torch.zeros(4), row[3]]).tolist()


def test_rates_are_those_of_the_optimizer() -> None:
    with process_group():
        model = sharded(Both(), create_sharders(), PLACEMENTS["table_wise"], torch.optim.SGD, {"lr": 0.5})
        for group in model.fused_optimizer.param_groups:
            assert group["lr"] == 0.5
            group["lr"] = 0.25
        model.fused_optimizer.step()
        kernels = [kernel.emb_module for kernel in _kernels(model)]
        assert [kernel.get_learning_rate() for kernel in kernels if isinstance(kernel, CpuTables)] == [0.25, 0.25]


def test_every_kind_of_collection_has_our_kernels() -> None:
    group = group_of(TEXT)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.group = group

    model, sharders = Model(), create_sharders()
    with process_group():
        plan = create_single_process_plan(model, sharders)
        whole = DistributedModelParallel(model, device=torch.device("cpu"), plan=plan, sharders=sharders, init_data_parallel=False)
        assert len(_kernels(whole)) == 4


def test_ids_outside_a_table_are_refused() -> None:
    with process_group():
        model = sharded(Both(), create_sharders(), PLACEMENTS["table_wise"], torch.optim.SGD, {"lr": 0.5})
        _, steps = batch(0)
        bags = KeyedJaggedTensor(keys=["f", "g", "h"], values=torch.tensor([1, 30, 2]), lengths=torch.tensor([1, 1, 1]))
        with pytest.raises(DataError, match="table 'a' has rows 0 to 29, but row 30 is asked for"):
            model(bags, steps)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"optimizer": EmbOptimType.SHAMPOO}, "tables a, b: the optimiser shampoo is not known on a CPU; those known are adam, exact_adagrad"),
        ({"weight_decay": 0.1}, "tables a, b: exact_sgd has no weight_decay on a CPU; leave it out"),
        ({"optimizer": EmbOptimType.ADAM, "eta": 1.0, "max_norm": 2.0}, "tables a, b: adam has no eta, max_norm on a CPU"),
    ],
)
def test_settings_that_would_do_nothing_are_refused(settings: dict[str, Any], message: str) -> None:
    model, sharders = Both().bags, create_sharders()
    sharders[0]._fused_params = settings
    tables = dict.fromkeys(("a", "b"), PLACEMENTS["table_wise"])
    with process_group():
        plan = construct_module_sharding_plan(model, tables, sharder=sharders[0], local_size=1, world_size=1, device_type="cpu")
        with pytest.raises(ConfigError, match=message):
            DistributedModelParallel(model, device=torch.device("cpu"), plan=ShardingPlan({"": plan}), sharders=sharders, init_data_parallel=False)
