import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from emberline.train.dynamic.device.index import DeviceIndex, _hash

EDGES = [0, -1, 1, 2**63 - 1, -(2**63)]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
keys_of_a_call = st.lists(st.one_of(st.sampled_from(EDGES), st.integers(-40, 40), st.integers(-(2**63), 2**63 - 1)), max_size=40)


def int64(numbers: list[int], device: str = "cpu") -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int64, device=device)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["find", "add", "build"]), keys_of_a_call), max_size=12))
def test_it_is_a_dictionary(calls: list[tuple[str, list[int]]]) -> None:
    index, known, next_row = DeviceIndex(torch.device("cpu")), dict[int, int](), 0
    for what, keys in calls:
        if what == "find":
            assert index.find(int64(keys)).tolist() == [known.get(key, -1) for key in keys]
            continue
        if what == "build":
            known = {}
        new = {key: next_row + place for place, key in enumerate(dict.fromkeys(keys)) if key not in known}
        next_row += len(new) + len(keys)
        (index.add if what == "add" else index.build)(int64(list(new)), int64(list(new.values())))
        known |= new
        assert len(index) == len(known)
        assert dict(zip(*(part.tolist() for part in index.items()), strict=True)) == known


@pytest.mark.parametrize("device", DEVICES)
def test_many_keys_of_one_place_are_told_apart(device: str) -> None:
    candidates = torch.arange(200_000, device=device)
    clash = candidates[(_hash(candidates) & 255) == 250]  # a chain of 100, around the end, in an index of 256 slots or more
    index = DeviceIndex(torch.device(device))
    index.build(clash[:100], torch.arange(100, device=device))
    assert index.find(clash[:101]).tolist() == [*range(100), -1]
    index.add(clash[100:300], torch.arange(100, 300, device=device))
    assert torch.equal(index.find(clash[:300]), torch.arange(300, device=device))


@pytest.mark.parametrize("device", DEVICES)
def test_it_is_at_most_half_full(device: str) -> None:
    index = DeviceIndex(torch.device(device))
    for start in range(0, 1000, 10):
        keys = torch.arange(start, start + 10, device=device) * -(2**40)
        index.add(keys, torch.arange(start, start + 10, device=device))
        assert 16 * 2 * len(index) <= index.num_bytes
    assert torch.equal(index.find(torch.arange(1000, device=device) * -(2**40)), torch.arange(1000, device=device))
