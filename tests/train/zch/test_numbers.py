"""The numbers of id maps in a log."""

import torch

from emberline.train.zch import zch_numbers
from tests.train.zch.test_module import module, read


def test_numbers_of_all_ranks_added_up() -> None:
    zch = module(rows=5)
    read(zch, [1, 2, 2**63 - 1])
    root = torch.nn.ModuleDict({"x": zch})
    assert zch_numbers(root, list) == {
        "zch/t/rows_in_use": 2,
        "zch/t/seen": 3,
        "zch/t/admitted": 2,
        "zch/t/evicted": 0,
        "zch/t/dropped": 1,
        "zch/t/occupancy": 0.5,
    }
    three = zch_numbers(root, lambda numbers: [3 * one for one in numbers])
    assert (three["zch/t/rows_in_use"], three["zch/t/occupancy"]) == (6, 0.5)


def test_no_maps_and_a_table_with_room_for_nobody() -> None:
    assert zch_numbers(torch.nn.Linear(1, 1), list) == {}
    assert zch_numbers(torch.nn.ModuleDict({"x": module(rows=1)}), list)["zch/t/occupancy"] == 0.0
