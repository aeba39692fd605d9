"""The four forms that `embedding.py` measures: Emberline's EmbeddingGroup and plain TorchRec modules, each by itself and sharded.

The plain form is what somebody writes who knows TorchRec well: one EmbeddingBagCollection for the pooled ids, one EmbeddingCollection for the
steps, AutoDis of all numbers in one batched computation with stacked parameters, one concatenation for each group, one padding for the sequence. It
checks no id, and gets its ids in the order of its collections. Sharded, both have every table in a fused kernel, with Adagrad inside backward.

Letters: B rows, N steps of all rows, L steps of the longest row, n numbers, c channels, d width.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.optim.apply_optimizer_in_backward import _apply_optimizer_in_backward
from torch.nn import functional
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, table_wise
from torchrec.distributed.types import Awaitable, ShardingPlan
from torchrec.modules.embedding_configs import EmbeddingBagConfig, EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from benchmarks._embedding_work import DIM, IDS, KEEP_PROB, NUM_CHANNELS, QUERY, RAW, STEPS, TABLE_ROWS, TEMPERATURE, Rows, config
from emberline.train import EmbeddingGroup, create_features
from emberline.train.config.optimizer_configs import FusedAdagradConfig
from emberline.train.optim import apply_sparse_optimizer
from emberline.train.sharding import create_sharders, create_single_process_plan, shard_model

LEARNING_RATE, EPS = 0.05, 1e-8  # the fused kernel's eps; it decides where gradients are tiny
Outputs = tuple[Tensor, Tensor, Tensor]


class PlainAutoDis(nn.Module):
    """AutoDis of n numbers at once."""

    def __init__(self) -> None:
        super().__init__()
        n, c = len(RAW), NUM_CHANNELS
        self.w = nn.Parameter(torch.randn(n, c))
        self.m = nn.Parameter(torch.randn(n, c, c))
        self.meta = nn.Parameter(torch.randn(n, c, DIM))

    def forward(self, numbers: Tensor) -> Tensor:
        """[B, n] -> [B, n * d]."""
        hidden = functional.leaky_relu(numbers.unsqueeze(2) * self.w, 0.01)
        scores = torch.einsum("nij,bnj->bni", self.m, hidden) + KEEP_PROB * hidden
        return torch.einsum("bnc,ncd->bnd", torch.softmax(scores / TEMPERATURE, dim=2), self.meta).flatten(1)


class PlainModel(nn.Module):
    """The same groups from TorchRec's modules."""

    def __init__(self, device: torch.device | None = None) -> None:
        super().__init__()
        bags = [EmbeddingBagConfig(name=f"{name}_table", num_embeddings=TABLE_ROWS, embedding_dim=DIM, feature_names=[name]) for name in IDS]
        steps = [EmbeddingConfig(name=f"{name}_table", num_embeddings=TABLE_ROWS, embedding_dim=DIM, feature_names=[name]) for name in STEPS]
        self.ebc = EmbeddingBagCollection(tables=bags, device=device)
        self.ec = EmbeddingCollection(tables=steps, device=device)
        self.autodis = PlainAutoDis()

    def forward(self, ids: KeyedJaggedTensor, numbers: Tensor, steps: KeyedJaggedTensor) -> Outputs:
        """The DEEP group [B, 39 d], the query [B, 3 d], and the padded sequence [B, L, 3 d]."""
        pooled, sequences = self.ebc(ids), self.ec(steps)
        pooled = pooled.wait() if isinstance(pooled, Awaitable) else pooled
        sequences = sequences.wait() if isinstance(sequences, Awaitable) else sequences
        deep = torch.cat([pooled.values(), self.autodis(numbers)], dim=1)
        query = pooled.values()[:, : DIM * len(QUERY)]  # the first features
        jagged = torch.cat([sequences[name].values() for name in STEPS], dim=1)
        first = sequences[STEPS[0]]
        padded = torch.ops.fbgemm.jagged_to_padded_dense(jagged, [first.offsets()], [int(first.lengths().max())])
        return deep, query, padded


class Form:
    """One way to do the work.

    Args:
        name: as the table says it.
        model: with tables, sharded or not.
        call: the model's answer to the batch that `prepare` makes.
        prepare: a new batch of some rows, not measured.
    """

    def __init__(self, name: str, model: nn.Module, call: Callable[[Any], Outputs], prepare: Callable[[Rows], Any]) -> None:
        self.name, self.model, self.call, self.prepare = name, model, call, prepare
        self.optimizer: torch.optim.Optimizer | None = None

    def forward(self, batch: Any) -> Outputs:
        """In eval mode, without gradients."""
        with torch.no_grad():
            return self.call(batch)

    def step(self, batch: Any, gradients: Outputs) -> None:
        """Forward, backward and optimisers; the outputs' gradients are given, so that no loss is measured."""
        optimizer = self.optimizer or self.new_optimizer()
        optimizer.zero_grad()
        torch.autograd.backward(self.call(batch), gradients)
        optimizer.step()

    def new_optimizer(self) -> torch.optim.Optimizer:
        """Adagrad for what the fused kernels do not train themselves."""
        fused = set(self.model.fused_optimizer.params) if isinstance(self.model, DistributedModelParallel) else set()
        rest = [parameter for name, parameter in self.model.named_parameters() if name not in fused]
        self.optimizer = torch.optim.Adagrad(rest, lr=LEARNING_RATE, eps=EPS)
        return self.optimizer


def emberline(sharded: bool) -> Form:
    """EmbeddingGroup, set up as training does."""
    read = config()
    features = create_features(read.feature_configs)
    group = EmbeddingGroup(features, read.feature_groups, device=torch.device("meta") if sharded else None)
    model: Any = group
    if sharded:
        sharders = create_sharders()
        plan = create_single_process_plan(group, sharders)
        apply_sparse_optimizer(group.table_weights(), FusedAdagradConfig(lr=LEARNING_RATE))
        model = shard_model(group, plan, sharders)

    def call(batch: Any) -> Outputs:
        found = model(batch)
        return found["deep"], found["clicks.query"], found["clicks.sequence"]

    return Form("emberline", model, call, Rows.batch)


def plain(sharded: bool) -> Form:
    """TorchRec's modules."""
    model: Any = PlainModel(torch.device("meta") if sharded else None)
    if sharded:
        _apply_optimizer_in_backward(torch.optim.Adagrad, [*model.ebc.parameters(), *model.ec.parameters()], {"lr": LEARNING_RATE})
        sharders: list[Any] = [EmbeddingBagCollectionSharder(), EmbeddingCollectionSharder()]
        plan = {}
        for name, sharder in zip(("ebc", "ec"), sharders, strict=True):
            module = getattr(model, name)
            placement = table_wise(rank=0, device="cpu", compute_kernel=EmbeddingComputeKernel.FUSED.value)
            tables = dict.fromkeys(sharder.shardable_parameters(module), placement)
            plan[name] = construct_module_sharding_plan(module, tables, sharder=sharder, local_size=1, world_size=1, device_type="cpu")
        model = DistributedModelParallel(model, device=torch.device("cpu"), plan=ShardingPlan(plan), sharders=sharders, init_data_parallel=False)
    return Form("plain TorchRec", model, lambda batch: model(*batch), Rows.plain)


@torch.no_grad()
def set_weights(form: Form) -> None:
    """The same values in every form, from the names of tables and numbers alone."""
    for key, value in form.model.state_dict().items():
        tensor = value.local_shards()[0].tensor if hasattr(value, "local_shards") else value
        part = key.removesuffix(".weight").split(".")[-1]
        if tensor.shape == (TABLE_ROWS, DIM):
            tensor.copy_(_values(_table_number(part), TABLE_ROWS, DIM) * 0.1)
        elif part in ("w", "m", "meta"):
            tensor.copy_(torch.stack([_autodis_values(part, number) for number in range(len(RAW))]))
        else:
            kind, number = part.split("_raw_")
            tensor.copy_(_autodis_values({"proj_w": "w", "proj_m": "m", "meta_emb": "meta"}[kind], int(number)))


def _table_number(name: str) -> int:
    found = name.removesuffix("_table").removesuffix("_emb").removeprefix("seq__").removeprefix("seq_").removeprefix("id_")
    return int(found) if found.isdigit() else len(IDS) + [step.removeprefix("seq__") for step in STEPS].index(found)


def _autodis_values(part: str, number: int) -> Tensor:
    shape = {"w": (NUM_CHANNELS,), "m": (NUM_CHANNELS, NUM_CHANNELS), "meta": (NUM_CHANNELS, DIM)}[part]
    return _values(1000 + 10 * number + len(part), *shape) * 0.3


def _values(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))
