import pytest
import torch

from emberline.train.encoders import MultiWindowDinEncoderConfig, build_encoder
from tests.train.encoders.by_hand import multi_window_din_by_hand
from tests.train.encoders.conftest import DIM, inputs, make, mlp


@pytest.mark.parametrize(("query_dim", "sequence_dim"), [(12, 12), (12, 16)])
def test_equals_the_formula(query_dim: int, sequence_dim: int) -> None:
    windows = (1, 1, 2, 2, 5, 10)
    torch.manual_seed(0)
    encoder = build_encoder(MultiWindowDinEncoderConfig(attn_mlp=mlp(8, 4), windows_len=windows), query_dim, sequence_dim).double().eval()
    batch = inputs([2, 3, 4, 21, 0, 12], 21, junk=-1.0, query_dim=query_dim, sequence_dim=sequence_dim)
    found = encoder(*batch)
    assert encoder.output_dim == 7 * sequence_dim
    assert found.shape == (6, 7 * sequence_dim)
    torch.testing.assert_close(found, multi_window_din_by_hand(encoder, batch, windows), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("keep", ["oldest", "newest", "all"])
def test_steps_beyond_the_windows(keep: str) -> None:
    encoder = make("windows", keep=keep)
    batch = inputs([8, 5, 6, 1, 0], 9)
    torch.testing.assert_close(encoder(*batch), multi_window_din_by_hand(encoder, batch, (1, 2, 2), keep), rtol=1e-9, atol=1e-11)


def test_a_row_without_steps_keeps_its_query() -> None:
    batch = inputs([0, 2])
    found = make("windows")(*batch)[0]
    assert torch.equal(found, torch.cat([torch.zeros(3 * DIM, dtype=torch.float64), batch.query[0]]))
