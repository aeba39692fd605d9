import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from emberline.train.kernels.rows import Rows

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.int64]


@given(dtype=st.sampled_from(DTYPES), rows=st.integers(1, 40), width=st.one_of(st.none(), st.integers(1, 9)), data=st.data())
def test_rows_are_read_and_written_as_by_indexing(dtype: torch.dtype, rows: int, width: int | None, data: st.DataObject) -> None:
    shape = (rows,) if width is None else (rows, width)
    tensor = torch.randint(-50, 50, shape).to(dtype)
    before = tensor.clone()
    table = Rows(tensor)
    chosen = data.draw(st.lists(st.integers(0, rows - 1), max_size=60))
    for index_type in (torch.int32, torch.int64):
        found = table.read(torch.tensor(chosen, dtype=index_type))
        assert torch.equal(found, before[torch.tensor(chosen, dtype=torch.int64)])
        found.fill_(0)
        assert torch.equal(tensor, before)
    distinct = torch.tensor(sorted(set(chosen)), dtype=torch.int64)
    values = torch.randint(-50, 50, (len(distinct), *shape[1:])).to(dtype)
    table.write(distinct, values)
    before[distinct] = values
    assert torch.equal(tensor, before)


def test_no_rows() -> None:
    table = Rows(torch.empty(0, 3))
    none = torch.empty(0, dtype=torch.int64)
    assert table.read(none).shape == (0, 3)
    table.write(none, torch.empty(0, 3))


def test_a_row_that_does_not_exist_is_not_written() -> None:
    with pytest.raises(IndexError):
        Rows(torch.zeros(3, 2)).write(torch.tensor([3]), torch.ones(1, 2))
