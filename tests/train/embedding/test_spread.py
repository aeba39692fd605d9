"""Parts put side by side: the same numbers and gradients, with or without a copy."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from emberline.train.embedding.spread import side_by_side


def cut(matrix: Tensor, places: list[int], widths: list[int], rows: int) -> list[Tensor]:
    """Some of a matrix's column parts, and their first rows."""
    parts = torch.split(matrix, widths, dim=1)
    return [parts[place][:rows] for place in places]


@settings(deadline=None, max_examples=100)
@given(data=st.data(), grad=st.booleans())
def test_any_parts_of_matrices_are_what_a_concatenation_gives(data: Any, grad: bool) -> None:
    rows = data.draw(st.integers(0, 4))
    widths = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=5))
    places = data.draw(st.lists(st.tuples(st.integers(0, 1), st.integers(0, len(widths) - 1)), min_size=1, max_size=7))
    kept = data.draw(st.integers(0, rows))
    leaves = [torch.randn(rows, sum(widths), requires_grad=grad) for _ in range(2)]
    matrices = [leaf * 2 for leaf in leaves]
    parts = [cut(matrices[which], [place], widths, kept)[0] for which, place in places]
    found, expected = side_by_side(parts), torch.cat([part.clone() for part in parts], dim=1)
    assert torch.equal(found, expected)
    if grad:
        weights = torch.randn(expected.shape)
        gradients = [torch.autograd.grad(tensor, leaves, weights, retain_graph=True, materialize_grads=True) for tensor in (found, expected)]
        assert all(torch.allclose(one, other) for one, other in zip(*gradients, strict=True))


@pytest.mark.parametrize(("places", "is_view"), [([0, 1, 2], True), ([1, 2], True), ([0, 2], False), ([1, 0], False), ([1, 1], False)])
def test_neighbours_of_one_matrix_are_not_copied(places: list[int], is_view: bool) -> None:
    matrix = torch.arange(12.0).view(2, 6).clone()
    parts = cut(matrix, places, [1, 2, 3], 2)
    found = side_by_side(parts)
    assert torch.equal(found, torch.cat(parts, dim=1))
    assert (found.untyped_storage().data_ptr() == matrix.untyped_storage().data_ptr()) == is_view


def test_rows_and_columns_of_other_shapes_are_copied() -> None:
    matrix = torch.arange(24.0).view(4, 6).clone()
    transposed = matrix.t()
    for parts in ([matrix[1:3, :2], matrix[1:3, 2:4]], [transposed[:, :1], transposed[:, 1:2]], [matrix[0:2, 4:6], matrix[2:4, 0:2]]):
        assert torch.equal(side_by_side(parts), torch.cat(parts, dim=1))
