"""The search space, by full path."""

import pytest
import torch
from torch import nn
from torchrec.distributed.sharding_plan import calculate_shard_sizes_and_offsets

from emberline.errors import ConfigError
from emberline.train.features.placement import TableConstraints
from emberline.train.sharding import create_sharders
from emberline.train.sharding.constraints import gather_constraints
from emberline.train.sharding.enumerator import OptionEnumerator, shard_layout
from tests.train.sharding.cases import cpus, deep, gpus, group_of, id_feature, steps, steps_feature, zch_feature


class Two(nn.Module):
    """Two embedding systems whose tables have the same names."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__()
        self.one, self.two = group_of(one), group_of(two)


def test_tables_of_one_name_have_their_own_constraints_and_traffic() -> None:
    model = Two(
        id_feature("a", 100, 64, 'sharding_types: "table_wise" pooling_factor: 3') + deep("a"),
        id_feature("a", 100, 64, 'sharding_types: "row_wise" pooling_factor: 30') + deep("a"),
    )
    options = OptionEnumerator(cpus(), 8, gather_constraints(model)).enumerate(model, create_sharders())
    assert {(option.fqn, option.sharding_type) for option in options} == {
        ("one.pooled.ebc.a_emb", "table_wise"),
        ("two.pooled.ebc.a_emb", "row_wise"),
    }
    by_path = {option.path: option for option in options}
    few, many = by_path["one.pooled.ebc"], by_path["two.pooled.ebc"]
    assert (few.input_lengths, many.input_lengths) == ([3.0], [30.0])
    rows_ids_vectors = (100 + 100 / 64) * 64 * 4, 8 * 2 * 3 * 8, 8 * 2 * 64 * 4  # with row-wise moments
    assert few.total_storage.ddr == pytest.approx(sum(rows_ids_vectors), abs=2)


def test_moments_ids_and_vectors_are_in_the_storage() -> None:
    """Of a table whole on one of 2 GPUs: what TorchRec's formulas say, from numbers worked out by hand."""
    group = group_of(id_feature("a", 1000, 64, 'sharding_types: "table_wise" compute_kernels: "fused" pooling_factor: 5') + deep("a"))
    (option,) = OptionEnumerator(gpus(2), 16, gather_constraints(group)).enumerate(group, create_sharders())
    weights, moments, ids, vectors = 1000 * 64 * 4, 1000 * 4, 5 * 16 * 2 * 8, 16 * 2 * 64 * 4
    assert [shard.storage.hbm for shard in option.shards] == [weights + moments + ids + vectors]
    assert option.is_pooled


def test_steps_are_not_pooled_so_each_gives_a_vector() -> None:
    group = group_of(steps_feature("s", 1000, 64, 'sharding_types: "table_wise" pooling_factor: 5') + steps("s"))
    (option,) = OptionEnumerator(cpus(2), 16, gather_constraints(group)).enumerate(group, create_sharders())
    assert option.total_storage.ddr == 1000 * 64 * 4 + 1000 * 4 + 5 * 16 * 2 * 8 + 5 * 16 * 2 * 64 * 4
    assert not option.is_pooled


def test_shards_of_one_size_cost_the_same_and_all_have_a_cost() -> None:
    group = group_of(id_feature("a", 1001, 64, 'sharding_types: "row_wise" compute_kernels: "fused"') + deep("a"))
    (option,) = OptionEnumerator(gpus(8), 16, gather_constraints(group)).enumerate(group, create_sharders())
    assert [shard.size for shard in option.shards] == [[126, 64]] * 7 + [[119, 64]]
    costs = [shard.perf.total for shard in option.shards]
    assert len(set(costs[:7])) == 1
    assert min(costs) > 0


def test_everything_that_leaves_no_option_is_told_at_once() -> None:
    text = (
        id_feature("a", 3, 16, 'sharding_types: "row_wise"')
        + id_feature("b", 50, 16, 'compute_kernels: "fused_uvm"')
        + zch_feature("z", 3)
        + id_feature("fine", 50)
        + deep("a", "b", "z", "fine")
    )
    group = group_of(text)
    with pytest.raises(ConfigError) as caught:
        OptionEnumerator(cpus(4), 8, gather_constraints(group)).enumerate(group, create_sharders())
    first, second, third = caught.value.problems
    assert first.startswith("table 'a_emb': nothing is left to choose; asked: sharding_types row_wise; row_wise: 3 rows cannot be cut into 4")
    assert first.endswith(
        "cpu offers such tables data_parallel (dense), table_wise (fused), column_wise (fused), row_wise (fused), "
        "table_row_wise (fused), table_column_wise (fused), grid_shard (fused)"
    )
    assert second.startswith("table 'b_emb': nothing is left to choose; asked: compute_kernels fused_uvm; table_wise: its kernels here are fused")
    assert third == (
        "table 'z_emb': nothing is left to choose; asked: nothing; row_wise: 3 rows cannot be cut into 4 equal blocks with none empty. "
        "cpu offers such tables row_wise (fused)"
    )


def test_a_bound_on_gpu_memory_leaves_what_is_small_enough() -> None:
    rows = 1 << 20
    whole = id_feature("a", rows, 64, 'max_hbm_mib: 40 compute_kernels: "fused"') + deep("a")
    group = group_of(whole)
    options = OptionEnumerator(gpus(8), 16, gather_constraints(group)).enumerate(group, create_sharders())
    assert {option.sharding_type for option in options} == {"row_wise", "table_row_wise"}  # 256 MiB whole, 64 in 4 parts
    assert max(shard.storage.hbm for option in options for shard in option.shards) <= 40 << 20
    small = group_of(id_feature("a", rows, 64, 'max_hbm_mib: 0.01 compute_kernels: "fused"') + deep("a"))
    told = r"table 'a_emb': max_hbm_mib leaves no option: the smallest has 32\.5 MiB on one GPU, .*; asked: compute_kernels fused; max_hbm_mib 0\.01$"
    with pytest.raises(ConfigError, match=told):
        OptionEnumerator(gpus(8), 16, gather_constraints(small)).enumerate(small, create_sharders())


def test_all_that_was_asked_is_told_and_that_copies_must_be_asked_for() -> None:
    text = (
        id_feature("a", 50, 16, 'sharding_types: "column_wise" min_partition: 12 cache_load_factor: 0.5 ranks: [0, 1] max_hbm_mib: 1.5')
        + id_feature("b", 50, 16, 'compute_kernels: "dense"')
        + deep("a", "b")
    )
    group = group_of(text)
    with pytest.raises(ConfigError) as caught:
        OptionEnumerator(cpus(), 8, gather_constraints(group)).enumerate(group, create_sharders())
    first, second = caught.value.problems
    asked = "sharding_types column_wise; min_partition 12; cache_load_factor 0.5; ranks 0, 1; max_hbm_mib 1.5"
    assert first.startswith(f"table 'a_emb': nothing is left to choose; asked: {asked}; column_wise: embedding_dim 16 cannot be cut")
    assert second.startswith(
        "table 'b_emb': nothing is left to choose; asked: compute_kernels dense; the dense kernel is that of data_parallel alone, which is never "
        "chosen unasked: ask for it in sharding_types too. cpu offers such tables data_parallel (dense), "
    )


def test_tables_without_constraints_have_those_of_all() -> None:
    group = group_of(id_feature("a", 100) + deep("a"))
    everywhere = TableConstraints(sharding_types=["table_wise"], ranks=(1,))
    enumerator = OptionEnumerator(cpus(), 8, {}, everywhere)
    assert {option.sharding_type for option in enumerator.enumerate(group, create_sharders())} == {"table_wise"}
    assert enumerator.pins_of("pooled.ebc.a_emb") == (1,)


@pytest.mark.parametrize("dim", [8, 64, 16])
@pytest.mark.parametrize("kind", ["column_wise", "table_column_wise", "grid_shard"])
def test_column_shards_lie_as_in_torchrec_and_may_have_any_width(kind: str, dim: int) -> None:
    hardware = cpus(4, 2)
    weight = nn.Parameter(torch.empty(11, dim, device="meta"))
    wanted = calculate_shard_sizes_and_offsets(weight, 4, 2, kind, dim // 2)
    assert shard_layout(weight, kind, dim // 2, hardware) == wanted
    odd = nn.Parameter(torch.empty(11, 6, device="meta"))
    sizes, offsets = shard_layout(odd, kind, 3, hardware)
    covered = torch.zeros(11, 6)
    for (rows, columns), (row, column) in zip(sizes, offsets, strict=True):
        assert columns == 3
        covered[row : row + rows, column : column + columns] += 1
    assert torch.equal(covered, torch.ones(11, 6))
