"""What a table could be, and what a table that can be nothing is told."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchrec.distributed.sharding_plan import calculate_shard_sizes_and_offsets
from torchrec.distributed.types import CacheParams
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.modules.mc_embedding_modules import ManagedCollisionEmbeddingBagCollection

from emberline.train.features.placement import TableConstraints
from emberline.train.sharding import create_sharders
from emberline.train.sharding.hardware import Hardware
from emberline.train.sharding.offers import CACHE_RATIOS, Offer, Offers, TableShape, splits
from emberline.train.zch import HashedZchModule
from tests.train.sharding.cases import GIB, cpus, gpus

SHARDERS: dict[Any, Any] = {sharder.module_type: sharder for sharder in create_sharders()}
NO_COPIES_OF_MAPS = "data_parallel: such tables do not know it on cuda"
ALL = {"data_parallel", "table_wise", "column_wise", "row_wise", "table_row_wise", "table_column_wise", "grid_shard"}


def offers(hardware: Hardware, *, rows: int = 1000, dim: int = 64, kind: Any = EmbeddingBagCollection, **asked: Any) -> Offers:
    return Offers(TableShape(rows, dim, kind), SHARDERS[kind], TableConstraints(**asked), hardware)


def hashed(rows: int, buckets: int) -> TableShape:
    id_map = HashedZchModule(name="t", rows=rows, buckets=buckets, device=torch.device("meta"))
    return TableShape(rows, 8, ManagedCollisionEmbeddingBagCollection, id_map)


def types(found: Offers) -> set[str]:
    return {offer.sharding_type for offer in found.offers}


def test_cpus_offer_all_types_of_pooled_tables_and_gpus_all_but_copies() -> None:
    assert set(offers(cpus(4, 2)).known_types) == ALL
    assert set(offers(gpus()).known_types) == ALL - {"data_parallel"}
    by_steps = {"table_wise", "column_wise", "row_wise"}
    assert set(offers(cpus(4, 2), kind=EmbeddingCollection).known_types) == by_steps | {"data_parallel"}
    assert set(offers(gpus(), kind=EmbeddingCollection).known_types) == by_steps
    assert offers(cpus(4, 2), kind=ManagedCollisionEmbeddingBagCollection).known_types == ["row_wise"]


def test_maps_by_hashes_are_cut_where_buckets_begin_or_not_at_all() -> None:
    sharder = SHARDERS[ManagedCollisionEmbeddingBagCollection]
    for rows, buckets in ((50, 12), (9, 4)):  # 9 rows are no 4 equal blocks, but 4 buckets
        assert Offers(hashed(rows, buckets), sharder, TableConstraints(), cpus(4)).offers == (Offer("row_wise", "fused"),)
    found = Offers(hashed(50, 12), sharder, TableConstraints(), cpus(5))
    assert found.offers == ()
    assert found.problems == [
        "row_wise: its 12 buckets can be shared by 1, 2, 3, 4, 6, 12 ranks, not by 5; with zch buckets: 15 they could",
    ]


def test_copies_and_grids_are_for_those_who_ask() -> None:
    assert types(offers(cpus(4, 2))) == ALL - {"data_parallel", "grid_shard"}
    assert types(offers(cpus(4, 2), sharding_types=sorted(ALL))) == ALL


def test_one_rank_has_nothing_to_cut() -> None:
    assert offers(cpus(1)).offers == (Offer("table_wise", "fused"),)
    assert offers(cpus(1), kind=ManagedCollisionEmbeddingBagCollection).offers == (Offer("row_wise", "fused"),)


def test_kernels_are_those_of_the_device() -> None:
    def kernels(found: Offers) -> dict[str, set[str]]:
        return {kind: {offer.compute_kernel for offer in found.offers if offer.sharding_type == kind} for kind in types(found)}

    every: dict[str, Any] = {"sharding_types": ["data_parallel", "row_wise"]}
    assert kernels(offers(cpus(), **every)) == {"data_parallel": {"dense"}, "row_wise": {"fused"}}
    assert kernels(offers(gpus(), **every)) == {"row_wise": {"fused", "fused_uvm", "fused_uvm_caching"}}
    with_disk: dict[str, Any] = {"sharding_types": ["row_wise"], "compute_kernels": ["key_value", "fused"]}
    assert kernels(offers(gpus(ssd=GIB), **with_disk)) == {"row_wise": {"fused", "key_value"}}
    assert kernels(offers(gpus(ssd=GIB))) == kernels(offers(gpus()))  # never unasked
    assert kernels(offers(gpus(), **with_disk)) == {"row_wise": {"fused"}}
    zch = offers(cpus(), kind=ManagedCollisionEmbeddingBagCollection)
    assert kernels(zch) == {"row_wise": {"fused"}}


def test_column_shards_are_equal_and_wide_enough() -> None:
    def widths(found: Offers) -> list[int | None]:
        return [offer.width for offer in found.offers if offer.sharding_type == "column_wise"]

    assert widths(offers(cpus(8), dim=64)) == [32, 16]
    assert widths(offers(cpus(8), dim=64, sharding_types=["column_wise"])) == [32, 16, 8]
    assert widths(offers(cpus(8), dim=64, sharding_types=["column_wise"], min_partition=20)) == [32]
    assert widths(offers(cpus(3), dim=48, sharding_types=["column_wise"])) == [24, 16]
    assert widths(offers(cpus(8), dim=64, sharding_types=["column_wise"], ranks=(1, 5))) == [32]
    assert widths(offers(cpus(1), dim=64, sharding_types=["column_wise"])) == [64]
    nodes = offers(cpus(4, 2), dim=64, sharding_types=["table_column_wise", "grid_shard"]).offers
    assert {(offer.sharding_type, offer.width) for offer in nodes} == {("table_column_wise", 32), ("grid_shard", 32)}


def test_a_cache_has_the_ratio_that_was_given_or_several() -> None:
    cached: dict[str, Any] = {"sharding_types": ["table_wise"], "compute_kernels": ["fused_uvm_caching"]}
    assert tuple(offer.cache_ratio for offer in offers(gpus(), **cached).offers) == CACHE_RATIOS
    given = offers(gpus(), **cached, cache_params=CacheParams(load_factor=0.3))
    assert given.offers == (Offer("table_wise", "fused_uvm_caching", None, 0.3),)


@pytest.mark.parametrize(
    ("hardware", "asked", "problems"),
    [
        (cpus(4), {"rows": 3, "sharding_types": ["row_wise"]}, ["row_wise: 3 rows cannot be cut into 4 equal blocks with none empty"]),
        (cpus(4), {"rows": 5, "sharding_types": ["row_wise"]}, ["row_wise: 5 rows cannot be cut into 4 equal blocks with none empty"]),
        (
            cpus(4, 2),
            {"rows": 1, "sharding_types": ["table_row_wise"]},
            ["table_row_wise: 1 rows cannot be cut into 2 equal blocks with none empty"],
        ),
        (cpus(), {"compute_kernels": ["fused_uvm"], "sharding_types": ["table_wise"]}, ["table_wise: its kernels here are fused"]),
        (
            gpus(),
            {"compute_kernels": ["dense"], "sharding_types": ["table_wise"]},
            ["table_wise: its kernels here are fused, fused_uvm, fused_uvm_caching"],
        ),
        (
            cpus(),
            {"dim": 5, "sharding_types": ["column_wise"]},
            ["column_wise: embedding_dim 5 cannot be cut into at most 2 equal parts"],
        ),
        (
            gpus(2),
            {"dim": 4, "sharding_types": ["column_wise"]},
            ["column_wise: embedding_dim 4 cannot be cut into at most 2 equal parts of a multiple of 4 columns"],
        ),
        (
            cpus(),
            {"dim": 16, "sharding_types": ["column_wise"], "min_partition": 12},
            ["column_wise: embedding_dim 16 cannot be cut into at most 2 equal parts, and shards of 12 columns or more"],
        ),
        (cpus(), {"kind": EmbeddingCollection, "sharding_types": ["grid_shard"]}, ["grid_shard: such tables do not know it on cpu"]),
        (
            gpus(),
            {"sharding_types": ["data_parallel"]},
            ["data_parallel: copies of a table are trained on CPUs only, as fbgemm's kernels take no other rank's gradients"],
        ),
        (gpus(), {"kind": ManagedCollisionEmbeddingBagCollection, "sharding_types": ["data_parallel"]}, [NO_COPIES_OF_MAPS]),
        (cpus(2), {"ranks": (0, 2, 9)}, ["there are ranks 0 to 1, and ranks has 2, 9"]),
        (cpus(2), {"sharding_types": ["row_wise"], "ranks": (1,)}, ["row_wise: it uses every rank, and ranks has only 1"]),
        (
            cpus(4, 2),
            {"sharding_types": ["table_row_wise"], "ranks": (1, 2)},
            ["table_row_wise: it uses all 2 ranks of a machine, and ranks has no whole one"],
        ),
    ],
)
def test_what_is_out_says_why(hardware: Hardware, asked: dict[str, Any], problems: list[str]) -> None:
    found = offers(hardware, **asked)
    assert found.offers == ()
    assert found.problems == problems


@given(st.integers(1, 300), st.integers(1, 20))
def test_rows_split_where_torchrec_gives_every_rank_some(rows: int, parts: int) -> None:
    sizes, _ = calculate_shard_sizes_and_offsets(torch.empty(rows, 4, device="meta"), parts, parts, "row_wise")
    assert splits(rows, parts) == all(size[0] > 0 for size in sizes)
    assert sum(size[0] for size in sizes) == rows
