"""The picture of a plan: where a table lies is dark, where it does not is light."""

from pathlib import Path

import pytest
from PIL import Image

from emberline.train.sharding import create_sharders
from emberline.train.sharding.fit_plan import sharding_plan
from emberline.train.sharding.hardware import Hardware
from emberline.train.sharding.heat_map import write_heat_map
from emberline.train.sharding.report import report_plan
from emberline.train.sharding.saved_plan import SavedPlan, SavedTable
from tests.train.sharding.cases import GIB, cpus, deep, gpus, group_of, id_feature, planner_of

DARK, EMPTY, RED = (150, 25, 15), (245, 245, 245), (200, 30, 30)


def drawn(folder: Path, text: str, hardware: Hardware) -> Image.Image:
    group = group_of(text)
    planner = planner_of(group, hardware)
    planner.plan(group, create_sharders())
    write_heat_map(report_plan(planner), folder / "plan.png")
    return Image.open(folder / "plan.png").convert("RGB")


def test_each_cell_has_the_colour_of_its_memory(tmp_path: Path) -> None:
    text = (
        id_feature("a", 1000, 16, 'sharding_types: "table_wise" ranks: 1') + id_feature("b", 1000, 16, 'sharding_types: "row_wise"') + deep("a", "b")
    )
    image = drawn(tmp_path, text, cpus(2))
    assert (tmp_path / "plan.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    left = next(x for x in range(image.width) if image.getpixel((x, 56)) == EMPTY)
    a, b = ([image.getpixel((left + 48 * rank + 10, 48 + 18 * row + 8)) for rank in range(2)] for row in range(2))
    assert a == [EMPTY, DARK]
    assert len(set(b)) == 1
    assert b[0] not in (EMPTY, DARK)


def test_many_ranks_and_many_tables_stay_a_picture(tmp_path: Path) -> None:
    names = [f"f{number}" for number in range(230)]
    group, hardware = group_of("".join(id_feature(name, 1000) for name in names) + deep(*names)), gpus(256)
    tables = {f"{name}_emb": SavedTable(sharding_type="table_wise", ranks=(place,)) for place, name in enumerate(names)}
    plan = sharding_plan(SavedPlan(world_size=256, local_world_size=8, tables=tables), group, create_sharders(), hardware)
    planner = planner_of(group, hardware)
    planner.price(plan, group, create_sharders())
    write_heat_map(report_plan(planner), tmp_path / "plan.png")
    with Image.open(tmp_path / "plan.png") as image:
        width, height = image.size
    assert width < 3000
    assert height == 48 + 18 * (200 + 1 + 1 + 4)  # the largest 200, the rest, all of them


@pytest.mark.parametrize("full", [False, True])
def test_a_rank_that_has_more_than_it_can_hold_is_red(tmp_path: Path, full: bool) -> None:
    group = group_of(id_feature("a", 2**22, 64, 'sharding_types: "table_wise"') + deep("a"))
    roomy = planner_of(group, cpus(1, ddr=4 * GIB))
    plan = roomy.plan(group, create_sharders())
    planner = planner_of(group, cpus(1, ddr=GIB if full else 4 * GIB))
    planner.price(plan, group, create_sharders())
    write_heat_map(report_plan(planner), tmp_path / "plan.png")
    image = Image.open(tmp_path / "plan.png").convert("RGB")
    assert (RED in {image.getpixel((x, 48 + 18 * 2 + 8)) for x in range(image.width)}) is full


def test_a_plan_without_tables_is_drawn(tmp_path: Path) -> None:
    assert drawn(tmp_path, 'feature_configs { raw_feature { feature_name: "x" } } ' + deep("x"), cpus()).width > 100
