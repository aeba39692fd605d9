"""Rows, widths, defaults and data groups of every family."""

from typing import Any

import pytest

from emberline.errors import ConfigError
from emberline.schema import BucketEncoder, FeatureKind, NumericEncoder, RawIdEncoder
from emberline.train.features import (
    AutoDisConfig,
    BoolMaskFeatureConfig,
    CombineFeatureConfig,
    ComboFeatureConfig,
    CustomFeatureConfig,
    ExprFeatureConfig,
    Feature,
    FeatureConfig,
    IdFeatureConfig,
    KvDotProductFeatureConfig,
    LfuPolicy,
    LookupFeatureConfig,
    MatchFeatureConfig,
    MlpEmbeddingConfig,
    OverlapFeatureConfig,
    RawFeatureConfig,
    TokenizeFeatureConfig,
    ZchConfig,
    create_features,
)

ZCH = ZchConfig(zch_size=10, eviction_policy=LfuPolicy())
EXPRESSIONS: dict[type[Any], dict[str, Any]] = {
    IdFeatureConfig: {"expression": "user:a"},
    RawFeatureConfig: {"expression": "user:a"},
    TokenizeFeatureConfig: {"expression": "user:a"},
    CombineFeatureConfig: {"expression": "user:a"},
    ComboFeatureConfig: {"expression": ("user:a", "item:b")},
    BoolMaskFeatureConfig: {"expression": ("user:a", "item:b")},
    CustomFeatureConfig: {"expression": ("user:a", "item:b")},
    LookupFeatureConfig: {"map": "user:a", "key": "item:b"},
    MatchFeatureConfig: {"nested_map": "user:a", "pkey": "item:b", "skey": "ALL"},
    ExprFeatureConfig: {"variables": ("user:a", "item:b")},
    OverlapFeatureConfig: {"query": "user:a", "title": "item:b"},
    KvDotProductFeatureConfig: {"query": "user:a", "document": "item:b"},
}
ALWAYS_IDS = (IdFeatureConfig, ComboFeatureConfig, BoolMaskFeatureConfig)
VALUES = (LookupFeatureConfig, MatchFeatureConfig, CustomFeatureConfig)


def a(cls: type[Any], name: str = "f", **values: Any) -> FeatureConfig:
    config: FeatureConfig = cls(**{"feature_name": name, "embedding_dim": 4, **EXPRESSIONS[cls], **values})
    return config


def one(config: FeatureConfig) -> Feature:
    (feature,) = create_features([config])
    return feature


def problems(*configs: FeatureConfig) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        create_features(configs)
    return caught.value.problems


@pytest.mark.parametrize("cls", [*ALWAYS_IDS, *VALUES])
@pytest.mark.parametrize(
    ("values", "rows"),
    [
        ({"hash_bucket_size": 100}, 100),
        ({"vocab_list": ("x", "y")}, 4),
        ({"vocab_list": ("x", "y"), "default_bucketize_value": 1}, 2),
        ({"vocab_dict": (("x", 5),)}, 6),
        ({"zch": ZCH}, 10),
    ],
)
def test_rows_of_ids(cls: type[Any], values: dict[str, Any], rows: int) -> None:
    feature = one(a(cls, **values))
    if cls is MatchFeatureConfig and "vocab_list" in values:
        rows += 1
    assert (feature.rows, feature.output_dim, feature.spec.kind) == (rows, 4, FeatureKind.SPARSE)
    assert feature.spec.encoder == (RawIdEncoder() if "zch" in values else BucketEncoder(rows=rows))
    assert (feature.value_dim, feature.spec.default, feature.spec.encoded) == (0 if cls in ALWAYS_IDS else 1, None, True)


@pytest.mark.parametrize("cls", [cls for cls in EXPRESSIONS if hasattr(cls, "num_buckets")])
def test_rows_of_buckets(cls: type[Any]) -> None:
    assert one(a(cls, num_buckets=7)).rows == 7
    (found,) = problems(a(cls, num_buckets=0))
    assert found == "feature 'f': num_buckets must be at least 1 and below 2^63, found 0"


@pytest.mark.parametrize("cls", [cls for cls in EXPRESSIONS if hasattr(cls, "boundaries")])
def test_numbers_and_their_boundaries(cls: type[Any]) -> None:
    feature = one(a(cls, embedding_dim=0))
    assert (feature.spec.kind, feature.rows, feature.output_dim, feature.value_dim, feature.spec.encoder) == (
        FeatureKind.DENSE,
        0,
        1,
        1,
        NumericEncoder(),
    )
    feature = one(a(cls, boundaries=(0.0, 1.0)))
    assert (feature.spec.kind, feature.rows, feature.output_dim, feature.value_dim) == (FeatureKind.SPARSE, 3, 4, 1)
    assert feature.embedding_name == "f_emb"
    for embedding in (AutoDisConfig(num_channels=2), MlpEmbeddingConfig()):
        feature = one(a(cls, dense_emb=embedding))
        assert (feature.dense_embedding, feature.output_dim, feature.value_dim, feature.embedding_name) == (embedding, 4, 1, "")
    assert problems(a(cls, boundaries=(1.0, 0.0)), a(cls, "g", boundaries=(1.0,), dense_emb=MlpEmbeddingConfig())) == (
        "feature 'f': boundaries must ascend, found 0 after 1",
        "feature 'g': boundaries and mlp exclude each other: buckets of numbers have a table already",
    )


@pytest.mark.parametrize(("given", "width"), [(None, 1), (0, 1), (3, 3)])
def test_widths_of_numbers_looked_up(given: int | None, width: int) -> None:
    for cls in (LookupFeatureConfig, CustomFeatureConfig):
        assert one(a(cls, embedding_dim=0, value_dim=given)).output_dim == width
    if width > 1:
        assert problems(a(MatchFeatureConfig, embedding_dim=0, value_dim=given)) == (
            "feature 'f': value_dim must be 1 for a number, found 3: a match finds one",
        )


@pytest.mark.parametrize("cls", list(EXPRESSIONS))
def test_negatives_by_family(cls: type[Any]) -> None:
    source = {"vocab_size": 5} if cls is TokenizeFeatureConfig else {"boundaries": (1.0,)} if hasattr(cls, "boundaries") else {"hash_bucket_size": 5}
    (feature,) = create_features([a(cls, **source)], neg_fields=["f"])
    alone = (IdFeatureConfig, RawFeatureConfig, TokenizeFeatureConfig, CombineFeatureConfig)
    assert feature.data_group == ("__NEG__" if cls in alone else "__CNEG__")
    assert feature.spec.side == "item"
    assert one(a(cls, **source)).data_group == "__BASE__"


def test_results_of_features_and_constants_are_understood_where_nothing_is_read() -> None:
    feature = one(a(LookupFeatureConfig, map="feature:scores", key="const:x", num_buckets=3))
    assert (feature.spec.columns, feature.spec.side) == (("f",), "item")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            a(BoolMaskFeatureConfig),
            "has no source of rows; set one of zch, dynamicemb, hash_bucket_size, num_buckets, vocab_list, vocab_dict, vocab_file",
        ),
        (a(LookupFeatureConfig, num_buckets=3, boundaries=(1.0,)), "has 2 sources of rows, num_buckets and boundaries; keep one"),
        (a(CombineFeatureConfig, num_buckets=3, boundaries=(1.0,)), "has 2 sources of rows, num_buckets and boundaries; keep one"),
        (a(CustomFeatureConfig, num_buckets=3, dense_emb=MlpEmbeddingConfig()), "num_buckets and mlp exclude each other: ids have a table already"),
        (a(MatchFeatureConfig, zch=ZchConfig(zch_size=10)), "zch: no eviction policy is set"),
        (a(MatchFeatureConfig, num_buckets=3, embedding_dim=0), "embedding_dim must be set"),
        (a(LookupFeatureConfig, trainable=False), "trainable: false needs a source of rows: only tables can be frozen"),
        (a(CombineFeatureConfig, trainable=False), "trainable: false needs num_buckets or boundaries"),
        (a(LookupFeatureConfig, dense_emb=AutoDisConfig(num_channels=2), value_dim=2), "autodis: value_dim must be 1, found 2"),
        (a(LookupFeatureConfig, num_buckets=3, value_dim=-1), "value_dim must be at least 0"),
        (a(LookupFeatureConfig, num_buckets=3, fg_encoded_default_value="3"), "fg_encoded_default_value '3': id 3 is outside [0, 3)"),
        (a(ExprFeatureConfig, value_dim=0), "value_dim must be at least 1"),
        (a(RawFeatureConfig, value_dim=2**20 + 1), "value_dim must be at most 1048576, found 1048577"),
        (a(CustomFeatureConfig, value_dim=2**20 + 1), "value_dim must be at most 1048576, found 1048577"),
        (a(OverlapFeatureConfig, query="usr:a"), "expression 'usr:a': unknown side 'usr'"),
        (a(TokenizeFeatureConfig), "vocab_file is missing: the tokenizer's file, or vocab_size: how many tokens it has"),
    ],
)
def test_what_can_not_be_is_named(config: FeatureConfig, message: str) -> None:
    (found,) = problems(config)
    assert found.startswith("feature 'f': ")
    assert message in found


@pytest.mark.parametrize("cls", [OverlapFeatureConfig, KvDotProductFeatureConfig, CombineFeatureConfig, TokenizeFeatureConfig, BoolMaskFeatureConfig])
def test_what_is_not_computed_from_raw_values_is_refused(cls: type[Any]) -> None:
    with pytest.raises(ConfigError, match=r"feature 'f': \w+ is not supported yet for raw values \(fg_mode FG_NORMAL\); compute it before"):
        create_features([a(cls)], fg_mode="FG_NORMAL")
