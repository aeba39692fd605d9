import torch
from hypothesis import given
from hypothesis import strategies as st

from emberline.train.kernels.segments import by_row


@given(
    ids=st.lists(st.integers(0, 12), max_size=60),
    int32=st.booleans(),
    with_sources=st.booleans(),
    with_factors=st.booleans(),
    dim=st.integers(1, 5),
    seed=st.integers(0, 99),
)
def test_sums_are_those_of_a_dict(ids: list[int], int32: bool, with_sources: bool, with_factors: bool, dim: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    gradients = torch.randn(9 if with_sources else len(ids), dim, generator=generator)
    sources = torch.randint(9, (len(ids),), generator=generator) if with_sources else torch.arange(len(ids))
    factors = torch.randn(len(ids), generator=generator)
    found = by_row(
        torch.tensor(ids, dtype=torch.int32 if int32 else torch.int64),
        gradients,
        sources if with_sources else None,
        factors if with_factors else None,
    )
    expected: dict[int, torch.Tensor] = {}
    for place, row in enumerate(ids):
        part = gradients[sources[place]].double() * (factors[place].double() if with_factors else 1)
        expected[row] = expected.get(row, torch.zeros(dim, dtype=torch.float64)) + part
    assert found.rows.tolist() == sorted(expected)
    assert found.rows.dtype == torch.int64
    whole = found.sums(0, len(expected))
    wanted = torch.stack([expected[row] for row in sorted(expected)]) if expected else torch.empty(0, dim, dtype=torch.float64)
    torch.testing.assert_close(whole.double(), wanted, rtol=1e-5, atol=1e-6)
    middle = len(expected) // 2
    assert torch.equal(torch.cat([found.sums(0, middle), found.sums(middle, len(expected))]), whole)


def test_the_same_bits_for_any_number_of_threads() -> None:
    generator = torch.Generator().manual_seed(0)
    ids, gradients = torch.randint(50, (100_000,), generator=generator), torch.randn(100_000, 4, generator=generator)
    threads, found = torch.get_num_threads(), []
    for number in (1, 2, 3):
        torch.set_num_threads(number)
        found.append(by_row(ids, gradients).sums(0, 50))
    torch.set_num_threads(threads)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
