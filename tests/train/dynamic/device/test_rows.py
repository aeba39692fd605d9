import pytest
import torch

from emberline.train.dynamic.device.rows import DeviceRows


def test_rows_grow_by_doubling_and_begin_as_zeros() -> None:
    rows = DeviceRows((2,), torch.float16, torch.device("cpu"), 3)
    rows.write(torch.tensor([2, 0]), torch.tensor([[1.0, 2.0], [3.0, 4.0]]).half())
    sizes = []
    for wanted, most in ((3, None), (4, None), (65, None), (129, 200), (200, 200)):
        rows.reserve(wanted, most)
        sizes.append(len(rows.tensor))
    assert sizes == [3, 64, 128, 200, 200]
    assert rows.read(torch.tensor([0, 1, 2, 199])).tolist() == [[3, 4], [0, 0], [1, 2], [0, 0]]


def test_where_memory_is_short_only_what_is_needed_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = DeviceRows((), torch.int64, torch.device("cpu"), 100)
    rows.write(torch.arange(100), torch.arange(100))
    zeros = DeviceRows._zeros

    def short(own: DeviceRows, wanted: int) -> torch.Tensor:
        if wanted > 150:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return zeros(own, wanted)

    monkeypatch.setattr(DeviceRows, "_zeros", short)
    rows.reserve(120)
    assert len(rows.tensor) == 120
    with pytest.raises(torch.OutOfMemoryError):
        rows.reserve(160)
    assert rows.read(torch.arange(120)).tolist() == [*range(100), *[0] * 20]
