import dataclasses
from typing import Any

import pytest

from emberline.errors import ConfigError
from emberline.schema import (
    INT64_MAX,
    BoundaryEncoder,
    BucketEncoder,
    CrossEncoder,
    FeatureKind,
    FeatureSpec,
    HashEncoder,
    Normalizer,
    NumericEncoder,
    Pooling,
    RawIdEncoder,
    VocabEncoder,
)
from emberline.train.config.functions import InitSpec, ThresholdFilterSpec
from emberline.train.features import (
    AutoDisConfig,
    ComboFeatureConfig,
    DistanceLfuPolicy,
    EmbeddingConstraints,
    FamilyConfig,
    Feature,
    FeatureConfig,
    IdFeatureConfig,
    LfuPolicy,
    LruPolicy,
    MlpEmbeddingConfig,
    RawFeatureConfig,
    TtlPolicy,
    ZchConfig,
    create_features,
)


def an_id(name: str = "f", **values: Any) -> IdFeatureConfig:
    values.setdefault("embedding_dim", 4)
    return IdFeatureConfig(feature_name=name, **values)


def a_raw(name: str = "f", **values: Any) -> RawFeatureConfig:
    return RawFeatureConfig(feature_name=name, **values)


def a_combo(name: str = "f", **values: Any) -> ComboFeatureConfig:
    values.setdefault("embedding_dim", 4)
    return ComboFeatureConfig(feature_name=name, **values)


def one(config: FeatureConfig, fg_mode: str = "FG_NORMAL") -> Feature:
    (feature,) = create_features([config], fg_mode=fg_mode)
    return feature


def by_hashes(**values: Any) -> ZchConfig:
    return ZchConfig(**{"zch_size": 10, "kind": "mpzch", **values})


def problems(*configs: FeatureConfig, fg_mode: str = "FG_NORMAL") -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        create_features(configs, fg_mode=fg_mode)
    return caught.value.problems


ZCH = ZchConfig(zch_size=10, eviction_policy=LfuPolicy())
FILTER = ThresholdFilterSpec.parse("average_threshold_filter")


def test_a_hashed_id_feature_complete() -> None:
    init = InitSpec.parse("nn.init.normal_,std=0.1")
    config = an_id(
        "user",
        expression="user:uid",
        embedding_name="shared",
        embedding_dim=8,
        hash_bucket_size=100,
        pooling=Pooling.MEAN,
        init_fn=init,
        trainable=False,
        data_type="FP16",
        weighted=True,
        value_dim=3,
        separator="|",
        default_value="x:1",
        fg_encoded_default_value="7",
        embedding_constraints=EmbeddingConstraints(sharding_types=("row_wise", "table_wise")),
    )
    assert one(config) == Feature(
        name="user",
        spec=FeatureSpec(
            name="user",
            kind=FeatureKind.SPARSE,
            columns=("uid",),
            encoder=HashEncoder(rows=100),
            side="user",
            value_dim=3,
            weighted=True,
            separator="|",
            default="x:1",
        ),
        data_group="__BASE__",
        embedding_dim=8,
        embedding_name="shared",
        rows=100,
        pooling=Pooling.MEAN,
        init=init,
        dtype="fp16",
        trainable=False,
        constraints=EmbeddingConstraints(sharding_types=("row_wise", "table_wise")),
    )


@pytest.mark.parametrize(
    ("values", "rows", "encoder"),
    [
        ({"hash_bucket_size": 100}, 100, HashEncoder(rows=100)),
        ({"num_buckets": 9}, 9, BucketEncoder(rows=9)),
        ({"num_buckets": 9, "default_bucketize_value": 8}, 9, BucketEncoder(rows=9, oov_row=8)),
        ({"vocab_list": ("a", "b")}, 4, VocabEncoder(words=("a", "b"), word_rows=(2, 3), oov_row=1, rows=4)),
        ({"vocab_dict": (("a", 5),), "default_bucketize_value": 0}, 6, VocabEncoder(words=("a",), word_rows=(5,), oov_row=0, rows=6)),
        ({"zch": ZCH}, 10, RawIdEncoder()),
    ],
)
def test_each_source_of_rows_has_its_encoder(values: dict[str, Any], rows: int, encoder: object) -> None:
    feature = one(an_id(**values))
    assert (feature.rows, feature.spec.encoder) == (rows, encoder)
    assert (feature.embedding_name, feature.output_dim, feature.is_sparse) == ("f_emb", 4, True)
    encoded = one(an_id(**values), fg_mode="FG_NONE")
    assert encoded.rows == rows
    assert encoded.spec.encoder == (RawIdEncoder() if "zch" in values else BucketEncoder(rows=rows))
    assert encoded.spec.encoded


def test_encoded_data_is_read_from_the_column_called_like_the_feature() -> None:
    config = an_id(expression="user:uid", num_buckets=9, default_value="3", fg_encoded_default_value="5", separator="|")
    (feature,) = create_features([config], encoded_separator=";")
    assert (feature.spec.columns, feature.spec.side, feature.spec.default, feature.spec.separator) == (("f",), "user", "5", ";")
    (feature,) = create_features([a_combo(expression=("user:a", "item:b"), hash_bucket_size=5)])
    assert (feature.spec.columns, feature.spec.side, feature.spec.encoder) == (("f",), "item", BucketEncoder(rows=5))


def test_without_an_expression_the_column_is_called_like_the_feature() -> None:
    assert (one(an_id(num_buckets=3)).spec.columns, one(an_id(num_buckets=3)).spec.side) == (("f",), "")
    assert one(a_raw()).spec.columns == ("f",)


def test_a_cross_reads_all_of_its_columns() -> None:
    feature = one(a_combo(expression=("user:age", "user:city", "item:kind"), hash_bucket_size=50))
    assert (feature.spec.columns, feature.spec.side, feature.spec.encoder, feature.rows) == (
        ("age", "city", "kind"),
        "item",
        CrossEncoder(rows=50),
        50,
    )
    feature = one(a_combo(expression=("user:age", "user:city"), zch=ZCH))
    assert (feature.spec.side, feature.spec.encoder, feature.rows, feature.zch) == ("user", CrossEncoder(rows=0), 10, ZCH)


def test_encoded_crosses_have_vocabularies_too() -> None:
    assert one(a_combo(vocab_list=("a", "b")), fg_mode="FG_NONE").rows == 4
    assert problems(a_combo(expression=("a", "b"), vocab_list=("a",))) == (
        "feature 'f': vocab_list of a combo_feature is not supported yet for raw values (fg_mode FG_NORMAL); use hash_bucket_size, zch or dynamicemb",
    )


def test_numbers_pass_through() -> None:
    normalizer = Normalizer(method="zscore", parameters=(("mean", 0.0), ("std", 1.0)))
    feature = one(a_raw(expression="item:price", value_dim=3, normalizer=normalizer))
    assert feature.spec == FeatureSpec(
        name="f",
        kind=FeatureKind.DENSE,
        columns=("price",),
        encoder=NumericEncoder(normalizer=normalizer),
        side="item",
        value_dim=3,
        separator="\x1d",
        default="0",
    )
    assert (feature.is_sparse, feature.output_dim, feature.rows, feature.embedding_name) == (False, 3, 0, "")
    encoded = one(a_raw(normalizer=normalizer), fg_mode="FG_NONE")
    assert (encoded.spec.encoder, encoded.spec.default, encoded.spec.separator) == (NumericEncoder(), None, "\x03")


def test_boundaries_make_numbers_sparse() -> None:
    feature = one(a_raw(boundaries=(0.0, 1.5), embedding_dim=8, pooling=Pooling.MEAN, value_dim=2))
    assert (feature.rows, feature.spec.encoder, feature.output_dim, feature.value_dim) == (3, BoundaryEncoder(boundaries=(0.0, 1.5)), 8, 2)
    assert (feature.embedding_name, feature.pooling, feature.spec.default) == ("f_emb", Pooling.MEAN, "0")
    assert one(a_raw(boundaries=(1.0,), embedding_dim=8), fg_mode="FG_NONE").spec.encoder == BucketEncoder(rows=2)


@pytest.mark.parametrize("embedding", [AutoDisConfig(num_channels=3), MlpEmbeddingConfig()])
def test_numbers_are_embedded(embedding: AutoDisConfig | MlpEmbeddingConfig) -> None:
    feature = one(a_raw(embedding_dim=6, dense_emb=embedding))
    assert (feature.dense_embedding, feature.output_dim, feature.value_dim, feature.is_sparse, feature.rows) == (embedding, 6, 1, False, 0)


def test_features_that_read_sampled_fields_have_data_groups_of_their_own() -> None:
    configs: list[FeatureConfig] = [
        an_id("item", expression="item:iid", num_buckets=3),
        a_raw("price", expression="item:iid"),
        a_combo("cross", expression=("user:uid", "item:iid"), hash_bucket_size=3),
        an_id("user", expression="user:uid", num_buckets=3),
    ]
    groups = [feature.data_group for feature in create_features(configs, neg_fields=["iid"], fg_mode="FG_NORMAL")]
    assert groups == ["__NEG__", "__NEG__", "__CNEG__", "__BASE__"]
    groups = [feature.data_group for feature in create_features(configs, neg_fields=["iid", "item", "cross"])]
    assert groups == ["__NEG__", "__BASE__", "__CNEG__", "__BASE__"]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (an_id(), "has no source of rows; set one of zch, dynamicemb, hash_bucket_size, num_buckets, vocab_list, vocab_dict, vocab_file"),
        (a_combo(expression=("a", "b")), "has no source of rows; set one of zch, dynamicemb, hash_bucket_size, vocab_list, vocab_dict, vocab_file"),
        (an_id(num_buckets=3, vocab_list=("a",)), "has 2 sources of rows, num_buckets and vocab_list; keep one"),
        (an_id(zch=ZCH, hash_bucket_size=3), "has 2 sources of rows, zch and hash_bucket_size; keep one"),
        (an_id(num_buckets=3, embedding_dim=0), "embedding_dim must be set, to 1 or more"),
        (an_id(num_buckets=3, embedding_dim=-4), "embedding_dim must be set, to 1 or more"),
        (an_id(num_buckets=0), "num_buckets must be at least 1 and below 2^63, found 0"),
        (an_id(hash_bucket_size=-5), "hash_bucket_size must be at least 1 and below 2^63, found -5"),
        (an_id(hash_bucket_size=INT64_MAX + 1), "hash_bucket_size must be at least 1 and below 2^63, found 9223372036854775808"),
        (an_id(vocab_dict=(("a", INT64_MAX),)), "rows of vocab_dict must be at least 1 and below 2^63"),
        (an_id(num_buckets=3, default_bucketize_value=3), "default_bucketize_value 3 is outside of the 3 rows of num_buckets"),
        (an_id(hash_bucket_size=3, default_bucketize_value=1), "default_bucketize_value has no meaning beside hash_bucket_size"),
        (an_id(num_buckets=3, value_dim=-1), "value_dim must be at least 0 and below 2^63, found -1"),
        (an_id(num_buckets=3, data_type="FP8"), "unknown data_type 'FP8'"),
        (an_id(num_buckets=3, embedding_name="a.b"), "embedding_name 'a.b' may only have letters"),
        (an_id(num_buckets=3, embedding_name="keys"), "embedding_name 'keys' is a name that torch keeps for itself"),
        (an_id(num_buckets=3, separator=""), "separator must not be empty"),
        (an_id(num_buckets=3, default_value="9"), "default_value '9': id 9 is outside [0, 3)"),
        (an_id(num_buckets=3, expression="usr:x"), "expression 'usr:x': unknown side 'usr'"),
        (an_id(zch=ZchConfig(zch_size=10)), "zch: no eviction policy is set; add lfu {}, lru {} or distance_lfu {}"),
        (an_id(zch=dataclasses.replace(ZCH, zch_size=1)), "zch: zch_size must be at least 2"),
        (an_id(zch=dataclasses.replace(ZCH, kind="hash")), "zch: kind must be mch or mpzch, found 'hash'"),
        (an_id(zch=dataclasses.replace(ZCH, eviction_policy=TtlPolicy(hours=3))), "zch: ttl is for kind mpzch; choose lfu {}, lru {} or"),
        (an_id(zch=dataclasses.replace(ZCH, buckets=4)), "zch: buckets is for kind mpzch"),
        (an_id(zch=dataclasses.replace(ZCH, max_probe=4)), "zch: max_probe is for kind mpzch"),
        (an_id(zch=dataclasses.replace(ZCH, kind="mpzch")), "zch: lfu is for kind mch; with mpzch choose ttl { hours: 720 } or lru {}, or none"),
        (an_id(zch=by_hashes(eviction_policy=DistanceLfuPolicy())), "zch: distance_lfu is for kind mch"),
        (an_id(zch=by_hashes(eviction_policy=LruPolicy(decay_exponent=2.0))), "zch: decay_exponent is for kind mch"),
        (an_id(zch=by_hashes(eviction_policy=TtlPolicy())), "zch: ttl: hours is missing"),
        (an_id(zch=by_hashes(eviction_policy=TtlPolicy(hours=0))), "zch: ttl: hours must be 1 to 1,000,000, found 0"),
        (an_id(zch=by_hashes(eviction_interval=5)), "zch: eviction_interval is for kind mch: with mpzch ids are admitted as they are read"),
        (an_id(zch=by_hashes(history_size=5)), "zch: history_size is for kind mch"),
        (an_id(zch=by_hashes(threshold_filtering_func=FILTER)), "zch: threshold_filtering_func is for kind mch"),
        (an_id(zch=by_hashes(max_probe=0)), "zch: max_probe must be at least 1"),
        (an_id(zch=by_hashes(buckets=0)), "zch: buckets must be at least 1"),
        (an_id(zch=by_hashes(buckets=6)), "zch: buckets 6 of zch_size 10: each bucket needs 2 rows, one of them its fallback row"),
        (an_id(zch=by_hashes(zch_size=1)), "zch: zch_size must be at least 2"),
        (an_id(zch=dataclasses.replace(ZCH, history_size=0)), "zch: history_size must be at least 1"),
        (an_id(zch=dataclasses.replace(ZCH, routing="hash")), "zch: routing must be mixed or range, found 'hash'"),
        (an_id(zch=dataclasses.replace(ZCH, eviction_interval=0)), "zch: eviction_interval must be at least 1"),
        (an_id(zch=dataclasses.replace(ZCH, eviction_policy=LruPolicy(decay_exponent=0.0))), "zch: decay_exponent must be above 0, found 0.0"),
        (
            an_id(zch=dataclasses.replace(ZCH, eviction_policy=DistanceLfuPolicy(decay_exponent=float("nan")))),
            "zch: decay_exponent must be above 0, found nan",
        ),
        (an_id("a.b", num_buckets=3), "feature_name 'a.b' may only have letters"),
        (an_id("a@b", num_buckets=3), "feature_name 'a@b' may only have letters"),
        (an_id("", num_buckets=3), "feature_name is missing"),
        (a_combo(hash_bucket_size=3), "expression is missing: list the columns to cross"),
        (a_raw(value_dim=0), "value_dim must be at least 1"),
        (a_raw(boundaries=(1.0, 1.0), embedding_dim=4), "boundaries must ascend, found 1 after 1"),
        (a_raw(boundaries=(2.0, 1.0), embedding_dim=4), "boundaries must ascend, found 1 after 2"),
        (a_raw(boundaries=(float("nan"),), embedding_dim=4), "boundaries must be finite numbers"),
        (a_raw(boundaries=(1.0,)), "embedding_dim must be set"),
        (a_raw(boundaries=(1.0,), embedding_dim=4, dense_emb=AutoDisConfig(num_channels=2)), "boundaries and autodis exclude each other"),
        (a_raw(boundaries=(1.0,), embedding_dim=4, dense_emb=MlpEmbeddingConfig()), "boundaries and mlp exclude each other"),
        (a_raw(dense_emb=MlpEmbeddingConfig()), "embedding_dim must be set, to 1 or more: the width of its embedding"),
        (a_raw(dense_emb=AutoDisConfig(num_channels=2), embedding_dim=4, value_dim=2), "autodis: value_dim must be 1, found 2; use mlp"),
        (a_raw(dense_emb=AutoDisConfig(num_channels=0), embedding_dim=4), "autodis: num_channels must be at least 1"),
        (a_raw(dense_emb=AutoDisConfig(num_channels=2, temperature=0.0), embedding_dim=4), "autodis: temperature must be above 0"),
        (a_raw(dense_emb=AutoDisConfig(num_channels=2, keep_prob=float("inf")), embedding_dim=4), "autodis: keep_prob must be a finite number"),
        (a_raw(dense_emb=MlpEmbeddingConfig(), embedding_dim=4, embedding_name="x"), "embedding_name is for tables; autodis and mlp have none"),
        (a_raw(dense_emb=MlpEmbeddingConfig(), embedding_dim=4, data_type="FP16"), "data_type is for tables"),
        (a_raw(trainable=False), "trainable: false needs boundaries"),
        (a_raw(default_value="x"), "default_value 'x'"),
        (a_raw(default_value="1\x1d2", value_dim=3), "default_value '1\\x1d2' is not one number or 3 of them"),
        (
            an_id(num_buckets=3, embedding_constraints=EmbeddingConstraints(sharding_types=("row_wise",), compute_kernels=("dense",))),
            "embedding_constraints: the dense kernel needs sharding_types to allow data_parallel",
        ),
        (an_id(zch=ZCH, embedding_constraints=EmbeddingConstraints(sharding_types=("table_wise",))), "sharding_types must allow row_wise"),
        (an_id(zch=ZCH, embedding_constraints=EmbeddingConstraints(compute_kernels=("dense",))), "compute_kernels must allow fused"),
        (
            an_id(num_buckets=3, embedding_constraints=EmbeddingConstraints(sharding_types=("rowwise",))),
            "unknown sharding type 'rowwise'; did you mean 'row_wise'?",
        ),
        (
            an_id(num_buckets=3, embedding_constraints=EmbeddingConstraints(compute_kernels=("fusd",))),
            "unknown compute kernel 'fusd'; did you mean 'fused'?",
        ),
    ],
)
def test_what_can_not_be_is_named(config: FamilyConfig, message: str) -> None:
    (found,) = problems(config)
    assert found.startswith(f"feature {config.feature_name!r}: ")
    assert message in found


def test_everything_wrong_is_reported_at_once() -> None:
    found = problems(an_id("a", embedding_dim=0, hash_bucket_size=0), a_raw("b", value_dim=0, trainable=False), an_id("a", num_buckets=3))
    assert found == (
        "feature 'a': embedding_dim must be set, to 1 or more: the width of its table",
        "feature 'a': hash_bucket_size must be at least 1 and below 2^63, found 0",
        "feature 'a': 2 features have this name; give each a name of its own",
        "feature 'b': value_dim must be at least 1 and below 2^63, found 0",
        "feature 'b': trainable: false needs boundaries: only tables can be frozen",
    )


def test_encoded_defaults_are_checked_against_the_rows() -> None:
    assert problems(an_id(num_buckets=3, fg_encoded_default_value="3"), fg_mode="FG_NONE") == (
        "feature 'f': fg_encoded_default_value '3': id 3 is outside [0, 3)",
    )
    assert one(an_id(num_buckets=3, fg_encoded_default_value="2"), fg_mode="FG_NONE").spec.default == "2"


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ConfigError, match="fg_mode 'FG_DAG' is not supported; use FG_NONE or FG_NORMAL"):
        create_features([], fg_mode="FG_DAG")


def test_no_features_are_fine() -> None:
    assert create_features([]) == []
