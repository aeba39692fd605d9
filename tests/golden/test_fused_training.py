"""Replays four recorded training steps of the reference under DistributedModelParallel: outputs, weights and moments after each.

One table is left out, and checked by hand instead: the reference's kernels, given a batch with weights, average a bag of a MEAN table in forward
but don't divide its gradient by the bag's length. Ours is the gradient of the mean, as without weights and as unsharded.
"""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from emberline.train import load_config
from emberline.train.config.optimizer_configs import FusedAdagradConfig, FusedRowWiseAdagradConfig, FusedSgdConfig, SparseOptimizer
from emberline.train.data import Batch
from emberline.train.embedding import EmbeddingGroup
from emberline.train.features import create_features
from emberline.train.interop import load_torcheasyrec_state
from emberline.train.optim import apply_sparse_optimizer
from emberline.train.sharding import create_sharders, create_single_process_plan, process_group, shard_model

TOLERANCE = 1e-5
MEAN_TABLE = "m_emb"
MEAN_COLUMNS = range(4, 12)
OPTIMIZERS: dict[str, SparseOptimizer] = {
    "fused_sgd": FusedSgdConfig(lr=0.05),
    "fused_adagrad": FusedAdagradConfig(lr=0.1),
    "fused_rowwise_adagrad": FusedRowWiseAdagradConfig(lr=0.1),
}
Arrays = dict[str, np.ndarray[Any, Any]]


def moments_of(sharded: Any) -> dict[str, torch.Tensor]:
    """The optimiser's moments by the kernel's names."""
    states = sharded.fused_optimizer.state_dict()["state"].values()
    return {key: moment.local_shards()[0].tensor for parts in states for key, moment in parts.items()}


def mean_gradient(batch: Batch, cotangent: np.ndarray[Any, Any], rows: int) -> np.ndarray[Any, Any]:
    """The gradient of the mean table: each id of a bag gets the bag's cotangent over its length."""
    bags = batch.sparse_features["__BASE__"]["m"]
    gradient = np.zeros((rows, cotangent.shape[1]))
    offsets = bags.offsets().tolist()
    for row, (begin, end) in enumerate(itertools.pairwise(offsets)):
        for one in bags.values()[begin:end].tolist():
            gradient[one] += cotangent[row] / (end - begin)
    return gradient


class Model(nn.Module):
    def __init__(self, group: EmbeddingGroup) -> None:
        super().__init__()
        self.group = group

    def forward(self, batch: Batch) -> dict[str, torch.Tensor]:
        result: dict[str, torch.Tensor] = self.group(batch)
        return result


def arrays(folder: Path, name: str) -> Arrays:
    with np.load(folder / f"{name}.npz") as file:
        return dict(file)


def batch_of(inputs: Arrays, step: str) -> Batch:
    where = f"{step}/sparse/__BASE__"
    names = list(dict.fromkeys(key.split("/")[3] for key in inputs if key.startswith(where)))
    parts = {kind: [inputs.get(f"{where}/{name}/{kind}") for name in names] for kind in ("values", "lengths", "weights")}
    ids = [torch.from_numpy(part) for part in parts["values"]]
    weights = [torch.ones(len(own)) if part is None else torch.from_numpy(part) for own, part in zip(ids, parts["weights"], strict=True)]
    lengths = torch.cat([torch.from_numpy(part) for part in parts["lengths"]])
    return Batch(sparse_features={"__BASE__": KeyedJaggedTensor(keys=names, values=torch.cat(ids), lengths=lengths, weights=torch.cat(weights))})


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("case", list(OPTIMIZERS))
def test_steps(golden_root: Path, case: str) -> None:
    folder = golden_root.parent / "fused" / case
    config = load_config(folder / "config.pbtxt")
    group = EmbeddingGroup(create_features(config.feature_configs), config.feature_groups)
    load_torcheasyrec_state(group, {name.removeprefix("eg."): value for name, value in arrays(folder, "weights").items()})
    values = {name: weight.detach().clone() for name, weight in group.pooled.table_weights().items()}
    inputs, steps = arrays(folder, "inputs"), arrays(folder, "steps")
    compared = 0
    with process_group():
        sharders = create_sharders()
        plan = create_single_process_plan(Model(group), sharders)
        apply_sparse_optimizer(group.pooled.table_weights(), OPTIMIZERS[case])
        sharded = shard_model(Model(group), plan, sharders)
        tables = {name.split(".")[-2]: tensor.local_shards()[0].tensor for name, tensor in sharded.state_dict().items()}
        for name, tensor in tables.items():
            tensor.copy_(values[name])
        for step in sorted({key.split("/")[0] for key in steps}):
            batch, before = batch_of(inputs, step), tables[MEAN_TABLE].double().numpy().copy()
            result = sharded(batch)
            for name, tensor in result.items():
                kept = [column for column in range(tensor.shape[1]) if name != "deep" or column not in MEAN_COLUMNS or step == "s0"]
                assert np.abs(tensor.detach().numpy() - steps[f"{step}/out/{name}"])[:, kept].max() <= TOLERANCE
            sum((tensor * torch.from_numpy(steps[f"{step}/cotangent/{name}"])).sum() for name, tensor in result.items()).backward()
            found = moments_of(sharded)
            for key, value in steps.items():
                if MEAN_TABLE in key:
                    continue
                if key.startswith(f"{step}/weight/"):
                    assert np.abs(tables[key.split(".")[-2]].numpy() - value).max() <= TOLERANCE, key
                    compared += 1
                elif key.startswith(f"{step}/state/"):
                    assert np.abs(found[key.rsplit("/", 1)[1]].numpy().reshape(value.shape) - value).max() <= TOLERANCE, key
            if case == "fused_sgd":
                gradient = mean_gradient(batch, steps[f"{step}/cotangent/deep"][:, list(MEAN_COLUMNS)], len(before))
                assert np.abs(tables[MEAN_TABLE].numpy() - (before - 0.05 * gradient)).max() <= TOLERANCE
    assert compared == 4 * 5
