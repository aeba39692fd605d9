"""Batch normalisation over ranks, beside torch's over all rows at once."""

from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn

from emberline.train.batch_norm import SmallBatchNorm, normalise
from tests.train.rank_checks import NORM_ROWS, norm_factors, norm_rows


def test_ranks_normalise_as_one_process_does(checks: dict[str, Any]) -> None:
    folder, ranks = checks["norms"]
    assert [status for status, _ in ranks] == [0, 0, 0], ranks
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), SmallBatchNorm(4), nn.ReLU(), nn.BatchNorm1d(4, momentum=None), nn.BatchNorm1d(4, affine=False))
    out = model.train()(norm_rows())
    (out * norm_factors()).sum().backward()
    expected = {f"gradient/{name}": parameter.grad for name, parameter in model.named_parameters()}
    expected |= {f"buffer/{name}": buffer.float() for name, buffer in model.named_buffers()}
    parts = [load_file(folder / f"norms-{rank}.safetensors") for rank in range(len(NORM_ROWS))]
    torch.testing.assert_close(torch.cat([part.pop("out") for part in parts]), out.detach(), atol=1e-5, rtol=1e-5)
    for part in parts:
        assert set(part) == set(expected)
        for name, value in expected.items():
            torch.testing.assert_close(part[name], value, atol=1e-5, rtol=1e-5)
    assert all(torch.equal(parts[0][name], part[name]) for part in parts for name in expected if name.startswith("buffer"))


def test_absent_values_do_not_count_and_one_value_has_no_variance() -> None:
    norm, alike = nn.BatchNorm1d(2).train(), nn.BatchNorm1d(2).train()
    x = torch.randn(3, 4, 2, generator=torch.Generator().manual_seed(3))
    present = torch.tensor([[1, 1, 0, 0], [0, 0, 0, 0], [1, 1, 1, 0]], dtype=torch.bool)
    torch.testing.assert_close(normalise(norm, x, present)[present], alike(x[present]))
    torch.testing.assert_close(norm.running_var, alike.running_var)
    before = norm.running_mean
    assert before is not None
    before = before.clone()
    one = torch.zeros(3, 4, dtype=torch.bool)
    one[1, 2] = True
    out = normalise(norm, x, one)
    assert norm.running_var is not None
    torch.testing.assert_close(out, (x - before) / torch.sqrt(norm.running_var + norm.eps))
    torch.testing.assert_close(norm.running_mean, before)
    assert int(norm.num_batches_tracked or 0) == 1
