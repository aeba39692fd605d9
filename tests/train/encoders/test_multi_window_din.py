import pytest
import torch
from torch import Tensor, nn

from emberline.train.encoders import MultiWindowDinEncoderConfig, build_encoder
from emberline.train.encoders.multi_window_din import MultiWindowDinEncoder
from tests.train.encoders.conftest import DIM, Inputs, inputs, make, mlp


def loop(encoder: nn.Module, batch: Inputs, windows: tuple[int, ...], keep: str = "oldest") -> Tensor:
    """Step by step, each into its window."""
    assert isinstance(encoder, MultiWindowDinEncoder)
    rows = []
    for query, sequence, length in zip(*batch, strict=True):
        width = sequence.shape[1]
        wide = torch.cat([query, query.new_zeros(width - len(query))])
        steps = list(sequence[: int(length)])
        if keep != "all":
            steps = steps[: sum(windows)] if keep == "oldest" else steps[max(len(steps) - sum(windows), 0) :]
        weighted = []
        for step in steps:
            score = encoder.attention.linear(encoder.attention.mlp(torch.cat([step, wide * step, wide])[None]))
            weighted.append(encoder.activation(score)[0] * step)
        parts = []
        for number, size in enumerate(windows):
            size = len(weighted) if keep == "all" and number == len(windows) - 1 else size
            window, weighted = weighted[:size], weighted[size:]
            parts.append(sum(window, torch.zeros_like(wide)) / max(len(window), 1))
        assert not weighted
        rows.append(torch.cat([*parts, wide]))
    return torch.stack(rows)


@pytest.mark.parametrize(("query_dim", "sequence_dim"), [(12, 12), (12, 16)])
def test_equals_the_formula(query_dim: int, sequence_dim: int) -> None:
    windows = (1, 1, 2, 2, 5, 10)
    torch.manual_seed(0)
    encoder = build_encoder(MultiWindowDinEncoderConfig(attn_mlp=mlp(8, 4), windows_len=windows), query_dim, sequence_dim).double().eval()
    batch = inputs([2, 3, 4, 21, 0, 12], 21, junk=-1.0, query_dim=query_dim, sequence_dim=sequence_dim)
    found = encoder(*batch)
    assert encoder.output_dim == 7 * sequence_dim
    assert found.shape == (6, 7 * sequence_dim)
    torch.testing.assert_close(found, loop(encoder, batch, windows), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("keep", ["oldest", "newest", "all"])
def test_steps_beyond_the_windows(keep: str) -> None:
    encoder = make("windows", keep=keep)
    batch = inputs([8, 5, 6, 1, 0], 9)
    torch.testing.assert_close(encoder(*batch), loop(encoder, batch, (1, 2, 2), keep), rtol=1e-9, atol=1e-11)


def test_a_row_without_steps_keeps_its_query() -> None:
    batch = inputs([0, 2])
    found = make("windows")(*batch)[0]
    assert torch.equal(found, torch.cat([torch.zeros(3 * DIM, dtype=torch.float64), batch.query[0]]))
