"""Interactions against loops over all pairs."""

import pytest
import torch

from emberline.train.models.interaction import DotInteraction, FactorizationMachine


@pytest.mark.parametrize("with_itself", [False, True])
def test_dot_interaction_is_all_pairs(with_itself: bool) -> None:
    vectors = torch.randn(3, 4, 5)
    layer = DotInteraction(4, with_itself=with_itself)
    pairs = [(row, column) for row in range(4) for column in range(row + with_itself)]
    expected = torch.stack([(vectors[:, row] * vectors[:, column]).sum(1) for row, column in pairs], dim=1)
    torch.testing.assert_close(layer(vectors), expected)
    assert layer.out_dim == len(pairs)
    assert layer(vectors[:0]).shape == (0, len(pairs))
    assert list(layer.state_dict()) == []


def test_one_vector_alone_has_no_pairs() -> None:
    assert DotInteraction(1)(torch.randn(3, 1, 5)).shape == (3, 0)


def test_factorization_machine_is_the_sum_of_all_pairs() -> None:
    vectors = torch.randn(3, 4, 5)
    expected = sum(vectors[:, row] * vectors[:, column] for row in range(4) for column in range(row))
    torch.testing.assert_close(FactorizationMachine()(vectors), expected)
