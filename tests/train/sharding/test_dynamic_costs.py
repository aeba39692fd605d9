"""How fast rows of dynamic tables are, against the formula by hand."""

import pytest

from emberline.errors import ConfigError
from emberline.train.config import parse_train_config
from emberline.train.config.planner_config import PlannerConfig
from emberline.train.dynamic.options import ZEROS, DynamicEmbOptions
from emberline.train.sharding.dynamic_costs import COSTS, GrowthCosts, costs_of, effective_ratio, slowness
from emberline.train.sharding.hardware import Bandwidths

GPU = Bandwidths(hbm=2000.0, ddr=100.0, hbm_to_ddr=25.0, intra_node=300.0, inter_node=25.0)
CPU = Bandwidths(hbm=1.0, ddr=20.0, hbm_to_ddr=1.0, intra_node=2.0, inter_node=1.0)


def options(share: float | None, caching: bool) -> DynamicEmbOptions:
    return DynamicEmbOptions(max_capacity=9, initializer=ZEROS, cache_load_factor=share, caching=caching)


@pytest.mark.parametrize(
    ("share", "caching", "ratio"),
    [(None, False, 1.0), (1.0, False, 1.0), (1.0, True, 1.0), (0.1, True, 0.281), (0.9, True, 0.289), (0.1, False, 0.111), (0.9, False, 0.119)],
)
def test_the_ratio_hardly_depends_on_the_share(share: float | None, caching: bool, ratio: float) -> None:
    assert effective_ratio(options(share, caching), COSTS["cuda"]) == pytest.approx(ratio)


def test_bandwidths_of_both_memories_are_mixed() -> None:
    """GB/s on a GPU: (0.285 x 2000 + 0.715 x 25) / 10 of 2000."""
    assert slowness(options(0.5, True), "cuda", GPU) == pytest.approx(2000 / ((0.285 * 2000 + 0.715 * 25) / 10))
    assert slowness(options(0.5, False), "cuda", GPU) == pytest.approx(2000 / ((0.115 * 2000 + 0.885 * 25) / 10))
    assert slowness(options(1.0, False), "cuda", GPU) == pytest.approx(10.0)
    assert slowness(options(0.5, True), "cpu", CPU) == pytest.approx(20 / ((0.285 * 20 + 0.715 * 1) / 2))
    assert slowness(options(None, False), "cpu", CPU) == pytest.approx(2.0)


def test_other_numbers_may_be_given() -> None:
    costs = GrowthCosts(caching=(0.5, 0.0), slowdown=1.0, disk=100.0)
    assert slowness(options(0.5, True), "cpu", CPU, costs) == 1.0  # no file is faster than memory
    assert slowness(options(0.5, True), "cuda", GPU, costs) == pytest.approx(2000 / (0.5 * 2000 + 0.5 * 25))


PLAN = "sparse_optimizer { sgd_optimizer {} } dense_optimizer { sgd_optimizer {} } planner"


def test_a_config_says_what_was_measured() -> None:
    assert costs_of(PlannerConfig(), "cuda") == COSTS["cuda"] == GrowthCosts(slowdown=10.0)
    assert costs_of(PlannerConfig(), "cpu") == COSTS["cpu"]
    planner = parse_train_config(f"{PLAN} {{ dynamicemb_slowdown: 1.5 dynamicemb_caching_ratio: 0.999 disk_bandwidth: 3 }}").planner
    found = costs_of(planner, "cpu")
    assert found == GrowthCosts(slowdown=1.5, caching=(0.999, 0.01), hybrid=(0.11, 0.01), disk=3.0)
    assert effective_ratio(options(0.9, True), found) == 1.0
    assert costs_of(PlannerConfig(dynamicemb_hybrid_ratio=0.0), "cuda").hybrid == (0.0, 0.01)
    with pytest.raises(ConfigError) as caught:
        parse_train_config(f"{PLAN} {{ dynamicemb_slowdown: 0 dynamicemb_caching_ratio: 1.5 dynamicemb_hybrid_ratio: -1 disk_bandwidth: inf }}")
    assert sorted(caught.value.problems) == [
        "train_config: planner: disk_bandwidth must be a number above 0, found inf",
        "train_config: planner: dynamicemb_caching_ratio must be in [0, 1], found 1.5",
        "train_config: planner: dynamicemb_hybrid_ratio must be in [0, 1], found -1.0",
        "train_config: planner: dynamicemb_slowdown must be a number above 0, found 0.0",
    ]
