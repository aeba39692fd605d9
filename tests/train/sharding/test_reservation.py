"""Memory that is kept free, by numbers worked out by hand."""

import pytest
import torch
from torch import nn

from emberline.train.sharding import create_sharders
from emberline.train.sharding.constraints import Traffic
from tests.train.sharding.cases import cpus, deep, gpus, group_of, id_feature, planner_of, steps, steps_feature


@pytest.mark.parametrize("on_gpu", [False, True])
def test_a_share_the_dense_part_and_the_ids_are_kept_free(on_gpu: bool) -> None:
    model = nn.Module()
    text = id_feature("a", 100, 16, "pooling_factor: 3") + steps_feature("s", 100, 16, "pooling_factor: 20") + deep("a") + steps("s")
    model.add_module("group", group_of(text))
    model.add_module("head", nn.Linear(10, 5))
    model.register_buffer("halves", torch.zeros(6, dtype=torch.float16))
    hardware = gpus(2) if on_gpu else cpus(2)
    planner = planner_of(model, hardware, batch_size=8, storage_reserve=0.25)
    planner.plan(model, create_sharders())
    kept = planner.reserved
    assert kept.share == hardware.table_memory // 4
    assert kept.dense == 6 * ((10 * 5 + 5) * 4 + 6 * 2)
    assert kept.ids == 20 * 8 * 8 * (3 + 20)  # copies, bytes, rows, ids a row
    assert kept.total == kept.share + kept.dense + kept.ids
    left = planner._reservation.last_reserved_topology
    assert left is not None
    storage = left.devices[1].storage
    assert (storage.hbm if on_gpu else storage.ddr) == hardware.table_memory - kept.total
    assert storage.ddr == (hardware.ddr * 3 // 4 if on_gpu else hardware.ddr - kept.total)


def test_rows_that_were_counted_go_before_the_batch_size() -> None:
    group = group_of(id_feature("a", 100) + deep("a"))
    planner = planner_of(group, cpus(), batch_size=8, traffic={"a": Traffic(ids=2.5, rows=100.0)})
    planner.plan(group, create_sharders())
    assert planner.reserved.ids == 20 * 8 * 250
