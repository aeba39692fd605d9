"""Updates that wait: one update with the sum of several gradients. Whole steps of several batches are in `test_training_step`."""

import pytest
import torch
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder

from emberline.errors import ConfigError
from emberline.train.optim.held import HeldUpdates
from tests.train.optim.small_model import make_small, random_batch

CONFIG = "sparse_optimizer { adagrad_optimizer { lr: 0.5 } } dense_optimizer { sgd_optimizer { lr: 0 } }"


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_gradients_add_up_to_one_update(share: float) -> None:
    small, twin = make_small(CONFIG), make_small(CONFIG)
    held = HeldUpdates(small.model, {"frozen"})
    before = {name: table.clone() for name, table in small.tables().items()}
    for factor in (1.0, 2.0):
        torch.autograd.backward(small.model(random_batch(0)[0]).sum() * factor)
    assert all(torch.equal(before[name], table) for name, table in small.tables().items())
    held.apply(share)
    torch.autograd.backward(twin.model(random_batch(0)[0]).sum() * (3.0 / share))
    for name, table in twin.tables().items():
        torch.testing.assert_close(small.tables()[name], table, atol=1e-6, rtol=1e-6)
    for name, moment in twin.moments().items():
        torch.testing.assert_close(small.moments()[name], moment, atol=1e-6, rtol=1e-6)


def test_what_is_dropped_is_gone() -> None:
    small = make_small(CONFIG)
    held = HeldUpdates(small.model, {"frozen"})
    before = {name: table.clone() for name, table in small.tables().items()}
    torch.autograd.backward(small.model(random_batch(0)[0]).sum())
    held.drop()
    held.apply()
    assert all(torch.equal(before[name], table) for name, table in small.tables().items())


def test_kernels_that_cannot_wait_are_named_unless_they_are_frozen() -> None:
    small = make_small(CONFIG, sharders=[EmbeddingBagCollectionSharder()])
    with pytest.raises(ConfigError, match="tables a, b are in kernels that learn from each batch at once"):
        HeldUpdates(small.model, {"frozen"})
    HeldUpdates(small.model, {"a", "b", "frozen"})
