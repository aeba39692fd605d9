import pytest
import torch

from emberline.memory import HUGE_PAGE_BYTES
from emberline.train.kernels.memory import table_memory


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(0, 4), (3,), (5, 3), (700_001, 3), (2_500_001,)])
def test_memory_is_zeros_of_the_shape_and_keeps_what_is_written(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    memory = table_memory(shape, dtype)
    assert (memory.shape, memory.dtype, memory.is_contiguous()) == (torch.Size(shape), dtype, True)
    assert not memory.any()
    memory.fill_(1.5)
    assert torch.equal(memory, torch.full(shape, 1.5, dtype=dtype))


def test_large_memory_begins_on_a_huge_page() -> None:
    memory = table_memory((3 * HUGE_PAGE_BYTES // 4 + 1,), torch.float32)
    assert memory.data_ptr() % HUGE_PAGE_BYTES == 0


def test_the_last_number_may_be_written() -> None:
    memory = table_memory((HUGE_PAGE_BYTES,), torch.float32)
    memory[-1] = 7
    assert memory.sum() == 7


def test_a_view_keeps_the_memory_alive() -> None:
    part = table_memory((HUGE_PAGE_BYTES, 2), torch.float32)[5:9]
    part.copy_(torch.arange(8.0).view(4, 2))
    assert part.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
