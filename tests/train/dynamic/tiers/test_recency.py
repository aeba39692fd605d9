import numpy as np
import pytest

from emberline.train.dynamic.tiers.recency import Region, SlotMap, Swap


def found(slots: SlotMap) -> list[int]:
    return list(map(int, slots.find(np.arange(10))))


def test_rows_used_last_have_slots() -> None:
    slots, swaps = SlotMap(10, [Region(0, 4, 0, 2), Region(6, 10, 2, 4)]), list[Swap]()
    assert slots.bring(np.array([3, 7, 3]), swaps.append).tolist() == [0, 2, 0]
    slots.note_changed(np.array([0, -1, -2]))
    assert slots.bring(np.array([1, 5]), swaps.append).tolist() == [1, -1]  # nobody has slots for row 5
    assert slots.bring(np.array([0]), swaps.append).tolist() == [0]
    assert [(swap.rows.tolist(), swap.slots.tolist()) for swap in swaps] == [([3], [0]), ([7], [2]), ([1], [1]), ([0], [0])]
    assert [(swap.changed_rows.tolist(), swap.changed_slots.tolist()) for swap in swaps] == [([], [])] * 3 + [([3], [0])]
    assert found(slots) == [0, 1, -1, -1, -1, -1, -1, 2, -1, -1]


def test_a_batch_of_too_many_rows_drives_nobody_out() -> None:
    slots, swaps = SlotMap(10, [Region(0, 10, 0, 2)]), list[Swap]()
    slots.bring(np.array([9]), swaps.append)
    assert slots.bring(np.arange(5), swaps.append).tolist() == [1, -1, -1, -1, -1]
    assert slots.bring(np.arange(5), swaps.append).tolist() == [1, -1, -1, -1, -1]
    assert len(swaps) == 2
    assert found(slots) == [1, *[-1] * 8, 0]


def test_rows_that_could_not_be_copied_have_no_slots() -> None:
    def fails(swap: Swap) -> None:
        raise MemoryError

    slots = SlotMap(10, [Region(0, 10, 0, 2)])
    slots.bring(np.array([9, 8]), lambda swap: None)
    before = found(slots)
    with pytest.raises(MemoryError):
        slots.bring(np.array([1]), fails)
    assert found(slots) == before
    assert slots.bring(np.array([1]), lambda swap: None).tolist() == [0]
