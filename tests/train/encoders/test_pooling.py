import pytest
import torch

from tests.train.encoders.by_hand import pooling_by_hand
from tests.train.encoders.conftest import inputs, make

LENGTHS = [2, 3, 4, 5]


def ones(dim: int = 16) -> tuple[None, torch.Tensor, torch.Tensor]:
    present = torch.arange(10) < torch.tensor(LENGTHS).unsqueeze(1)
    return None, present.unsqueeze(2).expand(-1, -1, dim).float(), torch.tensor(LENGTHS)


@pytest.mark.parametrize("max_seq_length", [0, 3])
def test_mean_of_ones_is_exactly_one(max_seq_length: int) -> None:
    encoder = make("mean", sequence_dim=16, dtype=torch.float32, max_seq_length=max_seq_length)
    assert encoder.output_dim == 16
    assert torch.equal(encoder(*ones()), torch.ones(4, 16))


@pytest.mark.parametrize(("max_seq_length", "expected"), [(0, [2, 3, 4, 5]), (3, [2, 3, 3, 3])])
def test_sum_of_ones_counts_the_steps(max_seq_length: int, expected: list[int]) -> None:
    encoder = make("sum", sequence_dim=16, dtype=torch.float32, max_seq_length=max_seq_length)
    assert torch.equal(encoder(*ones()), torch.tensor(expected).float().unsqueeze(1).expand(-1, 16))


@pytest.mark.parametrize("keep", ["oldest", "newest"])
@pytest.mark.parametrize("pooling", ["sum", "mean"])
def test_equals_a_loop(pooling: str, keep: str) -> None:
    batch = inputs([3, 0, 1, 5], 6, junk=-1.0)
    found = make(pooling, max_seq_length=2, keep=keep)(*batch)
    torch.testing.assert_close(found, pooling_by_hand(batch, pooling, 2, keep), rtol=1e-12, atol=1e-12)
