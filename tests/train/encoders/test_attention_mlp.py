"""Batch normalisation in an attention MLP: statistics over the steps that are there."""

import pytest
import torch
from torch import nn

from tests.train.encoders.conftest import Inputs, inputs, make


def norms(encoder: nn.Module) -> list[nn.BatchNorm1d]:
    return [module for module in encoder.modules() if isinstance(module, nn.BatchNorm1d)]


@pytest.mark.parametrize("kind", ["din_bn", "din_dice"])
def test_training_equals_torch_on_the_steps_alone(kind: str) -> None:
    """One long row without padding is the same to torch's own normalisation as to ours."""
    ours, theirs = make(kind).train(), make(kind).train()
    batch = inputs([6])
    parts = [batch.query.expand(6, -1), batch.sequence[0]]
    wide = torch.cat([*parts, parts[0] - parts[1], parts[0] * parts[1]], dim=1)
    attention = theirs.get_submodule("attention")
    scores = attention.get_submodule("linear")(attention.get_submodule("mlp")(wide))
    expected = (scores.softmax(0) * batch.sequence[0]).sum(0)
    padded = inputs([6, 0], 9, junk=5.0)
    found = ours(*padded)
    torch.testing.assert_close(found[0], expected, rtol=1e-9, atol=1e-11)
    for a, b in zip(norms(ours), norms(theirs), strict=True):
        torch.testing.assert_close(a.state_dict(), b.state_dict())


@pytest.mark.parametrize("kind", ["din_bn", "din_dice"])
@pytest.mark.parametrize("lengths", [[0, 0], [0, 1], []])
def test_too_few_steps_leave_the_statistics_alone(kind: str, lengths: list[int]) -> None:
    encoder = make(kind)
    batch = inputs(lengths, 3)
    before = [{name: value.clone() for name, value in norm.state_dict().items()} for norm in norms(encoder)]
    expected = encoder(*batch)
    torch.testing.assert_close(encoder.train()(*batch), expected)
    torch.testing.assert_close([dict(norm.state_dict()) for norm in norms(encoder)], before, rtol=0, atol=0)


@pytest.mark.parametrize("kind", ["din_bn", "din_dice"])
def test_training_is_independent_of_padding(kind: str) -> None:
    results = []
    for padded, junk in ((3, 0.0), (3, float("nan")), (8, 1e9)):
        encoder = make(kind).train()
        batch: Inputs = inputs([3, 1, 2], padded, junk=junk)
        out = encoder(*batch)
        grads = torch.autograd.grad(out.square().sum(), list(encoder.parameters()))
        results.append((out.detach(), grads, [norm.running_var for norm in norms(encoder)]))
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], rtol=1e-10, atol=1e-12)
