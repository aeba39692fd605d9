import numpy as np
import pytest
import torch

from emberline.train.dynamic.device.ahead import Ahead, gathered
from emberline.train.dynamic.tiers.prefetch import Prefetcher

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
HOST = [torch.arange(20.0).view(10, 2), torch.arange(10)]


@pytest.mark.parametrize("device", DEVICES)
def test_copies_are_good_until_their_rows_are_written_to(device: str) -> None:
    ahead, thread = Ahead(np.array([7, 9, 12]), HOST, 5, torch.device(device)), Prefetcher()
    assert not ahead.is_to_come
    ahead.begin(thread)
    assert ahead.is_to_come
    places, is_there = ahead.find(np.array([0, 7, 8, 9, 12, 50]))
    assert is_there.tolist() == [False, True, False, True, True, False]
    chosen = torch.from_numpy(places[is_there]).to(device)
    assert ahead.read(0, chosen).tolist() == [[4, 5], [8, 9], [14, 15]]
    assert ahead.read(1, chosen).tolist() == [2, 4, 7]
    ahead.forget(np.array([9, 10]))
    assert ahead.find(np.array([7, 9, 12]))[1].tolist() == [True, False, True]


@pytest.mark.parametrize("device", DEVICES)
def test_rows_of_the_host_are_copied_by_number(device: str) -> None:
    for numbers in ([], [3], [9, 0, 9]):
        found = gathered(HOST[0], np.array(numbers, dtype=np.int64), torch.device(device))
        assert found.device.type == device
        assert torch.equal(found.cpu(), HOST[0][numbers])


def test_what_went_wrong_is_told() -> None:
    ahead, thread = Ahead(np.array([50]), HOST, 5, torch.device("cpu")), Prefetcher()
    ahead.begin(thread)
    with pytest.raises(IndexError, match="out of range"):
        ahead.read(0, torch.tensor([0]))
    with pytest.raises(IndexError, match="out of range"):
        ahead.begin(thread)
