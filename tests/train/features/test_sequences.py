"""Sequences: of several features with one number of steps, and of one by itself."""

from typing import Any

import pytest

from emberline.errors import ConfigError
from emberline.schema import BoundaryEncoder, CrossEncoder, FeatureKind, FeatureSpec, HashEncoder, Keep, NumericEncoder, Pooling
from emberline.train.features import (
    AloneSequenceConfig,
    BoolMaskFeatureConfig,
    ComboFeatureConfig,
    Feature,
    FeatureConfig,
    IdFeatureConfig,
    LookupFeatureConfig,
    MlpEmbeddingConfig,
    RawFeatureConfig,
    SequenceFeatureConfig,
    TokenizeFeatureConfig,
    create_features,
)


def an_id(name: str = "i", **values: Any) -> IdFeatureConfig:
    values.setdefault("hash_bucket_size", 10)
    return IdFeatureConfig(**{"feature_name": name, "embedding_dim": 4, **values})


def group(*features: Any, name: str = "s", **values: Any) -> SequenceFeatureConfig:
    return SequenceFeatureConfig(sequence_name=name, features=features, **values)


def built(*configs: FeatureConfig, fg_mode: str = "FG_NORMAL", neg_fields: tuple[str, ...] = ()) -> list[Feature]:
    return create_features(configs, neg_fields=neg_fields, fg_mode=fg_mode)


def problems(*configs: FeatureConfig, fg_mode: str = "FG_NORMAL") -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        create_features(configs, fg_mode=fg_mode)
    return caught.value.problems


def test_a_grouped_id_complete() -> None:
    config = an_id("item", expression="item:item_id", separator="|", embedding_name="shared", pooling=Pooling.MEAN)
    (feature,) = built(group(config, name="click", sequence_length=20, sequence_delim=",", sequence_keep=Keep.OLDEST))
    assert feature == Feature(
        name="click__item",
        spec=FeatureSpec(
            name="click__item",
            kind=FeatureKind.SPARSE,
            columns=("click__item_id",),
            encoder=HashEncoder(rows=10),
            side="user",
            value_dim=1,
            separator="|",
            default="0",
            sequence=True,
            sequence_length=20,
            keep=Keep.OLDEST,
            step_separator=",",
        ),
        embedding_dim=4,
        embedding_name="shared",
        rows=10,
        pooling=Pooling.MEAN,
        sequence_name="click",
    )
    assert (feature.is_sequence, feature.sequence_length, feature.keep, feature.value_dim) == (True, 20, Keep.OLDEST, 1)


def test_a_grouped_sequence_of_encoded_data() -> None:
    first, second = built(group(an_id(), RawFeatureConfig(feature_name="r", expression="item:x", value_dim=3)), fg_mode="FG_NONE")
    assert (first.name, first.spec.columns, first.embedding_name, first.spec.default, first.spec.separator) == (
        "s__i",
        ("s__i",),
        "s__i_emb",
        None,
        "\x03",
    )
    assert (second.name, second.spec.columns, second.spec.encoder, second.output_dim, second.spec.side) == (
        "s__r",
        ("s__r",),
        NumericEncoder(),
        3,
        "user",
    )
    assert first.spec.step_separator == second.spec.step_separator == ";"
    assert (first.sequence_length, first.keep) == (0, Keep.NEWEST)


def test_a_sequence_by_itself_has_its_own_lengths() -> None:
    config = an_id("hist", expression="item:hist", sequence_length=5, sequence_delim="|", sequence_keep=Keep.OLDEST)
    (feature,) = built(AloneSequenceConfig(feature=config))
    assert (feature.name, feature.sequence_name, feature.spec.columns, feature.spec.side) == ("hist", "", ("hist",), "item")
    assert (feature.is_sequence, feature.sequence_length, feature.keep, feature.spec.step_separator) == (True, 5, Keep.OLDEST, "|")
    assert feature.embedding_name == "hist_emb"
    (plain,) = built(config)
    assert (plain.is_sequence, plain.sequence_length, plain.spec.step_separator) == (False, 0, ";")


@pytest.mark.parametrize("config", [an_id(), ComboFeatureConfig(feature_name="i", embedding_dim=4, hash_bucket_size=5, expression=("item:a",))])
def test_ids_have_one_value_a_step_unless_told(config: IdFeatureConfig | ComboFeatureConfig) -> None:
    (inside,) = built(group(config))
    (outside,) = built(config)
    assert (inside.value_dim, outside.value_dim) == (1, 0)
    (many,) = built(group(an_id(value_dim=0)))
    assert many.value_dim == 0
    (mask,) = built(group(BoolMaskFeatureConfig(feature_name="m", embedding_dim=4, hash_bucket_size=5)), fg_mode="FG_NONE")
    assert mask.value_dim == 1


def test_a_step_without_a_value_reads_a_default() -> None:
    defaults = [
        feature.spec.default
        for feature in built(
            group(
                an_id("a"),
                an_id("b", default_value="7"),
                an_id("c", weighted=True),
                an_id("d", value_dim=0),
                RawFeatureConfig(feature_name="e", default_value=""),
                RawFeatureConfig(feature_name="f"),
            )
        )
    ]
    assert defaults == ["0", "7", "0:1", "0", "0", "0"]
    (words,) = built(group(an_id(hash_bucket_size=None, vocab_list=("x",))))
    assert words.spec.default == "0"
    assert dict(zip(words.spec.encoder.words, words.spec.encoder.word_rows, strict=True)) == {"0": 0, "x": 2}  # type: ignore[union-attr]
    (encoded,) = built(group(an_id(fg_encoded_default_value="3")), fg_mode="FG_NONE")
    assert encoded.spec.default == "3"


def test_which_columns_have_steps() -> None:
    combo = ComboFeatureConfig(feature_name="c", embedding_dim=4, hash_bucket_size=5, expression=("user:age", "item:cate", "item:brand"))
    (feature,) = built(group(combo))
    assert (feature.spec.columns, feature.spec.row_columns) == (("age", "s__cate", "s__brand"), ("age",))
    assert feature.spec.encoder == CrossEncoder(rows=5)
    named = ComboFeatureConfig(**{**vars(combo), "sequence_fields": ("age", "brand")})
    (feature,) = built(group(named))
    assert (feature.spec.columns, feature.spec.row_columns) == (("s__age", "cate", "s__brand"), ("cate",))
    (feature,) = built(AloneSequenceConfig(feature=combo))
    assert (feature.spec.columns, feature.spec.row_columns, feature.spec.side) == (("age", "cate", "brand"), (), "item")
    (feature,) = built(AloneSequenceConfig(feature=named))
    assert (feature.spec.columns, feature.spec.row_columns) == (("age", "cate", "brand"), ("cate",))
    (single,) = built(group(an_id(expression="user:x")))
    assert (single.spec.columns, single.spec.row_columns) == (("s__x",), ())
    lookup = LookupFeatureConfig(feature_name="l", map="user:kv", key="item:k")
    (feature,) = built(group(lookup))
    assert (feature.spec.columns, feature.spec.row_columns) == (("kv", "s__k"), ("kv",))


def test_families_of_numbers_in_sequences() -> None:
    configs = [
        RawFeatureConfig(feature_name="a", boundaries=(1.0, 2.0), embedding_dim=4),
        RawFeatureConfig(feature_name="b", dense_emb=MlpEmbeddingConfig(), embedding_dim=6),
        LookupFeatureConfig(feature_name="c", map="user:kv", key="item:k", value_dim=2),
    ]
    first, second, third = built(group(*configs))
    assert (first.spec.encoder, first.rows, first.value_dim, first.output_dim) == (BoundaryEncoder(boundaries=(1.0, 2.0)), 3, 1, 4)
    assert (second.dense_embedding, second.value_dim, second.output_dim, second.is_sequence) == (MlpEmbeddingConfig(), 1, 6, True)
    assert (third.is_sparse, third.value_dim, third.output_dim) == (False, 2, 2)


def test_tokens_as_steps() -> None:
    tokens = TokenizeFeatureConfig(feature_name="t", embedding_dim=4, vocab_size=9, tokens_as_sequence=True, sequence_length=3)
    (feature,) = built(tokens, fg_mode="FG_NONE")
    assert (feature.is_sequence, feature.value_dim, feature.sequence_length, feature.rows) == (True, 1, 3, 9)
    (plain,) = built(TokenizeFeatureConfig(feature_name="t", embedding_dim=4, vocab_size=9), fg_mode="FG_NONE")
    assert (plain.is_sequence, plain.value_dim) == (False, 0)
    for config, name in ((group(tokens), "s__t"), (AloneSequenceConfig(feature=tokens), "t")):
        assert problems(config, fg_mode="FG_NONE") == (
            f"feature {name!r}: tokens_as_sequence makes the tokens of a row its steps, and this is a sequence already; take it out",
        )


def test_data_groups_of_sequences() -> None:
    features = built(group(an_id("a"), an_id("b")), an_id("a"), fg_mode="FG_NONE", neg_fields=("a",))
    assert [(feature.name, feature.data_group) for feature in features] == [("s__a", "__BASE__"), ("s__b", "__BASE__"), ("a", "__NEG__")]


@pytest.mark.parametrize(
    ("configs", "messages"),
    [
        ((group(),), ("sequence 's': has no features",)),
        (
            (group(an_id(), name="a.b"),),
            ("sequence 'a.b': sequence_name 'a.b' may only have letters", "feature 'a.b__i': feature_name 'a.b__i' may only"),
        ),
        ((group(an_id(), sequence_delim=""),), ("sequence 's': sequence_delim must not be empty",)),
        ((group(an_id()), group(an_id("j"))), ("sequence 's': 2 sequences have this name",)),
        ((group(an_id(), an_id()),), ("feature 's__i': 2 features have this name",)),
        ((group(an_id()), an_id("s__i")), ("feature 's__i': 2 features have this name",)),
        ((group(an_id("")),), ("feature '': feature_name is missing",)),
        ((AloneSequenceConfig(feature=an_id(sequence_delim="")),), ("feature 'i': sequence_delim must not be empty",)),
        (
            (group(an_id(value_dim=0, separator=";")),),
            ("feature 's__i': sequence_delim and the separator of a step's values are both ';'; change one",),
        ),
        (
            (group(an_id(expression="item:x", sequence_fields=("y",))),),
            ("feature 's__i': sequence_fields: 'y' is none of its raw columns, x", "feature 's__i': has no raw column with steps"),
        ),
        (
            (group(LookupFeatureConfig(feature_name="l", map="user:kv", key="user:k")),),
            ("feature 's__l': has no raw column with steps; list those that have in sequence_fields",),
        ),
        (
            (group(an_id(hash_bucket_size=0), an_id("j", embedding_dim=0)),),
            ("feature 's__i': hash_bucket_size must", "feature 's__j': embedding_dim must"),
        ),
    ],
)
def test_what_can_not_be_is_named(configs: tuple[FeatureConfig, ...], messages: tuple[str, ...]) -> None:
    found = problems(*configs)
    assert len(found) == len(messages), found
    for text, message in zip(found, messages, strict=True):
        assert text.startswith(message)
