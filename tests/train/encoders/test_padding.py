"""What holds for every encoder: rows without steps, no steps at all, padding of any length and content, large numbers in half precision."""

import warnings

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch import Tensor

from tests.train.encoders.conftest import DIM, KINDS, LIMITED, WINDOWS, Inputs, inputs, make

ROWS = st.lists(st.integers(0, 6), min_size=1, max_size=5)
QUICK = settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def expected_when_empty(kind: str, query: Tensor, output_dim: int) -> Tensor:
    if kind == "windows":
        return torch.cat([query.new_zeros(len(query), len(WINDOWS) * DIM), query], dim=1)
    return query.new_zeros(len(query), output_dim)


@pytest.mark.parametrize("lengths", [[4, 0, 1], [0, 0], [0], []])
@pytest.mark.parametrize("padded", [0, 4])
def test_rows_without_steps(kind: str, lengths: list[int], padded: int) -> None:
    encoder = make(kind)
    batch = inputs([min(length, padded) for length in lengths], padded, junk=-1.0)
    found = encoder(*batch)
    assert found.shape == (len(lengths), encoder.output_dim)
    assert found.isfinite().all()
    empty = batch.lengths == 0
    assert torch.equal(found[empty], expected_when_empty(kind, batch.query[empty], int(encoder.output_dim)))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", LIMITED)
@pytest.mark.parametrize("keep", ["oldest", "newest"])
def test_the_limit_keeps_the_named_end(kind: str, keep: str) -> None:
    lengths = [5, 2, 0, 3]
    batch = inputs(lengths)
    kept = torch.zeros(4, 2, DIM, dtype=torch.float64)
    for row, length in enumerate(lengths):
        steps = batch.sequence[row, :length]
        steps = steps[:2] if keep == "oldest" else steps[max(length - 2, 0) :]
        kept[row, : len(steps)] = steps
    found = make(kind, max_seq_length=2, keep=keep)(*batch)
    expected = make(kind)(batch.query, kept, batch.lengths.clamp(max=2))
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@given(lengths=ROWS, extra=st.integers(0, 4), junk=st.sampled_from([0.0, -1.0, 1e30, float("nan"), float("inf")]), seed=st.integers(0, 99))
@QUICK
def test_padding_reaches_neither_answers_nor_gradients(kind: str, lengths: list[int], extra: int, junk: float, seed: int) -> None:
    results = []
    for batch in (inputs(lengths, seed=seed), inputs(lengths, max(lengths) + extra, junk=junk, seed=seed)):
        encoder = make(kind)
        batch.query.requires_grad_()
        batch.sequence.requires_grad_()
        out = encoder(*batch)
        leaves = [batch.sequence, batch.query, *encoder.parameters()]
        of_sequence, *others = torch.autograd.grad(out.square().sum(), leaves, allow_unused=True, materialize_grads=True)
        assert of_sequence.isfinite().all()
        padding = torch.arange(of_sequence.shape[1]) >= batch.lengths.unsqueeze(1)
        assert not of_sequence[padding].any()
        results.append((out.detach(), of_sequence[:, : max(lengths)], *others))
    torch.testing.assert_close(results[1], results[0], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("kind", KINDS)
@given(lengths=ROWS, seed=st.integers(0, 99))
@QUICK
def test_a_row_is_answered_alone_as_in_a_batch(kind: str, lengths: list[int], seed: int) -> None:
    encoder = make(kind)
    batch = inputs(lengths, seed=seed)
    together = encoder(*batch)
    for row, length in enumerate(lengths):
        alone = encoder(batch.query[row : row + 1], batch.sequence[row : row + 1, :length], batch.lengths[row : row + 1])
        torch.testing.assert_close(together[row : row + 1], alone, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("kind", ["simple", "mean"])
def test_large_numbers_in_half_precision(kind: str) -> None:
    """A dot product beyond 65504 would be infinite in half precision, and the softmax of it no number."""
    batch = inputs([4, 0, 1], dtype=torch.float32)
    large = Inputs(batch.query * 1000, batch.sequence * 1000, batch.lengths)
    with torch.autocast("cpu", torch.float16):
        found = make(kind, dtype=torch.float32)(*large)
    torch.testing.assert_close(found.float(), make(kind, dtype=torch.float32)(*large), rtol=1e-2, atol=1.0)
    halves = make(kind)(large.query.half(), large.sequence.half(), large.lengths)
    assert halves.dtype == torch.float16
    torch.testing.assert_close(halves.float(), make(kind)(*large), rtol=1e-2, atol=1.0)


def test_training_gradients_are_finite(kind: str) -> None:
    encoder = make(kind).train()
    batch = inputs([3, 0, 1], 5, junk=float("nan"))
    batch.sequence.requires_grad_()
    encoder(*batch).square().sum().backward()
    for name, leaf in (("sequence", batch.sequence), *encoder.named_parameters()):
        assert leaf.grad is not None, name
        assert leaf.grad.isfinite().all(), name


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_lengths_of_either_integer_type(kind: str, dtype: torch.dtype) -> None:
    batch = inputs([2, 0, 3])
    encoder = make(kind)
    assert torch.equal(encoder(batch.query, batch.sequence, batch.lengths.to(dtype)), encoder(*batch))


def test_state_fits_its_own_kind(kind: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first, second = make(kind), make(kind)
        second.load_state_dict(first.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(first.state_dict().values(), second.state_dict().values(), strict=True))
