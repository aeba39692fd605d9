"""Tables that grow, as a config asks for them: complete options, or everything wrong by name."""

import math
from typing import Any

import pytest

from emberline.errors import ConfigError
from emberline.schema import CrossEncoder, MatchEncoder, RawIdEncoder
from emberline.train.config import parse_config
from emberline.train.dynamic.options import ZEROS, DynamicEmbOptions, FrequencyAdmission, Initializer, InitializerMode, ScoreStrategy
from emberline.train.features import Feature, create_features
from emberline.train.features.dynamic import initializer_text, option_texts

NORMAL, TRUNCATED, UNIFORM, CONSTANT = InitializerMode.NORMAL, InitializerMode.TRUNCATED_NORMAL, InitializerMode.UNIFORM, InitializerMode.CONSTANT


def one(dynamicemb: str, *, kind: str = "id_feature", more: str = "", dim: int = 16, head: str = "") -> Feature:
    text = f"{head} feature_configs {{ {kind} {{ feature_name: 'x' embedding_dim: {dim} dynamicemb {{ {dynamicemb} }} {more} }} }}"
    config = parse_config(text)
    (feature,) = create_features(config.feature_configs, fg_mode=config.data.fg_mode)
    return feature


def problems(dynamicemb: str, **other: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        one(dynamicemb, **other)
    return [text.removeprefix("feature 'x': ") for text in caught.value.problems]


def test_what_is_left_out_is_completed() -> None:
    feature = one("max_capacity: 100")
    bound = 1 / math.sqrt(100)
    assert feature.dynamicemb == DynamicEmbOptions(
        max_capacity=100,
        initializer=Initializer(mode=UNIFORM, lower=-bound, upper=bound),
        eval_initializer=ZEROS,
        score_strategy=ScoreStrategy.STEP,
    )
    assert (feature.rows, feature.spec.encoder, feature.raw_ids, feature.use_dynamicemb) == (100, RawIdEncoder(), True, True)
    assert feature.table_marks == {"use_dynamicemb": True}
    assert feature.table_problems == []


def test_everything_that_is_said_is_there() -> None:
    feature = one(
        """max_capacity: 1000 init_capacity_per_rank: 10 score_strategy: "LFU" cache_load_factor: 0.25 bucket_capacity: 64
        initializer_args { mode: "TRUNCATED_NORMAL" mean: 1 std_dev: 0.5 }
        eval_initializer_args { mode: "CONSTANT" value: 3 }
        frequency_admission_strategy { threshold: 5 initializer_args { mode: "UNIFORM" lower: -1 } counter_bucket_capacity: 8 }"""
    )
    assert feature.dynamicemb == DynamicEmbOptions(
        max_capacity=1000,
        init_capacity_per_rank=10,
        initializer=Initializer(mode=TRUNCATED, mean=1.0, std_dev=0.5, lower=0.0, upper=2.0),
        eval_initializer=Initializer(mode=CONSTANT, value=3.0),
        score_strategy=ScoreStrategy.LFU,
        admission=FrequencyAdmission(
            threshold=5,
            initializer=Initializer(mode=UNIFORM, lower=-1.0, upper=1 / math.sqrt(1000)),
            counter_capacity=1000,
            counter_bucket_capacity=8,
        ),
        cache_load_factor=0.25,
        bucket_capacity=64,
    )


@pytest.mark.parametrize(
    ("args", "found"),
    [
        ("mode: 'NORMAL'", Initializer(mode=NORMAL, std_dev=0.25)),
        ("mode: 'NORMAL' mean: -1 std_dev: 2", Initializer(mode=NORMAL, mean=-1.0, std_dev=2.0)),
        ("mode: 'TRUNCATED_NORMAL'", Initializer(mode=TRUNCATED, std_dev=0.25, lower=-0.5, upper=0.5)),
        ("mode: 'TRUNCATED_NORMAL' upper: 1", Initializer(mode=TRUNCATED, std_dev=0.25, lower=-0.5, upper=1.0)),
        ("mode: 'UNIFORM'", Initializer(mode=UNIFORM, lower=-0.1, upper=0.1)),
        ("upper: 0.5", Initializer(mode=UNIFORM, lower=-0.1, upper=0.5)),
        ("mode: 'CONSTANT'", ZEROS),
        ("", Initializer(mode=UNIFORM, lower=-0.1, upper=0.1)),
    ],
)
def test_numbers_of_a_mode_have_their_defaults(args: str, found: Initializer) -> None:
    feature = one(f"max_capacity: 100 initializer_args {{ {args} }}")
    assert feature.dynamicemb is not None
    assert feature.dynamicemb.initializer == found


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("combo_feature", "expression: ['user:a', 'user:b']"),
        ("lookup_feature", "map: 'user:m' key: 'item:k'"),
        ("match_feature", "nested_map: 'user:m' pkey: 'item:k' skey: 'item:l'"),
        ("bool_mask_feature", "expression: ['user:a', 'user:b']"),
        ("custom_feature", "operator_name: 'o' expression: ['user:a']"),
        ("sequence_id_feature", ""),
        ("sequence_lookup_feature", "map: 'user:m' key: 'item:k'"),
    ],
)
def test_families_with_ids_may_have_it(kind: str, more: str) -> None:
    feature = one("max_capacity: 7", kind=kind, more=more)
    assert (feature.rows, feature.spec.encoder, feature.raw_ids) == (7, RawIdEncoder(), True)


def test_raw_values_become_raw_ids() -> None:
    head = "data_config { fg_mode: FG_NORMAL }"
    combo = one("max_capacity: 7", kind="combo_feature", more="expression: ['user:a', 'user:b']", head=head)
    assert combo.spec.encoder == CrossEncoder(rows=0)
    assert one("max_capacity: 7", more="expression: 'user:a'", head=head).spec.encoder == RawIdEncoder()
    match = one("max_capacity: 7", kind="match_feature", more="nested_map: 'user:m' pkey: 'item:k' skey: 'item:l' need_discrete: true", head=head)
    assert isinstance(match.spec.encoder, MatchEncoder)
    assert match.spec.encoder.inner == RawIdEncoder()


def test_all_that_is_wrong_is_told_at_once() -> None:
    assert problems(
        """max_capacity: 0 score_strategy: "LRU" cache_load_factor: 1.5 init_capacity_per_rank: 0 bucket_capacity: 0
        initializer_args { mode: "NORMALL" } eval_initializer_args { std_dev: 1 }
        frequency_admission_strategy { threshold: 0 counter_capacity: 0 counter_bucket_capacity: 0
        initializer_args { mode: "NORMAL" std_dev: 0 } }""",
        more="init_fn: 'nn.init.zeros_'",
    ) == [
        "dynamicemb: max_capacity must be at least 1 and at most 1099511627776, found 0",
        "dynamicemb: unknown score_strategy 'LRU'; did you mean 'LFU'?",
        "dynamicemb: cache_load_factor must be above 0 and at most 1, found 1.5",
        "dynamicemb: init_capacity_per_rank must be at least 1 and below 2^63, found 0",
        "dynamicemb: bucket_capacity must be at least 1 and below 2^63, found 0",
        "dynamicemb: initializer_args: unknown mode 'NORMALL'; did you mean 'NORMAL'?",
        "dynamicemb: eval_initializer_args: std_dev is for NORMAL and TRUNCATED_NORMAL, and the mode is CONSTANT",
        "dynamicemb: frequency_admission_strategy: threshold must be at least 1 and below 2^63, found 0",
        "dynamicemb: frequency_admission_strategy: counter_capacity must be at least 1 and below 2^63, found 0",
        "dynamicemb: frequency_admission_strategy: counter_bucket_capacity must be at least 1 and below 2^63, found 0",
        "dynamicemb: frequency_admission_strategy: initializer_args: std_dev must be above 0, found 0.0",
        "dynamicemb: init_fn is set beside it, and begins no vector of a table that grows; use initializer_args",
    ]


@pytest.mark.parametrize(
    ("dynamicemb", "more", "problem"),
    [
        ("", "", "dynamicemb: max_capacity is missing"),
        ("max_capacity: 1099511627777", "", "dynamicemb: max_capacity must be at least 1 and at most 1099511627776, found 1099511627777"),
        ("max_capacity: 9 cache_load_factor: 0", "", "dynamicemb: cache_load_factor must be above 0 and at most 1, found 0.0"),
        ("max_capacity: 9 cache_load_factor: nan", "", "dynamicemb: cache_load_factor must be above 0 and at most 1, found nan"),
        ("max_capacity: 9 init_capacity_per_rank: 10", "", "dynamicemb: init_capacity_per_rank 10 is more than max_capacity 9"),
        ("max_capacity: 9 initializer_args { lower: 1 upper: 1 }", "", "dynamicemb: initializer_args: lower must be below upper, found 1 and 1"),
        ("max_capacity: 9 initializer_args { mean: 1 }", "", "initializer_args: mean is for NORMAL and TRUNCATED_NORMAL, and the mode is UNIFORM"),
        ("max_capacity: 9 initializer_args { mode: 'NORMAL' value: 1 }", "", "initializer_args: value is for CONSTANT, and the mode is NORMAL"),
        ("max_capacity: 9 initializer_args { mode: 'NORMAL' std_dev: -1 }", "", "initializer_args: std_dev must be above 0, found -1.0"),
        ("max_capacity: 9 initializer_args { mode: 'CONSTANT' value: inf }", "", "initializer_args: value must be a finite number, found inf"),
        (
            "max_capacity: 9 initializer_args { mode: 'TRUNCATED_NORMAL' std_dev: 1 lower: 7 upper: 8 }",
            "",
            "initializer_args: 7 to 8 is more than 6 times std_dev 1 away from the mean, 0",
        ),
        ("max_capacity: 9 frequency_admission_strategy {}", "", "dynamicemb: frequency_admission_strategy: threshold is missing"),
        ("max_capacity: 9", "zch { zch_size: 9 lfu {} }", "has 2 sources of rows, zch and dynamicemb; keep one"),
        ("max_capacity: 9", "num_buckets: 9", "has 2 sources of rows, dynamicemb and num_buckets; keep one"),
        ("max_capacity: 9", "default_bucketize_value: 1", "default_bucketize_value has no meaning beside dynamicemb: no value is unknown to it"),
        ("max_capacity: 9", "data_type: 'FP8'", "unknown data_type 'FP8'; known: FP32, FP16, BF16"),
        (
            "max_capacity: 9",
            "embedding_constraints { sharding_types: 'table_wise' }",
            "embedding_constraints: sharding_types must allow row_wise, the only one that dynamic tables know",
        ),
        (
            "max_capacity: 9",
            "embedding_constraints { sharding_types: 'row_wise' compute_kernels: 'fused' }",
            "embedding_constraints: compute_kernels is not for dynamic tables, which have a kernel of their own; take it out",
        ),
        (
            "max_capacity: 9",
            "embedding_constraints { min_partition: 8 }",
            "embedding_constraints: min_partition is not for dynamic tables, whose columns stay together; take it out",
        ),
        (
            "max_capacity: 9",
            "embedding_constraints { cache_load_factor: 0.5 }",
            "embedding_constraints: cache_load_factor of a dynamic table stands in its dynamicemb; put it there",
        ),
        (
            "max_capacity: 9",
            "embedding_constraints { ranks: 0 }",
            "embedding_constraints: ranks is not for dynamic tables, whose ids are spread over all ranks; take it out",
        ),
    ],
)
def test_what_can_not_be_is_named(dynamicemb: str, more: str, problem: str) -> None:
    found = problems(dynamicemb, more=more)
    assert len(found) == 1
    assert found[0].endswith(problem)


def test_readers_of_one_table_agree_on_all_of_it() -> None:
    base = one("max_capacity: 9").dynamicemb
    assert option_texts(None) == {"dynamicemb": "none"}
    for field, other in {
        "max_capacity": "max_capacity: 8 initializer_args { lower: -0.3333333333333333 upper: 0.3333333333333333 }",
        "initializer_args": "max_capacity: 9 initializer_args { upper: 1 }",
        "eval_initializer_args": "max_capacity: 9 eval_initializer_args { value: 1 }",
        "score_strategy": "max_capacity: 9 score_strategy: 'LFU'",
        "cache_load_factor": "max_capacity: 9 cache_load_factor: 1",
        "init_capacity_per_rank": "max_capacity: 9 init_capacity_per_rank: 2",
        "bucket_capacity": "max_capacity: 9 bucket_capacity: 2",
        "frequency_admission_strategy": "max_capacity: 9 frequency_admission_strategy { threshold: 1 }",
    }.items():
        ours, theirs = option_texts(base), option_texts(one(other).dynamicemb)
        assert [name for name in ours if ours[name] != theirs[name]] == [f"dynamicemb {field}"]
    assert initializer_text(Initializer(mode=UNIFORM, lower=-0.1, upper=2.0)) == "UNIFORM lower -0.1, upper 2"
