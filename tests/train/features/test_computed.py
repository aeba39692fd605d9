"""Lookups, matches and expressions over raw columns."""

from typing import Any

import pytest

from emberline.errors import ConfigError
from emberline.schema import (
    BoundaryEncoder,
    BucketEncoder,
    Combiner,
    Encoder,
    ExprEncoder,
    HashEncoder,
    LookupEncoder,
    MatchEncoder,
    Normalizer,
    NumericEncoder,
    RawIdEncoder,
    VocabEncoder,
)
from emberline.train.features import (
    AloneSequenceConfig,
    ExprFeatureConfig,
    FeatureConfig,
    LfuPolicy,
    LookupFeatureConfig,
    MatchFeatureConfig,
    ZchConfig,
    create_features,
)

ZSCORE = Normalizer(method="zscore", parameters=(("mean", 0.0), ("std", 1.0)))


def lookup(**values: Any) -> LookupFeatureConfig:
    return LookupFeatureConfig(**{"feature_name": "f", "embedding_dim": 4, "map": "user:kv", "key": "item:k", **values})


def match(**values: Any) -> MatchFeatureConfig:
    return MatchFeatureConfig(**{"feature_name": "f", "embedding_dim": 4, "nested_map": "user:kkv", "pkey": "item:p", "skey": "item:s", **values})


def expr(**values: Any) -> ExprFeatureConfig:
    given = {"feature_name": "f", "embedding_dim": 4, "expression": "pv / (1 + click)", "variables": ("user:pv", "item:click")}
    return ExprFeatureConfig(**{**given, **values})


def encoder(config: FeatureConfig) -> Encoder:
    (feature,) = create_features([config], fg_mode="FG_NORMAL")
    return feature.spec.encoder


@pytest.mark.parametrize(
    ("values", "inner"),
    [
        ({"hash_bucket_size": 9}, HashEncoder(rows=9)),
        ({"num_buckets": 9, "default_bucketize_value": 2}, BucketEncoder(rows=9, oov_row=2)),
        ({"zch": ZchConfig(zch_size=9, eviction_policy=LfuPolicy())}, RawIdEncoder()),
        ({"vocab_dict": (("x", 2),), "default_bucketize_value": 0}, VocabEncoder(words=("x",), word_rows=(2,), oov_row=0, rows=3)),
    ],
)
def test_ids_that_are_looked_up(values: dict[str, Any], inner: Any) -> None:
    assert encoder(lookup(**values)) == LookupEncoder(inner=inner)
    assert encoder(match(**values)) == MatchEncoder(inner=inner)
    assert encoder(lookup(need_key=True, need_discrete=True, value_separator="|", separator=",", **values)) == LookupEncoder(
        inner=inner, with_key=True, value_separator="|", map_separator=","
    )


def test_numbers_that_are_looked_up() -> None:
    assert encoder(lookup()) == LookupEncoder(inner=NumericEncoder(), combiner=Combiner.SUM)
    assert encoder(lookup(combiner="MAX", normalizer=ZSCORE)) == LookupEncoder(inner=NumericEncoder(normalizer=ZSCORE), combiner=Combiner.MAX)
    assert encoder(lookup(value_dim=3)) == LookupEncoder(inner=NumericEncoder())
    boundaries = BoundaryEncoder(boundaries=(1.0,), normalizer=ZSCORE)
    assert encoder(lookup(boundaries=(1.0,), normalizer=ZSCORE, combiner="mean")) == LookupEncoder(inner=boundaries, combiner=Combiner.MEAN)
    assert encoder(lookup(boundaries=(1.0,), value_dim=0)) == LookupEncoder(inner=BoundaryEncoder(boundaries=(1.0,)))
    assert encoder(match()) == MatchEncoder(inner=NumericEncoder(), combiner=Combiner.SUM)


def test_the_columns_of_a_match() -> None:
    (feature,) = create_features([match(num_buckets=3, show_pkey=True)], fg_mode="FG_NORMAL")
    assert (feature.spec.columns, feature.spec.side) == (("kkv", "p", "s"), "item")
    assert feature.spec.encoder == MatchEncoder(inner=BucketEncoder(rows=3), with_outer=True)
    (feature,) = create_features([match(hash_bucket_size=3, pkey="ALL", show_skey=True)], fg_mode="FG_NORMAL")
    assert (feature.spec.columns, feature.spec.encoder) == (
        ("kkv", "s"),
        MatchEncoder(inner=HashEncoder(rows=3), any_outer=True, with_inner=True),
    )
    assert encoder(match(hash_bucket_size=3, skey="ALL")) == MatchEncoder(inner=HashEncoder(rows=3), any_inner=True)


def test_a_vocabulary_of_a_match_has_one_row_more() -> None:
    (feature,) = create_features([match(vocab_list=("x",))], fg_mode="FG_NORMAL")
    assert feature.rows == 4
    assert feature.spec.encoder == MatchEncoder(inner=VocabEncoder(words=("0", "x"), word_rows=(0, 2), oov_row=1, rows=4))


def test_expressions() -> None:
    found = create_features([expr()], fg_mode="FG_NORMAL")[0].spec
    assert (found.columns, found.default) == (("pv", "click"), "0")
    assert found.encoder == ExprEncoder(expression="pv / (1 + click)", variables=("pv", "click"), inner=NumericEncoder())
    assert encoder(expr(boundaries=(0.5,), fill_missing=0.0)) == ExprEncoder(
        expression="pv / (1 + click)", variables=("pv", "click"), inner=BoundaryEncoder(boundaries=(0.5,)), fill_missing=0.0
    )


def test_expressions_over_steps_keep_their_names() -> None:
    config = AloneSequenceConfig(feature=expr(sequence_fields=("click",)))
    spec = create_features([config], fg_mode="FG_NORMAL")[0].spec
    assert (spec.columns, spec.row_columns, spec.sequence) == (("pv", "click"), ("pv",), True)
    assert isinstance(spec.encoder, ExprEncoder)
    assert spec.encoder.variables == ("pv", "click")


@pytest.mark.parametrize(
    ("config", "messages"),
    [
        (lookup(map="", key=""), ("map is missing: raw values are computed from it", "key is missing: raw values are computed from it")),
        (match(pkey="", num_buckets=3), ("pkey is missing",)),
        (expr(variables=()), ("variables is missing",)),
        (expr(expression=""), ("expression is missing",)),
        (expr(expression="pv + click + x"), ("expression 'pv + click + x'",)),
        (expr(variables=("usr:pv", "item:click")), ("expression 'usr:pv': unknown side 'usr'",)),
        (lookup(combiner="sums"), ("unknown combiner 'sums'; did you mean 'sum'?",)),
        (lookup(combiner="sum", num_buckets=3), ("combiner sum is for numbers, and these are ids",)),
        (lookup(combiner="sum", value_dim=2), ("combiner sum makes one number, and value_dim is 2",)),
        (lookup(normalizer=ZSCORE, num_buckets=3), ("normalizer is for numbers, and these are ids",)),
        (lookup(need_discrete=True), ("need_discrete is for ids, and these are numbers",)),
        (lookup(need_key=True, boundaries=(1.0,)), ("need_key is for ids, and these are numbers",)),
        (match(show_pkey=True, show_skey=True), ("show_pkey is for ids", "show_skey is for ids")),
        (lookup(map="const:x"), ("expression 'const:x': the side 'const' is not supported yet",)),
    ],
)
def test_what_can_not_be_is_named(config: FeatureConfig, messages: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        create_features([config], fg_mode="FG_NORMAL")
    assert len(caught.value.problems) == len(messages), caught.value.problems
    for found, message in zip(caught.value.problems, messages, strict=True):
        assert found.startswith(f"feature 'f': {message}")
