import pytest
import torch

from emberline.errors import DataError
from emberline.train.kernels import Table, TableBank

TABLES = [Table("a", 3, 2), Table("b", 5, 4), Table("c", 2, 2), Table("d", 4, 4)]


def bank(reads: list[int]) -> TableBank:
    made = TableBank(TABLES, reads)
    for place, table in enumerate(made.weights()):
        table.copy_(torch.arange(table.numel()).view(table.shape) + 100.0 * place)
    return made


def test_tables_of_one_width_share_memory() -> None:
    a, b, c, d = bank([0]).weights()
    assert c.data_ptr() == a.data_ptr() + a.numel() * 4
    assert d.data_ptr() == b.data_ptr() + b.numel() * 4
    assert (a.shape, b.shape, c.shape, d.shape) == ((3, 2), (5, 4), (2, 2), (4, 4))
    assert c.tolist() == [[200, 201], [202, 203]]


def test_a_batch_is_split_by_width_and_joined_in_order() -> None:
    made = bank([2, 1, 0, 3, 0])  # two rows each
    ids = torch.tensor([1, 0, 4, 2, 1, 3, 0, 0])
    offsets = torch.tensor([0, 1, 2, 2, 3, 4, 5, 6, 6, 7, 8])
    narrow, wide = made.locate(ids, offsets, 2)
    assert narrow.rows.tolist() == [4, 3, 2, 1, 0, 0]  # c begins at row 3 of its block
    assert wide.rows.tolist() == [4, 8]  # d begins at row 5
    assert (narrow.counts.tolist(), wide.counts.tolist()) == ([[1, 1], [1, 1], [1, 1]], [[0, 1], [1, 0]])
    joined = made.join([block.pool(part) for block, part in zip(made.blocks, (narrow, wide), strict=True)], 2)
    assert joined.tolist() == [
        [202, 203, 0, 0, 0, 0, 4, 5, 312, 313, 314, 315, 0, 1],
        [200, 201, 116, 117, 118, 119, 2, 3, 0, 0, 0, 0, 0, 1],
    ]
    assert made.split(joined, made.blocks[0]).tolist() == [[202, 203], [4, 5], [0, 1], [200, 201], [2, 3], [0, 1]]
    assert made.split(joined, made.blocks[1])[0].tolist() == [0, 0, 0, 0]


def test_means_and_weights_become_factors() -> None:
    made = bank([0, 2])
    ids, offsets = torch.tensor([0, 1, 2, 1]), torch.tensor([0, 3, 4])
    (plain,) = TableBank([Table("a", 9, 2)], [0, 0]).locate(ids, offsets, 1)
    assert plain.weights is None
    (narrow, _) = made.locate(ids, offsets, 1, torch.tensor([3.0, 6.0, 9.0, 5.0], dtype=torch.float64), mean=True)
    assert narrow.weights is not None
    torch.testing.assert_close(narrow.weights, torch.tensor([1.0, 2.0, 3.0, 5.0]))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([0, 1, 3, 0], "table 'a' has rows 0 to 2, but row 3 is asked for"),
        ([0, -1, 0, 0], "table 'c' has rows 0 to 1, but row -1 is asked for"),
        ([1, 1, 0, -5], "table 'a' has rows 0 to 2, but row -5 is asked for"),
    ],
)
def test_ids_that_a_table_does_not_have_are_refused(ids: list[int], message: str, dtype: torch.dtype) -> None:
    made = bank([2, 0])
    with pytest.raises(DataError, match=message):
        made.locate(torch.tensor(ids, dtype=dtype), torch.tensor([0, 1, 2, 3, 4], dtype=dtype), 2)


def test_a_read_beyond_32_bits_is_refused() -> None:
    with pytest.raises(DataError, match=r"but row 4294967296 is asked for"):
        bank([0]).locate(torch.tensor([2**32]), torch.tensor([0, 1]), 1)
