"""Whose rows a feature has, by where its raw columns come from."""

import pytest

from emberline.train.config import parse_config
from emberline.train.features import Feature, Side, create_features


def one(text: str, *, encoded: bool = False) -> Feature:
    config = parse_config(f"feature_configs {{ {text} }}")
    return create_features(config.feature_configs, fg_mode="FG_NONE" if encoded else "FG_NORMAL")[0]


@pytest.mark.parametrize(
    ("expressions", "side"),
    [
        (["user:a"], Side.USER),
        (["item:a"], Side.ITEM),
        (["context:a"], Side.ITEM),
        (["a"], None),
        (["user:a", "user:b"], Side.USER),
        (["user:a", "item:b"], Side.ITEM),
        (["user:a", "context:b"], Side.ITEM),
        (["user:a", "b"], None),
        (["item:a", "b"], Side.ITEM),
    ],
)
def test_a_feature_is_the_users_where_all_its_columns_are(expressions: list[str], side: Side | None) -> None:
    lines = " ".join(f'expression: "{text}"' for text in expressions)
    kind = "combo_feature" if len(expressions) > 1 else "id_feature"
    assert one(f'{kind} {{ feature_name: "f" {lines} embedding_dim: 4 hash_bucket_size: 10 }}').side is side


@pytest.mark.parametrize(
    ("expressions", "side"), [(["user:a", "const:1"], Side.ITEM), (["user:a", "feature:b"], None), (["const:1", "feature:b"], Side.ITEM)]
)
def test_constants_and_results_of_other_features_in_encoded_data(expressions: list[str], side: Side | None) -> None:
    lines = " ".join(f'expression: "{text}"' for text in expressions)
    assert one(f'combo_feature {{ feature_name: "f" {lines} embedding_dim: 4 hash_bucket_size: 10 }}', encoded=True).side is side


def test_grouped_sequences_are_the_users_and_others_are_as_they_say() -> None:
    sub = 'features { id_feature { feature_name: "i" expression: "item:i" embedding_dim: 4 num_buckets: 10 } }'
    assert one(f'sequence_feature {{ sequence_name: "s" {sub} }}').side is Side.USER
    alone = 'sequence_id_feature {{ feature_name: "h" expression: "{}:h" embedding_dim: 4 num_buckets: 10 }}'
    assert one(alone.format("user")).side is Side.USER
    assert one(alone.format("item")).side is Side.ITEM
