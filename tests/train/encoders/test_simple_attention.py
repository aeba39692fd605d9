import pytest
import torch

from tests.train.encoders.by_hand import simple_attention_by_hand
from tests.train.encoders.conftest import inputs, make


@pytest.mark.parametrize("max_seq_length", [0, 3])
def test_equals_a_loop(max_seq_length: int) -> None:
    batch = inputs([2, 3, 4, 5, 0], 10, query_dim=16, sequence_dim=16)
    encoder = make("simple", 16, 16, max_seq_length=max_seq_length)
    found = encoder(*batch)
    assert encoder.output_dim == 16
    assert found.shape == (5, 16)
    torch.testing.assert_close(found, simple_attention_by_hand(batch, max_seq_length), rtol=1e-10, atol=1e-12)


def test_scores_of_any_size() -> None:
    batch = inputs([3, 2], query_dim=4)
    large = make("simple")(batch.query * 1e6, batch.sequence, batch.lengths)
    best = (batch.sequence * batch.query.unsqueeze(1)).sum(2).masked_fill(torch.tensor([[False] * 3, [False, False, True]]), -1e9).argmax(1)
    torch.testing.assert_close(large, batch.sequence[torch.arange(2), best])
