"""Sequences, families and encoders as a config writes them."""

import json
from pathlib import Path

import pytest

from emberline.errors import ConfigError
from emberline.schema import GroupKind, Keep
from emberline.train.config import parse_config
from emberline.train.config.functions import ActivationSpec
from emberline.train.config.model_config import MlpConfig
from emberline.train.encoders.configs import (
    DinEncoderConfig,
    MultiWindowDinEncoderConfig,
    PoolingEncoderConfig,
    RecurrentEncoderConfig,
    SelfAttentionEncoderConfig,
    SimpleAttentionConfig,
    TransformerEncoderConfig,
)
from emberline.train.features import (
    AloneSequenceConfig,
    ExprFeatureConfig,
    IdFeatureConfig,
    LookupFeatureConfig,
    RawFeatureConfig,
    SequenceFeatureConfig,
    create_features,
)


def problems(text: str) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        parse_config(text)
    return caught.value.problems


def test_a_sequence_of_several_features() -> None:
    text = """
    feature_configs { sequence_feature {
      sequence_name: "click" sequence_length: 20 sequence_delim: "|" sequence_keep: "Oldest" sequence_pk: "user:click"
      features { id_feature { feature_name: "item" expression: "item:item" embedding_dim: 4 num_buckets: 9 sequence_length: 3 } }
      features { raw_feature { feature_name: "price" } }
    } }
    """
    config = parse_config(text)
    assert config.feature_configs == (
        SequenceFeatureConfig(
            sequence_name="click",
            sequence_length=20,
            sequence_delim="|",
            sequence_keep=Keep.OLDEST,
            features=(
                IdFeatureConfig(feature_name="item", expression="item:item", embedding_dim=4, num_buckets=9, sequence_length=3),
                RawFeatureConfig(feature_name="price"),
            ),
        ),
    )
    assert config.notes == (
        "sequence 'click': sequence_pk has no effect: steps come with each row, and are looked up nowhere",
        "feature 'click__item': sequence_length has no effect: it is the sequence's that counts, of 'click'",
    )
    assert parse_config(config.text) == config


def test_a_sequence_by_itself() -> None:
    text = "feature_configs { sequence_id_feature { feature_name: 'h' embedding_dim: 4 num_buckets: 9 sequence_length: 5 sequence_keep: 'newest' } }"
    config = parse_config(text)
    inner = IdFeatureConfig(feature_name="h", embedding_dim=4, num_buckets=9, sequence_length=5, sequence_keep=Keep.NEWEST)
    assert config.feature_configs == (AloneSequenceConfig(feature=inner),)
    assert config.notes == ()
    with pytest.raises(ConfigError, match="feature 'h': sequence_keep: must be newest or oldest, found 'last'"):
        parse_config(text.replace("newest", "last"))


def test_families_with_all_that_a_config_says() -> None:
    text = """
    data_config { fg_mode: FG_NORMAL }
    feature_configs { lookup_feature { feature_name: "l" map: "user:kv" key: "item:k" combiner: "mean" value_separator: "," boundaries: [1, 2]
                                       embedding_dim: 4 normalizer: "method=minmax,min=0,max=1" } }
    feature_configs { expr_feature { feature_name: "e" expression: "a + b" variables: ["a", "b"] fill_missing: 0 } }
    """
    lookup, expr = parse_config(text).feature_configs
    assert isinstance(lookup, LookupFeatureConfig)
    assert isinstance(expr, ExprFeatureConfig)
    assert (lookup.map, lookup.key, lookup.combiner, lookup.value_separator, lookup.boundaries) == ("user:kv", "item:k", "mean", ",", (1.0, 2.0))
    assert (expr.expression, expr.variables, expr.fill_missing) == ("a + b", ("a", "b"), 0.0)


@pytest.mark.parametrize(
    ("feature", "note"),
    [
        ("lookup_feature { feature_name: 'x' embedding_dim: 4 }", "embedding_dim has no effect without a source of rows, autodis or mlp"),
        ("combine_feature { feature_name: 'x' embedding_name: 'e' }", "embedding_name has no effect without num_buckets, boundaries, autodis or mlp"),
        ("overlap_feature { feature_name: 'x' embedding_dim: 4 }", "embedding_dim has no effect without boundaries, autodis or mlp"),
        ("raw_feature { feature_name: 'x' sequence_fields: 'x' }", "sequence_fields has no effect: it is for sequences"),
        (
            "tokenize_feature { feature_name: 'x' embedding_dim: 4 vocab_size: 3 tokens_as_sequence: true sequence_length: 3 sequence_fields: 'x' }",
            "sequence_fields has no effect: it is for sequences",
        ),
    ],
)
def test_settings_without_effect_are_told(feature: str, note: str) -> None:
    config = parse_config(f"feature_configs {{ {feature} }}")
    assert config.notes == (f"feature 'x': {note}",)


def test_parts_of_a_sequence_are_checked_though_others_are_wrong() -> None:
    text = """
    feature_configs { sequence_feature {
      sequence_name: "s" sequence_lengt: 3
      features { id_feature { feature_name: "a" embedding_dim: 4 zch { zch_size: 9 } } }
      features { id_feature { feature_name: "b" dynamicemb {} embedding_dim: 0 hash_bucket_size: 0 } }
      features { raw_feature { feature_name: "c" value_dim: 0 } }
      features { }
      features { raw_feature { feature_name: "c" pooling: "max" } }
    } }
    feature_groups { group_name: "g" group_type: SEQUENCE feature_names: ["s__a", "s__b", "s__d"] }
    """
    assert problems(text) == (
        "line 3 column 26: sequence_feature: unknown field 'sequence_lengt'; did you mean 'sequence_length'?",
        "feature 's__b': dynamicemb: max_capacity is missing",
        "sequence 's': features[3]: it is empty; set one of id_feature, raw_feature, combo_feature, lookup_feature, match_feature, expr_feature, "
        "overlap_feature, tokenize_feature, kv_dot_product, combine_feature, bool_mask_feature, custom_feature",
        "feature 's__c': pooling: must be sum or mean, found 'max'",
        "feature 's__a': zch: no eviction policy is set; add lfu {}, lru {} or distance_lfu {}",
        "feature 's__b': hash_bucket_size must be at least 1 and below 2^63, found 0",
        "feature 's__c': value_dim must be at least 1 and below 2^63, found 0",
        "feature 's__c': 2 features have this name; give each a name of its own",
        "feature_groups 'g': unknown feature 's__d'; did you mean 's__c'?",
    )


def test_a_text_stands_alone_without_the_files_that_it_names(tmp_path: Path) -> None:
    (tmp_path / "assets").mkdir()
    (tmp_path / "assets" / "words").write_text("x\ny\n")
    (tmp_path / "tokens.json").write_text(json.dumps({"model": {"vocab": {"a": 0, "b": 1}}}))
    text = """
    feature_configs { sequence_feature { sequence_name: "s" features { id_feature {
      feature_name: "w" embedding_dim: 4 vocab_file: "words" asset_dir: "assets" default_bucketize_value: 1 } } } }
    feature_configs { sequence_match_feature { feature_name: "m" embedding_dim: 4 vocab_file: "assets/words" default_bucketize_value: 0 } }
    feature_configs { tokenize_feature { feature_name: "t" embedding_dim: 4 vocab_file: "tokens.json" } }
    """
    config = parse_config(text, folder=tmp_path)
    rows = [feature.rows for feature in create_features(config.feature_configs)]
    assert rows == [2, 2, 2]
    assert "vocab_file" not in config.text
    assert [feature.rows for feature in create_features(parse_config(config.text, folder=tmp_path / "elsewhere").feature_configs)] == rows


SEQUENCE = "feature_configs { sequence_raw_feature { feature_name: 's' } } feature_configs { raw_feature { feature_name: 'q' } } "


def test_every_encoder_reads_back() -> None:
    encoders = """
    din_encoder { name: "d" attn_mlp { hidden_units: [8, 4] activation: "Dice" } max_seq_length: 5 keep: "newest" }
    simple_attention { max_seq_length: 2 } | attention { keep: "newest" } | pooling_encoder { pooling_type: "sum" } | pooling {}
    self_attention_encoder { multihead_attn_dim: 8 num_heads: 2 dropout: 0.5 }
    multi_window_din_encoder { attn_mlp { hidden_units: 4 } windows_len: [1, 2] keep: "all" }
    lstm { input: "g" hidden_size: 64 bidirectional: true } | gru { num_layers: 2 dropout: 0.25 }
    transformer { hidden_size: 8 num_heads: 2 num_layers: 2 feed_forward_size: 16 use_position: false pooling_type: "last" }
    """
    lines = [part.strip() for line in encoders.strip().split("\n") for part in line.split(" | ")]
    body = " ".join(f"sequence_encoders {{ {line} }}" for line in lines)
    config = parse_config(SEQUENCE + f"feature_groups {{ group_name: 'g' sequence_groups {{ feature_names: ['q', 's'] }} {body} }}")
    (group,) = config.feature_groups
    assert group.sequence_encoders == (
        DinEncoderConfig(name="d", attn_mlp=MlpConfig(hidden_units=(8, 4), activation=ActivationSpec(name="Dice")), max_seq_length=5, keep="newest"),
        SimpleAttentionConfig(max_seq_length=2),
        SimpleAttentionConfig(keep="newest"),
        PoolingEncoderConfig(pooling_type="sum"),
        PoolingEncoderConfig(),
        SelfAttentionEncoderConfig(multihead_attn_dim=8, num_heads=2, dropout=0.5),
        MultiWindowDinEncoderConfig(attn_mlp=MlpConfig(hidden_units=(4,)), windows_len=(1, 2), keep="all"),
        RecurrentEncoderConfig(cell="lstm", input="g", hidden_size=64, bidirectional=True),
        RecurrentEncoderConfig(cell="gru", num_layers=2, dropout=0.25),
        TransformerEncoderConfig(hidden_size=8, num_heads=2, num_layers=2, feed_forward_size=16, use_position=False, pooling_type="last"),
    )
    assert {encoder.input for encoder in group.encoders} == {"g"}


def test_groups_of_every_kind() -> None:
    group = "feature_groups {{ group_name: '{0}' group_type: {0} feature_names: 's' }}"
    text = SEQUENCE + "".join(group.format(kind) for kind in ("SEQUENCE", "JAGGED_SEQUENCE"))
    assert [(group.group_type, group.is_sequence) for group in parse_config(text).feature_groups] == [
        (GroupKind.SEQUENCE, True),
        (GroupKind.JAGGED_SEQUENCE, True),
    ]


@pytest.mark.parametrize(
    ("group", "messages"),
    [
        (
            "sequence_groups { feature_names: 's' } sequence_encoders {}",
            (
                "feature_groups 'g': sequence_encoders: it is empty; set one of din_encoder, simple_attention, pooling_encoder, "
                "self_attention_encoder, multi_window_din_encoder, lstm, gru, transformer, pooling, attention",
            ),
        ),
        (
            "sequence_groups { feature_names: 's' } sequence_encoders { din_encoder {} }",
            ("feature_groups 'g': sequence_encoders: attn_mlp is missing",),
        ),
        (
            "sequence_groups { feature_names: 's' } sequence_encoders { gru { hiden_size: 3 } }",
            ("line 1 column 216: gru: unknown field 'hiden_size'; did you mean 'hidden_size'?",),
        ),
        (
            "sequence_groups { feature_names: 's' } sequence_encoders { gru { keep: 'last' } }",
            ("feature_groups 'g': sequence_encoders[0]: gru on 'g': keep must be one of oldest, newest, found 'last'",),
        ),
        (
            "feature_names: 's'",
            ("feature_groups 'g': feature 's' is a sequence of numbers, and a DEEP group has one vector a row; put it into",),
        ),
    ],
)
def test_what_is_wrong_with_encoders_is_told_once(group: str, messages: tuple[str, ...]) -> None:
    found = problems(SEQUENCE + f"feature_groups {{ group_name: 'g' {group} }}")
    assert len(found) == len(messages), found
    for text, message in zip(found, messages, strict=True):
        assert text.startswith(message)
