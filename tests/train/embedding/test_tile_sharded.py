"""Tiled batches under DistributedModelParallel: one process, gloo, fused kernels."""

from typing import Any

import pytest
import torch
from torch import nn
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

from emberline.train.data import Batch
from emberline.train.embedding import EmbeddingGroup
from emberline.train.sharding import create_sharders, create_single_process_plan
from emberline.train.zch import zch_modules
from tests.train.embedding.tiled_case import Case, draw, features, groups

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.usefixtures("group_of_one"),
]


class Model(nn.Module):
    """A group below a module."""

    def __init__(self, group: EmbeddingGroup) -> None:
        super().__init__()
        self.group = group

    def forward(self, batch: Batch) -> dict[str, torch.Tensor]:
        return dict(self.group(batch))


def sharded(make: Any, *, zch: bool = False) -> tuple[EmbeddingGroup, DistributedModelParallel]:
    """A group, and another of equal values, sharded, with Adagrad in the tables."""
    torch.manual_seed(0)
    plain, other = (EmbeddingGroup(features(make, zch=zch), groups(make)) for _ in range(2))
    other.load_state_dict(plain.state_dict())
    apply_optimizer_in_backward(torch.optim.Adagrad, other.table_weights().values(), {"lr": 0.1, "eps": 1e-8})
    model, sharders = Model(other), create_sharders()
    plan = create_single_process_plan(model, sharders)
    result = DistributedModelParallel(model, device=torch.device("cpu"), plan=plan, sharders=sharders)
    copy_tables(plain, result)
    return plain, result


def copy_tables(plain: EmbeddingGroup, model: DistributedModelParallel) -> None:
    """Give the sharded tables the values of the others."""
    values = plain.table_weights()
    for name, tensor in model.state_dict().items():
        if name.endswith(".weight") and name.split(".")[-2] in values:
            tensor.local_shards()[0].tensor.copy_(values[name.split(".")[-2]].detach())


def cases(make: Any) -> list[Case]:
    """Several users, one, users without rows, no rows, no users, no steps."""
    shapes = [([1, 0, 1, 2], 3, 3), ([0] * 5, 1, 3), ([2, 2], 4, 3), ([], 2, 3), ([], 0, 3), ([0, 1], 2, 0)]
    return [draw(make, seed, rows, users, most) for seed, (rows, users, most) in enumerate(shapes)]


def assert_close(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert list(found) == list(expected)
    for key, tensor in expected.items():
        torch.testing.assert_close(found[key], tensor, rtol=1e-5, atol=1e-5)


def test_training_on_tiled_batches_equals_the_unsharded_group_on_untiled_ones(make: Any) -> None:
    """A user's gradients of all rows meet in one id, and must move the table and its moments once, by their sum."""
    plain, model = sharded(make)
    optimizer = torch.optim.Adagrad(plain.table_weights().values(), lr=0.1, eps=1e-8)
    for case in cases(make):
        expected, found = plain(case.untiled), model(case.tiled)
        assert_close(found, expected)
        optimizer.zero_grad()
        for outputs in (expected, found):
            sum(tensor.square().sum() for tensor in outputs.values() if tensor.is_floating_point()).backward()
        optimizer.step()


def test_zch_in_eval_mode(make: Any) -> None:
    plain, model = sharded(make, zch=True)
    for case in cases(make)[:2]:
        for group in (plain.train(), model.train()):
            group(case.untiled)
    copy_tables(plain, model)  # rows that changed owner began anew
    maps, sharded_maps = zch_modules(plain), zch_modules(model)
    assert all(torch.equal(maps[name].rows_of(torch.arange(10)), module.rows_of(torch.arange(10))) for name, module in sharded_maps.items())
    plain.eval(), model.eval()
    for case in cases(make):
        assert_close(model(case.tiled), plain(case.untiled))
