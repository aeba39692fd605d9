from pathlib import Path
from typing import Any

import pytest

from emberline.errors import ConfigError
from emberline.schema import GroupKind, Normalizer, Pooling, VocabEncoder
from emberline.train.config import (
    ActivationSpec,
    AdamWConfig,
    AucConfig,
    BinaryCrossEntropyConfig,
    DataConfig,
    DeepFmConfig,
    DenseOptimizerConfig,
    EvalConfig,
    FeatureGroupConfig,
    FgMode,
    FileFormat,
    FusedRowWiseAdagradConfig,
    InitSpec,
    MlpConfig,
    ModelConfig,
    PipelineConfig,
    SparseOptimizerConfig,
    ThresholdFilterSpec,
    TrainConfig,
    load_config,
    parse_config,
    parse_train_config,
)
from emberline.train.features import (
    AutoDisConfig,
    ComboFeatureConfig,
    DistanceLfuPolicy,
    EmbeddingConstraints,
    IdFeatureConfig,
    RawFeatureConfig,
    ZchConfig,
    create_features,
)

WHOLE = """
train_input_path: "t.parquet"
eval_input_path: "e.parquet"
model_dir: "out"
data_config {
  batch_size: 64 eval_batch_size: 128 dataset_type: CsvDataset fg_mode: FG_NORMAL label_fields: "y" sample_weight_fields: "w"
  delimiter: "\\t" with_header: true shuffle: true shuffle_buffer_rows: 99 drop_remainder: true
}
train_config {
  sparse_optimizer { rowwise_adagrad_optimizer { lr: 0.1 } constant_learning_rate {} }
  dense_optimizer { adamw_optimizer { lr: 0.01 beta1: 0.8 weight_decay: 0.1 } }
  num_epochs: 2 save_checkpoints_steps: 10 seed: 7 use_tensorboard: false tensorboard_summaries: "loss"
}
eval_config { num_steps: 5 }
feature_configs {
  id_feature {
    feature_name: "uid" expression: "user:uid" embedding_dim: 8 embedding_name: "u" pooling: "MEAN" weighted: true init_fn: "nn.init.zeros_"
    zch { zch_size: 50 eviction_interval: 3 distance_lfu { decay_exponent: 0.5 } threshold_filtering_func: "average_threshold_filter" }
    embedding_constraints { sharding_types: ["row_wise", "table_wise"] compute_kernels: "fused" }
  }
}
feature_configs {
  raw_feature {
    feature_name: "age" expression: "user:age" embedding_dim: 4 normalizer: "method=minmax,min=0,max=100"
    autodis { num_channels: 5 temperature: 0.5 keep_prob: 0.7 }
  }
}
feature_configs { combo_feature { feature_name: "x" expression: ["user:a", "item:b"] embedding_dim: 8 hash_bucket_size: 30 data_type: "bf16" } }
feature_configs {
  id_feature { feature_name: "v" embedding_dim: 8 vocab_dict { key: "q" value: 3 } vocab_dict { key: "p" value: 2 } default_value: "q" }
}
model_config {
  feature_groups { group_name: "wide" feature_names: ["x", "v"] group_type: WIDE embedding_name_suffix: "s" }
  feature_groups { group_name: "deep" feature_names: "uid" feature_names: "age" }
  deepfm { deep { hidden_units: [16, 8] dropout_ratio: 0.5 activation: "Dice" use_bn: true } wide_init_fn: "nn.init.ones_" }
  num_class: 1
  losses { binary_cross_entropy {} }
  metrics { auc {} }
}
"""


def test_a_whole_config_becomes_dataclasses() -> None:
    config = parse_config(WHOLE, source="c.pbtxt")
    assert config == PipelineConfig(
        train_input_path="t.parquet",
        eval_input_path="e.parquet",
        model_dir="out",
        data=DataConfig(
            batch_size=64,
            eval_batch_size=128,
            file_format=FileFormat.CSV,
            label_fields=("y",),
            sample_weight_fields=("w",),
            fg_mode=FgMode.NORMAL,
            delimiter="\t",
            with_header=True,
            drop_remainder=True,
            shuffle=True,
            shuffle_buffer_rows=99,
        ),
        feature_configs=(
            IdFeatureConfig(
                feature_name="uid",
                expression="user:uid",
                embedding_dim=8,
                embedding_name="u",
                pooling=Pooling.MEAN,
                weighted=True,
                init_fn=InitSpec(name="nn.init.zeros_"),
                zch=ZchConfig(
                    zch_size=50,
                    eviction_interval=3,
                    eviction_policy=DistanceLfuPolicy(decay_exponent=0.5),
                    threshold_filtering_func=ThresholdFilterSpec(name="average_threshold_filter"),
                ),
                embedding_constraints=EmbeddingConstraints(sharding_types=("row_wise", "table_wise"), compute_kernels=("fused",)),
            ),
            RawFeatureConfig(
                feature_name="age",
                expression="user:age",
                embedding_dim=4,
                normalizer=Normalizer(method="minmax", parameters=(("high", 100.0), ("low", 0.0))),
                dense_emb=AutoDisConfig(num_channels=5, temperature=0.5, keep_prob=0.7),
            ),
            ComboFeatureConfig(feature_name="x", expression=("user:a", "item:b"), embedding_dim=8, hash_bucket_size=30, data_type="BF16"),
            IdFeatureConfig(feature_name="v", embedding_dim=8, vocab_dict=(("p", 2), ("q", 3)), default_value="q"),
        ),
        feature_groups=(
            FeatureGroupConfig(group_name="wide", feature_names=("x", "v"), group_type=GroupKind.WIDE, embedding_name_suffix="s"),
            FeatureGroupConfig(group_name="deep", feature_names=("uid", "age")),
        ),
        model=ModelConfig(
            model=DeepFmConfig(
                deep=MlpConfig(hidden_units=(16, 8), dropout_ratio=(0.5,), activation=ActivationSpec(name="Dice"), use_bn=True),
                wide_init_fn=InitSpec(name="nn.init.ones_"),
            ),
            losses=(BinaryCrossEntropyConfig(),),
            metrics=(AucConfig(),),
        ),
        train=TrainConfig(
            sparse_optimizer=SparseOptimizerConfig(optimizer=FusedRowWiseAdagradConfig(lr=0.1)),
            dense_optimizer=DenseOptimizerConfig(optimizer=AdamWConfig(lr=0.01, beta1=0.8, weight_decay=0.1)),
            num_epochs=2,
            save_checkpoints_steps=10,
            seed=7,
            use_tensorboard=False,
            tensorboard_summaries=("loss",),
        ),
        eval=EvalConfig(num_steps=5),
        text=WHOLE,
        source="c.pbtxt",
    )
    assert (config.need_model().name, config.data.sample_weight_field) == ("deepfm", "w")
    assert isinstance(config.need_train().dense_optimizer.optimizer, AdamWConfig)


def test_an_empty_config_has_all_defaults() -> None:
    assert parse_config("") == PipelineConfig()
    with pytest.raises(ConfigError, match="train_config is missing"):
        PipelineConfig().need_train()
    with pytest.raises(ConfigError, match="model_config names no model"):
        PipelineConfig().need_model()


def test_what_is_set_to_its_default_equals_what_is_not_set() -> None:
    text = 'feature_configs { id_feature { feature_name: "a" embedding_dim: 4 num_buckets: 3 %s } }'
    said = 'pooling: "sum" weighted: false trainable: true data_type: "FP32" default_value: ""'
    assert parse_config(text % said).feature_configs == parse_config(text % "").feature_configs


def test_the_text_reads_back_as_the_same_config() -> None:
    config = parse_config(WHOLE)
    assert parse_config(config.text) == config


def test_groups_may_stand_at_the_top() -> None:
    text = 'feature_configs { raw_feature { feature_name: "a" } } feature_groups { group_name: "g" feature_names: "a" }'
    config = parse_config(text)
    assert config.feature_groups == (FeatureGroupConfig(group_name="g", feature_names=("a",)),)
    with pytest.raises(ConfigError, match="stand both at the top and in model_config; keep one place"):
        parse_config(text + ' model_config { feature_groups { group_name: "h" feature_names: "a" } }')


def test_a_file_is_read_with_vocabularies_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "vocab").mkdir()
    (tmp_path / "vocab" / "words.txt").write_text("red\ngreen\n")
    (tmp_path / "city.txt").write_text("rome 4\nparis 0\n")
    path = tmp_path / "c.pbtxt"
    path.write_text("""
        data_config { fg_mode: FG_NORMAL }
        feature_configs { id_feature { feature_name: "a" embedding_dim: 4 vocab_file: "words.txt" asset_dir: "vocab" default_bucketize_value: 1 } }
        feature_configs { combo_feature { feature_name: "b" expression: "x" embedding_dim: 4 hash_bucket_size: 3 } }
        feature_configs { id_feature { feature_name: "c" embedding_dim: 4 vocab_file: "city.txt" default_bucketize_value: 0 } }
    """)
    config = load_config(path)
    first, _, third = create_features(config.feature_configs, fg_mode="FG_NORMAL")
    assert first.spec.encoder == VocabEncoder(words=("red", "green"), word_rows=(0, 1), oov_row=1, rows=2)
    assert (third.spec.encoder, third.rows) == (VocabEncoder(words=("rome", "paris"), word_rows=(4, 0), oov_row=0, rows=5), 5)
    (tmp_path / "city.txt").unlink()
    (tmp_path / "vocab" / "words.txt").unlink()
    monkeypatch.chdir("/")
    again = create_features(parse_config(config.text).feature_configs, fg_mode="FG_NORMAL")
    for before, after in zip((first, third), (again[0], again[2]), strict=True):
        assert before.rows == after.rows
        known, now = before.spec.encoder, after.spec.encoder
        assert isinstance(known, VocabEncoder)
        assert isinstance(now, VocabEncoder)
        assert dict(zip(known.words, known.word_rows, strict=True)) == dict(zip(now.words, now.word_rows, strict=True))
        assert known.oov_row == now.oov_row


def test_a_file_that_can_not_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone.pbtxt: the config can't be read: No such file"):
        load_config(tmp_path / "gone.pbtxt")
    with pytest.raises(ConfigError, match="can't be read: Is a directory"):
        load_config(tmp_path)
    (tmp_path / "c.pbtxt").write_bytes(b"a\xff")
    with pytest.raises(ConfigError, match="is not UTF-8 text: byte 1"):
        load_config(str(tmp_path / "c.pbtxt"))


def test_a_byte_order_mark_is_no_mistake(tmp_path: Path) -> None:
    (tmp_path / "c.pbtxt").write_bytes(b"\xef\xbb\xbfmodel_dir: 'x'\r\n")
    assert load_config(tmp_path / "c.pbtxt").model_dir == "x"


def problems(text: str) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        parse_config(text)
    return caught.value.problems


def test_everything_wrong_is_reported_in_one_error() -> None:
    text = """
    data_config { batch_size: 0 delimter: "," }
    feature_configs { id_feature { feature_name: "a" embedding_dim: 4 } }
    feature_configs { id_feature { feature_name: "b" embeding_dim: 4 num_buckets: 3 } }
    feature_configs { raw_feature { feature_name: "c" pooling: "max" normalizer: "log10" boundaries: [2, 1] } }
    feature_configs { id_feature { embedding_dim: 4 num_buckets: 3 } }
    feature_configs { }
    feature_groups { group_name: "g" feature_names: ["a", "b", "d", "c"] }
    feature_groups { }
    train_config { dense_optimizer { sgd_optimizer { lr: -1 } } }
    """
    assert problems(text) == (
        "line 2 column 33: data_config: unknown field 'delimter'; did you mean 'delimiter'?",
        "line 4 column 54: id_feature: unknown field 'embeding_dim'; did you mean 'embedding_dim'?",
        "data_config: batch_size must be at least 1, found 0",
        "train_config: dense_optimizer: sgd_optimizer: lr must be a number of 0 or more, found -1.0",
        "train_config: sparse_optimizer is missing",
        "feature 'c': pooling: must be sum or mean, found 'max'",
        "feature 'c': normalizer: 'log10': 'log10' is not of the form name=value",
        "feature_configs[3]: feature_name is missing",
        "feature_configs[4]: it is empty; set one of id_feature, raw_feature, combo_feature, lookup_feature, match_feature, expr_feature, "
        "overlap_feature, tokenize_feature, kv_dot_product, combine_feature, bool_mask_feature, custom_feature and 13 more",
        "feature 'a': has no source of rows; set one of zch, dynamicemb, hash_bucket_size, num_buckets, vocab_list, vocab_dict, vocab_file",
        "feature 'c': embedding_dim must be set, to 1 or more: the width of its table",
        "feature 'c': boundaries must ascend, found 1 after 2",
        "feature_groups[1]: group_name is missing",
        "feature_groups 'g': unknown feature 'd'; known: a, b, c",
    )


def test_the_error_names_the_file_and_counts() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config("a: 1 b: 2", source="x.pbtxt")
    assert str(caught.value).startswith("x.pbtxt: 2 problems:\n  1. line 1 column 1: the config: unknown field 'a'")


def test_a_group_of_wrong_features_is_not_told_that_they_are_unknown() -> None:
    text = """
    feature_configs { sequence_feature { sequence_name: "s" features { id_feature { feature_name: "i" } } features { } } }
    feature_configs { lookup_feature { feature_name: "l" dynamicemb {} } }
    feature_groups { group_name: "g" group_type: SEQUENCE feature_names: ["s__i", "l"] }
    """
    assert [problem.split(": ")[:2] for problem in problems(text)] == [
        ["sequence 's'", "features[1]"],
        ["feature 'l'", "dynamicemb"],
        ["feature 's__i'", "embedding_dim must be set, to 1 or more"],
        ["feature 's__i'", "has no source of rows; set one of zch, dynamicemb, hash_bucket_size, num_buckets, vocab_list, vocab_dict, vocab_file"],
    ]


def test_a_model_needs_groups() -> None:
    text = "model_config { dlrm { dense_mlp { hidden_units: 4 } final { hidden_units: 4 } } }"
    assert problems(text) == ("model_config: has no feature_groups; the model needs at least one",)


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("sequence_length: 5", "feature 'a': sequence_length has no effect: it is for sequences"),
        ("embedding_dim: 4", "feature 'a': embedding_dim has no effect without boundaries, autodis or mlp"),
        (
            "embedding_dim: 4 embedding_name: 'x' init_fn: 'nn.init.zeros_' embedding_constraints {}",
            "feature 'a': embedding_dim, embedding_name, init_fn, embedding_constraints has no effect without boundaries, autodis or mlp",
        ),
    ],
)
def test_settings_without_effect_are_told(text: str, note: str) -> None:
    assert parse_config(f"feature_configs {{ raw_feature {{ feature_name: 'a' {text} }} }}").notes == (note,)


def test_features_that_no_group_has_are_told() -> None:
    text = """
    feature_configs { raw_feature { feature_name: "a" } } feature_configs { raw_feature { feature_name: "b" } }
    feature_groups { group_name: "g" feature_names: "b" }
    """
    assert parse_config(text).notes == ("feature 'a': no group has it: it is read, and not used",)


def test_a_train_config_alone() -> None:
    config = parse_train_config("sparse_optimizer { sgd_optimizer { lr: 0.5 } } dense_optimizer { rmsprop_optimizer {} }")
    assert config.sparse_optimizer.optimizer.lr == 0.5
    assert config.dense_optimizer.optimizer.arguments() == {
        "lr": 0.002,
        "alpha": 0.99,
        "eps": 1e-8,
        "weight_decay": 0.0,
        "momentum": 0.0,
        "centered": False,
    }
    with pytest.raises(ConfigError, match=r"t.pbtxt: 2 problems"):
        parse_train_config("", source="t.pbtxt")


def test_no_config_is_changed_by_reading_it() -> None:
    config: Any = parse_config(WHOLE)
    with pytest.raises(AttributeError):
        config.model_dir = "x"
    assert hash(config) == hash(parse_config(WHOLE))
