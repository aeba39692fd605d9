"""Tables on the ranks they are pinned to."""

import pytest

from emberline.errors import ConfigError
from tests.train.sharding.cases import GIB, cpus, deep, gpus, group_of, id_feature, placed


def test_tables_are_where_they_are_pinned_and_together_where_that_is_asked() -> None:
    text = (
        id_feature("a", 1000, 16, 'ranks: 3 sharding_types: "table_wise"')
        + id_feature("b", 1000, 16, 'ranks: 3 sharding_types: "table_wise"')
        + id_feature("c", 1000, 16, 'ranks: [0, 2] sharding_types: "column_wise"')
        + "".join(id_feature(f"free{number}", 1000, 16, 'sharding_types: "table_wise"') for number in range(4))
        + deep("a", "b", "c", *(f"free{number}" for number in range(4)))
    )
    found = placed(group_of(text), cpus(4))
    assert found["a_emb"] == found["b_emb"] == ("table_wise", "fused", [3])
    assert found["c_emb"][0] == "column_wise"
    assert sorted(found["c_emb"][2]) == [0, 2]
    assert sorted(rank for number in range(4) for rank in found[f"free{number}_emb"][2])[:1] != [3]  # the free ones know that rank 3 has work


def test_pins_of_whole_machines_are_kept_by_types_that_use_them() -> None:
    text = id_feature("a", 1000, 16, 'ranks: [2, 3] sharding_types: "table_row_wise"') + deep("a")
    assert placed(group_of(text), cpus(4, 2)) == {"a_emb": ("table_row_wise", "fused", [2, 3])}
    text = id_feature("a", 1000, 16, 'ranks: [2, 3] sharding_types: "table_column_wise"') + deep("a")
    found = placed(group_of(text), cpus(4, 2))
    assert (found["a_emb"][0], sorted(found["a_emb"][2])) == ("table_column_wise", [2, 3])


def test_without_a_type_pins_decide_which_types_are_left() -> None:
    found = placed(group_of(id_feature("a", 1000, 16, "ranks: 1") + deep("a")), gpus(4))
    assert found["a_emb"][2] == [1]


def test_pins_that_are_too_small_are_told() -> None:
    text = id_feature("a", 4_000_000, 64, 'ranks: 1 sharding_types: "table_wise"') + id_feature("b", 10) + deep("a", "b")
    with pytest.raises(ConfigError, match=r"do not fit on 2 cpu ranks.*; ranks pins a_emb\. Use more ranks"):
        placed(group_of(text), cpus(2, ddr=GIB))


def test_column_shards_of_a_table_have_ranks_of_their_own() -> None:
    """Beside a table that keeps one rank busy, so that the other one would get all of them."""
    busy = id_feature("busy", 100_000, 64, 'sharding_types: "table_wise" pooling_factor: 500')
    cut = "".join(id_feature(f"c{dim}", 100, dim, 'sharding_types: "column_wise"') for dim in (6, 10, 16))
    found = placed(group_of(busy + cut + deep("busy", "c6", "c10", "c16")), cpus(2))
    assert {name: sorted(ranks) for name, (_, _, ranks) in found.items() if name != "busy_emb"} == {
        name: [0, 1] for name in ("c6_emb", "c10_emb", "c16_emb")
    }
    nodes = "".join(id_feature(f"c{dim}", 100, dim, 'sharding_types: "table_column_wise"') for dim in (6, 10, 16))
    for _, _, ranks in placed(group_of(nodes + deep("c6", "c10", "c16")), cpus(4, 2)).values():
        assert sorted(ranks) in ([0, 1], [2, 3])
