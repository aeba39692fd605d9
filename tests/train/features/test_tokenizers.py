import json
from pathlib import Path

import pytest

from emberline.errors import ConfigError
from emberline.train.features import TokenizeFeatureConfig, create_features
from emberline.train.features.tokenizers import read_vocab_size


def a_bpe_file(folder: Path, added: int = 0) -> Path:
    path = folder / "tokenizer.json"
    content = {"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": []}, "added_tokens": [{"id": 3 + n} for n in range(added)]}
    path.write_text(json.dumps(content))
    return path


def a_sentencepiece_file(folder: Path, pieces: int) -> Path:
    """Field 1, a message, for each piece; then a field 2, as in a real model."""
    path = folder / "sp.model"
    path.write_bytes(b"\x0a\x03\x0a\x01a" * pieces + b"\x12\x02\x08\x01")
    return path


def test_tokens_are_counted(tmp_path: Path) -> None:
    assert read_vocab_size(a_bpe_file(tmp_path), "bpe") == 3
    assert read_vocab_size(a_bpe_file(tmp_path, added=2), "bpe") == 5
    assert read_vocab_size(a_sentencepiece_file(tmp_path, 7), "sentencepiece") == 7


def test_the_rows_of_a_feature(tmp_path: Path) -> None:
    a_bpe_file(tmp_path)
    config = TokenizeFeatureConfig(feature_name="t", embedding_dim=4, vocab_file="tokenizer.json", asset_dir=str(tmp_path))
    (feature,) = create_features([config])
    assert (feature.rows, feature.value_dim, feature.output_dim, feature.is_sequence) == (3, 0, 4, False)


@pytest.mark.parametrize(
    "data", [b"", b"{}", b'{"model": {"vocab": []}}', b'{"model": {"vocab": {}}}', b"\xff\xfe", b"[1]", b'{"model": {"vocab": {"a": "x"}}}']
)
@pytest.mark.parametrize("kind", ["bpe", "sentencepiece"])
def test_other_files_are_refused(tmp_path: Path, data: bytes, kind: str) -> None:
    path = tmp_path / "t"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=f"has no tokens of a {kind} tokenizer; tokenizer_type says what the file is"):
        read_vocab_size(path, kind)


def test_what_can_not_be_is_named(tmp_path: Path) -> None:
    configs = [
        TokenizeFeatureConfig(feature_name="a", embedding_dim=4, vocab_size=0),
        TokenizeFeatureConfig(feature_name="b", embedding_dim=4, vocab_size=3, vocab_file="x"),
        TokenizeFeatureConfig(feature_name="c", embedding_dim=4, vocab_size=3, tokenizer_type="bpee"),
        TokenizeFeatureConfig(feature_name="d", embedding_dim=4, vocab_file="x", asset_dir=str(tmp_path)),
    ]
    with pytest.raises(ConfigError) as caught:
        create_features(configs)
    assert caught.value.problems == (
        "feature 'a': vocab_size must be at least 1 and below 2^63, found 0",
        "feature 'b': vocab_file and vocab_size exclude each other; keep one",
        "feature 'c': unknown tokenizer_type 'bpee'; did you mean 'bpe'?",
        f"feature 'd': vocab_file {str(tmp_path / 'x')!r} can't be read: No such file or directory",
    )
