import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from emberline.train.kernels import FusedTables, Sgd, Table, TableBank
from emberline.train.kernels.rounding import round_by_chance

DTYPES = [torch.bfloat16, torch.float16]


def neighbours(exact: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The largest number of the type that is not above one, and the smallest that is not below."""
    nearest, infinity = exact.to(dtype), torch.full_like(exact, float("inf"), dtype=dtype)
    below = torch.where(nearest.double() > exact.double(), torch.nextafter(nearest, -infinity), nearest)
    return below.double(), torch.where(nearest.double() < exact.double(), torch.nextafter(nearest, infinity), nearest).double()


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=100)
@given(numbers=st.lists(st.floats(width=32), min_size=1, max_size=50), seed=st.integers(0, 2**31))
def test_numbers_are_rounded_to_a_neighbour(dtype: torch.dtype, numbers: list[float], seed: int) -> None:
    torch.manual_seed(seed)
    exact = torch.tensor(numbers, dtype=torch.float32)
    found = round_by_chance(exact, dtype)
    assert found.dtype == dtype
    finite = exact.isfinite()
    below, above = neighbours(exact, dtype)
    assert bool(((found.double() == below) | (found.double() == above))[finite].all())
    torch.testing.assert_close(found[~finite].float(), exact[~finite], rtol=0, atol=0, equal_nan=True)
    held = exact.to(dtype)
    torch.testing.assert_close(round_by_chance(held.float(), dtype), held, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(("dtype", "scale", "steps"), [(torch.bfloat16, 1.0, 128), (torch.float16, 1.0, 1024), (torch.float16, 2.0**-24, 1)])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_number_is_rounded_up_as_often_as_it_is_near(dtype: torch.dtype, scale: float, steps: int, share: float, sign: int) -> None:
    torch.manual_seed(0)
    found = round_by_chance(torch.full((40_000,), sign * scale * (1 + share / steps)), dtype)
    low, high = sign * scale, sign * scale * (1 + 1 / steps)
    assert set(found.tolist()) == ({low, high} if share else {low})
    assert (found == high).double().mean().item() == pytest.approx(share, abs=0.01)


@pytest.mark.parametrize(("dtype", "steps"), [(torch.bfloat16, 128), (torch.float16, 1024)])
def test_steps_smaller_than_a_number_can_show_are_not_lost(dtype: torch.dtype, steps: int) -> None:
    """A hundred steps of an eighth of what the type shows at 1: rounding to the nearest would stay at 1 for ever."""
    torch.manual_seed(0)
    ends = {}
    for by_chance in (True, False):
        tables = FusedTables(TableBank([Table("t", 6, 400)], [0], dtype), Sgd(lr=1 / (8 * steps)), stochastic_rounding=by_chance)
        tables.bank.weights()[0].fill_(1.0)
        for _ in range(100):
            tables.pooled(torch.arange(6), torch.tensor([0, 6]), 1).sum().backward()  # type: ignore[no-untyped-call]
        ends[by_chance] = tables.bank.weights()[0].double().mean().item()
    assert ends[True] == pytest.approx(1 - 100 / (8 * steps), abs=0.25 / steps)
    assert ends[False] == 1.0
