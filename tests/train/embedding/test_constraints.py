"""What a planner may choose for one table."""

from typing import Any

import pytest
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.types import CacheParams

from emberline.train.embedding import EmbeddingGroup
from emberline.train.embedding.constraints import ASSUMED_STEPS, pinned_ranks, table_constraints
from emberline.train.features import EmbeddingConstraints, Feature
from emberline.train.features.placement import TableConstraints, asked_of


def test_nothing_asked_allows_everything(make: Any) -> None:
    found = table_constraints(None, [make.sparse("a")], weighted=True)
    assert found == TableConstraints(pooling_factors=[1.0], pooling_sources=("assumed",), readers=("a",), is_weighted=True)
    assert (found.sharding_types, found.compute_kernels, found.cache_params, pinned_ranks(found)) == (None, None, None, ())


def test_everything_asked_is_there(make: Any) -> None:
    asked = EmbeddingConstraints(
        sharding_types=("row_wise",), compute_kernels=("fused",), min_partition=8, cache_load_factor=0.5, ranks=(2, 1), max_hbm_mib=1.5
    )
    found = table_constraints(asked_of(asked), [make.sparse("a", pooling_factor=4.0)], weighted=False)
    assert (found.sharding_types, found.compute_kernels, found.min_partition) == (["row_wise"], ["fused"], 8)
    assert found.cache_params == CacheParams(load_factor=0.5)
    assert (found.ranks, found.max_hbm, pinned_ranks(found)) == ((2, 1), 3 << 19, (2, 1))
    assert (found.pooling_factors, found.pooling_sources) == ([4.0], ("config",))
    assert pinned_ranks(ParameterConstraints()) == ()


@pytest.mark.parametrize(
    ("name", "options", "ids"), [("sparse", {}, 1.0), ("sequence", {}, float(ASSUMED_STEPS)), ("sequence", {"value_dim": 0}, float(ASSUMED_STEPS))]
)
def test_ids_that_nobody_counted_are_assumed(make: Any, name: str, options: dict[str, Any], ids: float) -> None:
    feature: Feature = getattr(make, name)("a", **options)
    assert table_constraints(None, [feature], False).pooling_factors == [ids]


def test_equal_constraints_have_one_hash(make: Any) -> None:
    one, two = (table_constraints(asked_of(EmbeddingConstraints(ranks=(rank,))), [make.sparse("a")], False) for rank in (0, 1))
    assert hash(one) == hash(table_constraints(asked_of(EmbeddingConstraints(ranks=(0,))), [make.sparse("a")], False))
    assert hash(one) != hash(two)


def test_a_group_names_its_tables_by_the_path_it_is_told(make: Any) -> None:
    features = [make.sparse("a", embedding_name="t", pooling_factor=2.0), make.sparse("b", embedding_name="t"), make.sparse("w", weighted=True)]
    group = EmbeddingGroup(features, [make.group("one", "b", "a"), make.group("two", "w")], device="meta")
    found = group.parameter_constraints("here")
    assert {path: (own.readers, own.pooling_factors, own.is_weighted) for path, own in found.items() if isinstance(own, TableConstraints)} == {
        "here.pooled.ebc.t": (("b", "a"), [1.0, 2.0], False),
        "here.pooled.weighted_ebc.w_emb": (("w",), [1.0], True),
    }
    assert set(group.parameter_constraints()) == {"pooled.ebc.t", "pooled.weighted_ebc.w_emb"}
