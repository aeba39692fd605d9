"""Reads of bags: together or one by one, the same numbers."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from emberline.schema import Pooling
from emberline.train.embedding.bag_reads import BagRead, bag_read, lay_together, read_bags

DIMS = (1, 3, 4, 16)


def tables(seed: int, dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    """One table of 7 rows of each width."""
    torch.manual_seed(seed)
    return [nn.Parameter(torch.randn(7, dim).to(dtype)) for dim in DIMS]


def by_hand(read: BagRead) -> Tensor:
    """The definition, bag by bag in float64."""
    assert read.ids is not None
    sizes = [1] * read.ids.numel() if read.sizes is None else read.sizes.tolist()
    result, start = torch.zeros(len(sizes), read.table.shape[1], dtype=torch.float64), 0
    for row, size in enumerate(sizes):
        for place in range(start, start + size):
            weight = 1.0 if read.weights is None else float(read.weights[place])
            result[row] += weight * read.table[read.ids[place]].detach().double()
        result[row] /= max(size, 1) if read.mean else 1
        start += size
    return result


@settings(deadline=None, max_examples=60)
@given(data=st.data(), num_bags=st.integers(0, 4), together=st.booleans(), dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16]))
def test_reads_of_any_bags_tables_and_types_give_the_sums(data: Any, num_bags: int, together: bool, dtype: torch.dtype) -> None:
    weights = tables(0, dtype)
    if together:
        lay_together(weights)
    reads = []
    for table in weights:
        sizes = torch.tensor(data.draw(st.lists(st.integers(0, 3), min_size=num_bags, max_size=num_bags)), dtype=torch.int32)
        total = int(sizes.sum())
        ids = torch.tensor(data.draw(st.lists(st.integers(0, 6), min_size=total, max_size=total)), dtype=torch.int64)
        of_ids = torch.rand(total) if data.draw(st.booleans()) else None
        mean = of_ids is None and data.draw(st.booleans())
        reads.append(BagRead(table, ids, sizes, of_ids, mean))
    with torch.no_grad():
        found = read_bags(reads)
    one_by_one = [vectors.detach() for vectors in read_bags(reads)]  # gradients are wanted: through each table
    for read, vectors, other in zip(reads, found, one_by_one, strict=True):
        assert vectors.dtype == torch.float32
        torch.testing.assert_close(vectors.double(), by_hand(read), rtol=1e-6, atol=1e-6)
        assert torch.equal(vectors, other)


def test_bags_of_one_id_are_rows_side_by_side() -> None:
    weights = tables(1)
    lay_together(weights)
    ids = [torch.tensor([place, 6, 0]) for place in range(len(weights))]
    with torch.no_grad():
        found = read_bags([BagRead(table, own, None) for table, own in zip(weights, ids, strict=True)])
    assert all(torch.equal(vectors, table[own]) for vectors, table, own in zip(found, weights, ids, strict=True))
    assert len({vectors.untyped_storage().data_ptr() for vectors in found}) == 1  # columns of one matrix


def test_reads_of_several_memories_keep_their_order() -> None:
    weights, others = tables(4), tables(5)
    lay_together(weights)
    lay_together(others)
    mixed = [weights[0], weights[1], others[0], weights[2], others[2], others[3]]
    sizes = torch.tensor([1, 2])
    with torch.no_grad():
        found = read_bags([BagRead(table, torch.tensor([0, 5, 6]), sizes) for table in mixed])
    for vectors, table in zip(found, mixed, strict=True):
        assert torch.equal(vectors, torch.stack([table[0], table[5] + table[6]]))


def test_laying_tables_together_keeps_objects_values_and_training() -> None:
    weights, others = tables(2), tables(2)
    before = list(weights)
    lay_together(weights)
    assert all(one is other for one, other in zip(before, weights, strict=True))
    assert len({weight.untyped_storage().data_ptr() for weight in weights}) == 1
    read = [BagRead(weight, torch.tensor([0, 6, 6]), torch.tensor([1, 2])) for weight in weights]
    apart = [one._replace(table=other) for one, other in zip(read, others, strict=True)]
    for reads in (read, apart):
        torch.autograd.backward(torch.cat(read_bags(reads), dim=1).square().sum())
    optimizers = [torch.optim.Adagrad(parameters) for parameters in (weights, others)]
    for optimizer in optimizers:
        optimizer.step()
    assert all(torch.equal(one, other) for one, other in zip(weights, others, strict=True))


def test_tables_that_were_moved_apart_are_read_one_by_one() -> None:
    weights = tables(3)
    lay_together(weights)
    moved = nn.ParameterList(weights).double().float()  # other memory for each
    with torch.no_grad():
        found = read_bags([BagRead(weight, torch.tensor([2, 3]), torch.tensor([2])) for weight in moved])
    assert all(torch.equal(vectors, weight[2:4].sum(0, keepdim=True)) for vectors, weight in zip(found, moved, strict=True))


@pytest.mark.parametrize("sizes", [None, torch.tensor([2, 0, 1])])
def test_weights_of_ids_make_weighted_sums_and_means(sizes: Tensor | None) -> None:
    table, ids, weights = torch.arange(8.0).view(4, 2), torch.tensor([1, 3, 2]), torch.tensor([0.5, 1.5, 0.0])
    (sums,) = read_bags([bag_read(table, ids, sizes, weights, Pooling.SUM)])
    (means,) = read_bags([bag_read(table, ids, sizes, weights, Pooling.MEAN)])
    if sizes is None:
        assert sums.tolist() == [[1.0, 1.5], [9.0, 10.5], [0.0, 0.0]]
        assert means.tolist() == [[2.0, 3.0], [6.0, 7.0], [0.0, 0.0]]
    else:
        assert sums.tolist() == [[10.0, 12.0], [0.0, 0.0], [0.0, 0.0]]
        assert means.tolist() == [[5.0, 6.0], [0.0, 0.0], [0.0, 0.0]]
