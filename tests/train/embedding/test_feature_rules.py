from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from emberline.train.embedding.feature_rules import feature_problems
from emberline.train.features import AutoDisConfig, Feature, LfuPolicy, MlpEmbeddingConfig, ZchConfig

LFU = ZchConfig(zch_size=10, eviction_policy=LfuPolicy())
CHARACTERS = "may only have letters, digits, '_' and '-'; dots, '@', slashes and blanks have meanings of their own"
BAD: dict[str, tuple[Callable[[Any], Feature], str]] = {
    "a dot": (lambda make: make.sparse("a.b", embedding_name="t"), f"feature 'a.b': feature_name 'a.b' {CHARACTERS}"),
    "an at sign": (lambda make: make.dense("a@b"), f"feature 'a@b': feature_name 'a@b' {CHARACTERS}"),
    "no name": (lambda make: make.dense(""), "feature '': feature_name is missing"),
    "a table with a dot": (lambda make: make.sparse("a", embedding_name="t.u"), f"feature 'a': embedding_name 't.u' {CHARACTERS}"),
    "a table without name": (lambda make: make.sparse("a", embedding_name=""), "feature 'a': embedding_name is missing"),
    "a name that torch keeps": (
        lambda make: make.sparse("a", embedding_name="keys"),
        "feature 'a': embedding_name 'keys' is a name that torch keeps for itself; choose another, such as 'keys_emb'",
    ),
    "no width": (lambda make: make.sparse("a", dim=0), "feature 'a': embedding_dim must be at least 1, found 0"),
    "no rows": (lambda make: make.sparse("a", rows=0), "feature 'a': its table must have at least 1 row, found 0"),
    "a type": (lambda make: make.sparse("a", dtype="int4"), "feature 'a': unknown data_type 'int4'; known: fp32, fp16, bf16"),
    "no policy": (lambda make: make.sparse("a", zch=ZchConfig(zch_size=5)), "feature 'a': zch has no policy; set one of lfu, lru, distance_lfu"),
    "no numbers": (lambda make: make.dense("a", 0), "feature 'a': value_dim must be at least 1 for a number, found 0"),
    "autodis of two": (
        lambda make: make.dense("a", 2, dense_embedding=AutoDisConfig(num_channels=3), embedding_dim=4),
        "feature 'a': autodis takes one number, and value_dim is 2; use mlp, or value_dim 1",
    ),
    "an mlp without width": (
        lambda make: make.dense("a", dense_embedding=MlpEmbeddingConfig()),
        "feature 'a': embedding_dim must be at least 1 for autodis and mlp, found 0",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_what_cannot_be_is_named(make: Any, what: str) -> None:
    build, message = BAD[what]
    assert list(feature_problems([build(make)])) == [message]


def test_a_table_is_as_large_as_its_id_map(make: Any) -> None:
    feature = make.sparse("a", zch=LFU)
    assert list(feature_problems([feature])) == []
    assert list(feature_problems([replace(feature, rows=11)])) == ["feature 'a': its table has 11 rows, but zch_size 10"]


def test_names_are_counted(make: Any) -> None:
    features = [make.sparse("a"), make.dense("b"), make.sparse("a"), make.dense("a")]
    assert list(feature_problems(features)) == ["feature 'a': 3 features have this name; give each a name of its own"]
