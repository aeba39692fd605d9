"""What dynamic tables can't have in a training run, and in the groups that read them."""

import pytest

from emberline.errors import ConfigError
from emberline.train.config import parse_config

DYNAMIC = "dynamicemb { max_capacity: 9 }"
DENSE = "dense_optimizer { sgd_optimizer {} }"


def feature(name: str, more: str = DYNAMIC, dim: int = 16) -> str:
    return f"feature_configs {{ id_feature {{ feature_name: '{name}' embedding_dim: {dim} {more} }} }}\n"


def group(name: str, *names: str, kind: str = "DEEP") -> str:
    return f"feature_groups {{ group_name: '{name}' group_type: {kind} {' '.join(f'feature_names: {one!r}' for one in names)} }}\n"


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse_config(text)
    return list(caught.value.problems)


@pytest.mark.parametrize("kind", ["sgd", "adagrad", "adam", "rowwise_adagrad"])
def test_optimisers_whose_state_is_of_a_row_are_known(kind: str) -> None:
    config = parse_config(feature("a") + group("g", "a") + f"train_config {{ sparse_optimizer {{ {kind}_optimizer {{}} }} {DENSE} }}")
    assert config.train is not None


@pytest.mark.parametrize("kind", ["lars_sgd", "lamb", "partial_rowwise_adam", "partial_rowwise_lamb", "adadelta", "rmsprop"])
def test_other_optimisers_are_refused_for_tables_that_learn(kind: str) -> None:
    train = f"train_config {{ sparse_optimizer {{ {kind}_optimizer {{}} }} {DENSE} }}"
    assert problems(feature("a") + feature("b") + group("g", "a", "b") + train) == [
        "train_config: sparse_optimizer: the dynamic tables of a, b know sgd_optimizer, adagrad_optimizer, rowwise_adagrad_optimizer, adam_optimizer "
        "only; choose one of them, or use zch instead of dynamicemb"
    ]
    assert parse_config(feature("a", f"{DYNAMIC} trainable: false") + group("g", "a") + train).train is not None


def test_readers_of_one_table_must_agree() -> None:
    first = feature("a", f"embedding_name: 't' {DYNAMIC}")
    for other, words in {
        "num_buckets: 9": "dynamicemb (none and set)",
        "dynamicemb { max_capacity: 8 initializer_args { mode: 'CONSTANT' } }": "rows (8 and 9), dynamicemb max_capacity (8 and 9), "
        "dynamicemb initializer_args (CONSTANT value 0 and UNIFORM lower -0.333333, upper 0.333333)",
        "dynamicemb { max_capacity: 9 score_strategy: 'LFU' }": "dynamicemb score_strategy (LFU and STEP)",
    }.items():
        assert problems(first + feature("b", f"embedding_name: 't' {other}") + group("g", "a", "b")) == [
            "feature_groups 'g': feature 'b' and feature 'a' of feature_groups 'g' can't share the table 't': they differ in " + words
        ]
    assert parse_config(first + feature("b", f"embedding_name: 't' {DYNAMIC}") + group("g", "a", "b")).feature_groups


def test_wide_tables_begin_as_their_features_say() -> None:
    wide = "feature_groups { group_name: 'w' group_type: WIDE feature_names: 'a' }"
    model = f"model_config {{ {wide} wide_and_deep {{ deep {{ hidden_units: 4 }} wide_init_fn: 'nn.init.zeros_' }} }}"
    found = problems(feature("a") + model)
    assert (
        "feature_groups 'w': feature 'a': wide_init_fn can't begin its table 'a_emb_wide', which is dynamic: take it out, or put the feature into "
        "groups that are not WIDE"
    ) in found
    assert parse_config(feature("a") + wide).feature_groups


def test_constraints_by_table_know_dynamic_tables() -> None:
    optimizers = f"sparse_optimizer {{ sgd_optimizer {{}} }} {DENSE}"
    train = f"train_config {{ {optimizers} table_constraints {{ table: 'a_emb' sharding_types: 'column_wise' compute_kernels: 'fused' ranks: 0 }} }}"
    assert problems(feature("a") + group("g", "a") + train) == [
        "train_config: table_constraints: table 'a_emb': sharding_types must allow row_wise, the only one that dynamic tables know",
        "train_config: table_constraints: table 'a_emb': compute_kernels is not for dynamic tables, which have a kernel of their own; take it out",
        "train_config: table_constraints: table 'a_emb': ranks is not for dynamic tables, whose ids are spread over all ranks; take it out",
    ]
