"""What `emberline inspect` tells of a config, with all values by hand; nothing that it describes is allocated."""

from pathlib import Path

import pytest

from emberline.cli import main

CONFIG = """
train_config {
  sparse_optimizer { OPTIMIZER { lr: 0.1 } constant_learning_rate {} }
  dense_optimizer { adam_optimizer { lr: 0.01 } constant_learning_rate {} }
}
feature_configs { id_feature { feature_name: "uid" expression: "user:uid" embedding_dim: 8 zch { zch_size: 1000 lfu {} } } }
feature_configs { id_feature { feature_name: "item" expression: "item:item" embedding_dim: 4 num_buckets: 5000000000 embedding_name: "shared" } }
feature_configs {
  id_feature {
    feature_name: "tags" expression: "item:tags" embedding_dim: 16 num_buckets: 10 pooling: "mean" weighted: true data_type: "FP16" trainable: false
  }
}
feature_configs { raw_feature { feature_name: "price" expression: "item:price" value_dim: 2 } }
feature_configs { raw_feature { feature_name: "score" expression: "item:score" embedding_dim: 6 autodis { num_channels: 3 } } }
feature_configs { raw_feature { feature_name: "place" expression: "item:place" value_dim: 3 embedding_dim: 5 mlp {} } }
feature_configs {
  sequence_feature {
    sequence_name: "click" sequence_length: 20 sequence_delim: ";"
    features { id_feature { feature_name: "item" expression: "item:item" embedding_dim: 4 num_buckets: 5000000000 embedding_name: "shared" } }
  }
}
feature_groups {
  group_name: "deep" group_type: DEEP feature_names: ["uid", "tags", "price", "score", "place"]
  sequence_groups { group_name: "seen" feature_names: ["item", "click__item"] }
  sequence_encoders { pooling_encoder { input: "seen" } }
}
feature_groups { group_name: "wide" group_type: WIDE feature_names: ["uid"] }
feature_groups { group_name: "steps" group_type: JAGGED_SEQUENCE feature_names: ["click__item"] }
"""
SHARED = 5_000_000_000 * 4
TABLES = 1000 * 8 * 4 + SHARED * 4 + 10 * 16 * 2 + 1000 * 4 * 4


def inspect(folder: Path, text: str, capsys: pytest.CaptureFixture[str]) -> dict[str, list[list[str]]]:
    """The words of each line, by the first word of the part that it is in."""
    path = folder / "config.pbtxt"
    path.write_text(text)
    assert main(["inspect", str(path)]) == 0
    parts = [part.splitlines() for part in capsys.readouterr().out.split("\n\n")]
    parts[-1].insert(0, "memory")
    return {part[0].split()[0]: [line.split() for line in part[1:]] for part in parts}


def test_bf16_tables_and_rounded_groups_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = CONFIG.replace("OPTIMIZER", "adagrad_optimizer").replace('"FP16"', '"BF16"')
    told = inspect(tmp_path, text, capsys)
    assert ["tags_emb", "static,", "frozen", "10", "16", "bf16", "320", "tags"] in told["table"]
    assert not any("rounded" in line for line in told["group"])
    head = 'custom_model { class_path: "a.B" } embedding_output_dtype: "BF16"'
    groups = text[text.index("feature_groups") :]
    told = inspect(tmp_path, text.replace(groups, f"model_config {{ {groups} {head} }}"), capsys)
    assert told["group"][-1] == ["group", "tensors", "are", "rounded", "to", "bf16"]


def test_what_dynamic_tables_may_grow_to_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = CONFIG.replace("OPTIMIZER", "adagrad_optimizer").replace("zch { zch_size: 1000 lfu {} }", "dynamicemb { max_capacity: 1000 }")
    told = inspect(tmp_path, text, capsys)
    assert ["uid_emb", "dynamic", "up", "to", "1000", "8", "fp32", "32,000", "uid"] in told["table"]
    assert " ".join(told["memory"][0]).endswith("GiB), 48,000 bytes (46.9 KiB) of it in dynamic ones once they are full")


def test_tables_lookups_groups_and_embedded_numbers_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = inspect(tmp_path, CONFIG.replace("OPTIMIZER", "adagrad_optimizer"), capsys)
    assert told["config"] == [["7", "features,", "3", "groups,", "4", "tables"]]
    assert sorted(told["table"]) == [
        ["shared", "static", "5000000000", "4", "fp32", "80,000,000,000", "item,", "click__item"],
        ["tags_emb", "static,", "frozen", "10", "16", "fp16", "320", "tags"],
        ["uid_emb", "zch", "1000", "8", "fp32", "32,000", "uid"],
        ["uid_emb_wide", "zch", "1000", "4", "fp32", "16,000", "uid"],
    ]
    assert sorted(told["lookup"]) == [
        ["click__item", "per", "step", "click__item", "shared", "sum", "4"],
        ["item", "pooled", "item", "shared", "sum", "4"],
        ["tags", "pooled", "tags", "tags_emb", "mean,", "weighted", "16"],
        ["uid@uid_emb", "pooled", "uid", "uid_emb", "sum", "8"],
        ["uid@uid_emb_wide", "pooled", "uid", "uid_emb_wide", "sum", "4"],
    ]
    assert [" ".join(words) for words in told["group"]] == [
        "deep DEEP 41 uid 8, tags 16, price 2, score 6, place 5, deep_seq_encoder_0 4",
        "seen.query in deep 4 item 4",
        "seen.sequence in deep 4 click__item 4",
        "wide WIDE 4 uid 4",
        "steps.sequence JAGGED_SEQUENCE 4 click__item 4",
    ]
    assert told["embedded"] == [["score", "autodis", "1", "6"], ["place", "mlp", "3", "5"]]


@pytest.mark.parametrize(
    ("optimizer", "name", "state"),
    [
        ("adagrad_optimizer", "sum", 4 * (1000 * 8 + SHARED + 1000 * 4)),
        ("rowwise_adagrad_optimizer", "sum by row", 4 * (1000 + 5_000_000_000 + 1000)),
        ("adam_optimizer", "exp_avg, exp_avg_sq", 2 * 4 * (1000 * 8 + SHARED + 1000 * 4)),
        ("partial_rowwise_adam_optimizer", "exp_avg, exp_avg_sq by row", 4 * (1000 * 8 + SHARED + 1000 * 4 + 1000 + 5_000_000_000 + 1000)),
        ("sgd_optimizer", "", 0),
    ],
)
def test_memory_counts_moments_of_trained_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str], optimizer: str, name: str, state: int) -> None:
    lines = [" ".join(words) for words in inspect(tmp_path, CONFIG.replace("OPTIMIZER", optimizer), capsys)["memory"]]
    assert lines[0] == f"memory of tables: {TABLES:,} bytes (74.5 GiB)"
    told = [line.split(" bytes (")[0] + " bytes" for line in lines[1:]]
    assert told == ([f"memory of moments ({name}): {state:,} bytes", f"memory of both: {TABLES + state:,} bytes"] if name else [])


def test_features_and_groups_alone_are_enough(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = """
    feature_configs { id_feature { feature_name: "a" expression: "user:a" embedding_dim: 4 num_buckets: 3 } }
    feature_groups { group_name: "g" group_type: DEEP feature_names: "a" }
    """
    told = inspect(tmp_path, text, capsys)
    assert told["table"] == [["a_emb", "static", "3", "4", "fp32", "48", "a"]]
    assert told["memory"] == [["memory", "of", "tables:", "48", "bytes"]]


def test_the_models_width_of_wide_tables_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "examples/movielens_deepfm.pbtxt"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["user_id_emb_wide", "zch", "1024", "4", "fp32", "16,384", "user_id"] in lines
    assert ["user_id_emb", "zch", "1024", "16", "fp32", "65,536", "user_id"] in lines


def test_files_that_are_no_config_are_the_usual_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other.txt"
    for content, words in (
        (b"hello", "other.txt: "),
        (b"\xff\xfe\x00", "is not UTF-8 text"),
        (b"feature_grops {}", "did you mean 'feature_groups'?"),
    ):
        other.write_bytes(content)
        assert main(["inspect", str(other)]) == 2
        assert words in capsys.readouterr().err
    assert main(["inspect", str(tmp_path / "gone.pbtxt")]) == 2
    assert "gone.pbtxt: the config can't be read: No such file" in capsys.readouterr().err
