"""The compiled index and counter beside those of dictionaries, at sizes that grow and shrink."""

import ctypes

import numpy as np
import pytest

from emberline.train.dynamic.admission import DictCounter
from emberline.train.dynamic.keys import DictIndex
from emberline.train.dynamic.slots import KERNEL, SlotCounter, SlotIndex


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    found = KERNEL.get()
    if found is None:
        pytest.skip(f"no compiled index: {KERNEL.reason()}")
    return found


@pytest.mark.parametrize("spread", [1, 2**40, 3_037_000_507])
def test_indexes_agree(library: ctypes.CDLL, spread: int) -> None:
    rng = np.random.default_rng(spread)
    compiled, plain = SlotIndex(library, 6000, 1), DictIndex(6000)
    for step in range(1, 40):
        keys = rng.integers(-3000, 3000, 700) * spread
        keys = keys if len(plain) < 5300 else keys[plain.find(keys) >= 0]
        one, other = compiled.read(keys, step), plain.read(keys, step)
        assert (one.new_keys.tolist(), one.num_hits) == (other.new_keys.tolist(), other.num_hits)
        assert one.new_rows.tolist() == compiled.find(one.new_keys).tolist()
        if step % 3 == 0:
            scores = None if step % 2 else rng.integers(-(2**63), 2**63 - 1, 6000, endpoint=True) // rng.choice([1, 2**61])
            own = keys[:50]
            by_row = None
            if scores is not None:  # of each key the same, whatever its row is
                by_row = np.zeros(6000, dtype=np.int64)
                by_row[compiled.find(plain.items()[0])] = scores[plain.items()[1]]
            going = compiled.lowest(400, compiled.find(own), by_row)
            assert np.sort(going).tolist() == np.sort(plain.lowest(400, plain.find(own), scores)).tolist()
            compiled.remove(going)
            plain.remove(going)
        asked = rng.integers(-3100, 3100, 5000) * spread
        rows = compiled.find(asked, 10, -5)
        assert ((rows == -5) == (plain.find(asked) < 0)).all()
        assert len(np.unique(rows[rows >= 0])) == len(np.unique(asked[rows >= 0]))
        found, expected = compiled.items(), plain.items()
        assert dict(zip(found[0].tolist(), found[2].tolist(), strict=True)) == dict(zip(expected[0].tolist(), expected[2].tolist(), strict=True))
        assert len(np.unique(found[1])) == len(compiled) == len(plain)
    compiled.clear()
    assert (len(compiled), compiled.find(np.arange(3)).tolist()) == (0, [-1, -1, -1])


def test_an_index_takes_20_bytes_an_id_when_it_is_full(library: ctypes.CDLL) -> None:
    index = SlotIndex(library, 100_000, 1)
    for start in range(0, 100_000, 5000):
        index.read(np.arange(start, start + 5000) * 7919, 1)
    assert len(index) == 100_000
    assert index.num_bytes <= 20 * 100_000 + 64


@pytest.mark.parametrize(("threshold", "capacity"), [(1, 1), (2, 64), (3, 500), (2, 5000)])
def test_counters_agree(library: ctypes.CDLL, threshold: int, capacity: int) -> None:
    rng = np.random.default_rng(capacity)
    compiled, plain = SlotCounter(library, threshold, capacity), DictCounter(threshold, capacity)
    for _ in range(20):
        keys = (rng.zipf(1.2, 400) % 3000).astype(np.int64) - 1500
        assert compiled.count(keys).tolist() == plain.count(keys).tolist()
        compiled.drop(keys[:3])
        plain.drop(keys[:3])
        assert [part.tolist() for part in compiled.items()] == [part.tolist() for part in plain.items()]
        assert (len(compiled), compiled.forgotten) == (len(plain), plain.forgotten)
    assert [part.tolist() for part in compiled.copy().items()] == [part.tolist() for part in plain.items()]
