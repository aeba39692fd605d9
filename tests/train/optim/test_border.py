"""The border behind the kernels: what waits there, what goes on, and what never comes."""

import torch
from torch import Tensor

from emberline.train.optim.border import TableBorder, kernels_of
from tests.train.optim.small_model import Small, make_small, random_batch

CONFIG = "sparse_optimizer { sgd_optimizer { lr: 1 } } dense_optimizer { sgd_optimizer { lr: 0 } }"


def backward(small: Small, factor: float = 1.0) -> None:
    kjt, _ = random_batch(0)
    torch.autograd.backward(small.model(kjt).sum() * factor)


def moved(small: Small, before: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: table - before[name] for name, table in small.tables().items()}


def copied(small: Small) -> dict[str, Tensor]:
    return {name: table.clone() for name, table in small.tables().items()}


def test_every_kernel_is_found_with_its_tables() -> None:
    assert sorted(sorted(tables) for _, tables in kernels_of(make_small(CONFIG).model)) == [["a", "b"], ["frozen"]]


def test_gradients_wait_until_they_are_released() -> None:
    free, small = make_small(CONFIG), make_small(CONFIG)
    before = copied(small)
    backward(free)
    border = TableBorder(small.model, frozen={"frozen"}, hold=True)
    backward(small)
    assert all(not change.any() for change in moved(small, before).values())
    (gradient,) = border.gradients()
    gradient.mul_(2)  # what is released is what is there
    border.release()
    assert border.gradients() == []
    for name, change in moved(small, before).items():
        torch.testing.assert_close(change, 2 * moved(free, before)[name])
    after = copied(small)
    border.release()
    backward(small)
    border.discard()
    border.release()
    assert all(not change.any() for change in moved(small, after).values())


def test_a_bound_holds_for_each_number_of_a_vector() -> None:
    small = make_small(CONFIG)
    TableBorder(small.model, bound=0.25)
    before = copied(small)
    backward(small, factor=1e6)  # every number is far beyond the bound
    counts = {name: random_batch(0)[0][name].values().bincount(minlength=7).double() for name in ("a", "b")}
    for name, count in counts.items():
        change = moved(small, before)[name].double().abs()
        assert (change <= 0.25 * count.unsqueeze(1) + 1e-6).all()
        torch.testing.assert_close(change[count == 1], torch.full_like(change[count == 1], 0.25), atol=1e-6, rtol=0)


def test_nothing_is_kept_where_no_gradient_is_wanted() -> None:
    small = make_small(CONFIG)
    border = TableBorder(small.model, hold=True)
    with torch.no_grad():
        small.model(random_batch(0)[0])
    assert border.gradients() == []
    border.release()
