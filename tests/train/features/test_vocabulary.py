from pathlib import Path

import pytest

from emberline.schema import VocabEncoder
from emberline.train.features import IdFeatureConfig
from emberline.train.features.vocabulary import read_vocab_file, vocabulary


def config(**values: object) -> IdFeatureConfig:
    return IdFeatureConfig(feature_name="f", embedding_dim=4, **values)  # type: ignore[arg-type]


def rows(encoder: VocabEncoder) -> dict[str, int]:
    return dict(zip(encoder.words, encoder.word_rows, strict=True))


def test_a_list_begins_at_row_2() -> None:
    found = vocabulary(config(vocab_list=("a", "b", "c")))
    assert (rows(found), found.oov_row, found.rows) == ({"a": 2, "b": 3, "c": 4}, 1, 5)


def test_the_default_value_of_a_list_has_row_0() -> None:
    found = vocabulary(config(vocab_list=("a", "b"), default_value="none"))
    assert (rows(found), found.oov_row, found.rows) == ({"none": 0, "a": 2, "b": 3}, 1, 4)


def test_a_default_value_within_the_list_keeps_its_place() -> None:
    found = vocabulary(config(vocab_list=("a", "b"), default_value="b"))
    assert (rows(found), found.oov_row, found.rows) == ({"a": 2, "b": 3}, 1, 4)


def test_with_a_bucketize_value_a_list_is_taken_as_it_is() -> None:
    found = vocabulary(config(vocab_list=("a", "b"), default_bucketize_value=1, default_value="zzz"))
    assert (rows(found), found.oov_row, found.rows) == ({"a": 0, "b": 1}, 1, 2)


def test_a_dict_has_its_own_rows_with_0_for_the_default_and_1_for_the_unknown() -> None:
    found = vocabulary(config(vocab_dict=(("a", 2), ("b", 7)), default_value="d"))
    assert (rows(found), found.oov_row, found.rows) == ({"d": 0, "a": 2, "b": 7}, 1, 8)


def test_the_default_value_is_moved_to_row_0() -> None:
    found = vocabulary(config(vocab_dict=(("a", 2), ("b", 3)), default_value="b"))
    assert (rows(found), found.rows) == ({"b": 0, "a": 2}, 3)


def test_a_dict_has_room_for_the_row_of_the_unknown() -> None:
    found = vocabulary(config(vocab_dict=(("a", 0),)))
    assert (rows(found), found.oov_row, found.rows) == ({"a": 0}, 1, 2)


def test_with_a_bucketize_value_a_dict_is_taken_as_it_is() -> None:
    found = vocabulary(config(vocab_dict=(("a", 0), ("b", 1)), default_bucketize_value=0))
    assert (rows(found), found.oov_row, found.rows) == ({"a": 0, "b": 1}, 0, 2)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"vocab_list": ("a", "b", "a")}, "vocab_list has 'a' twice"),
        ({"vocab_list": ("a", "b"), "default_bucketize_value": 2}, "default_bucketize_value 2 is outside of the 2 rows of vocab_list"),
        ({"vocab_dict": (("a", 4),), "default_bucketize_value": 5}, "default_bucketize_value 5 is outside of the 5 rows of vocab_dict"),
        ({"vocab_file": "words.txt"}, "vocab_file needs default_bucketize_value"),
    ],
)
def test_what_can_not_be_is_named(values: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        vocabulary(config(**values))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\nb\nc\n", (("a", 0), ("b", 1), ("c", 2))),
        ("a 5\nb\t2\n\n  \n", (("a", 5), ("b", 2))),
        ("日本 0\n中国 1", (("日本", 0), ("中国", 1))),
    ],
)
def test_a_file_has_words_or_words_and_rows(tmp_path: Path, text: str, expected: tuple[tuple[str, int], ...]) -> None:
    path = tmp_path / "words.txt"
    path.write_text(text, encoding="utf-8")
    assert read_vocab_file(path) == expected


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "has no words"),
        (b"\n\n", "has no words"),
        (b"a\n\nb", "line 2: expected 'word' or 'word row'"),
        (b"a 1\nb", "line 2: expected 'word' or 'word row' as in the first line, found 'b'"),
        (b"a b c", "line 1: expected 'word' or 'word row'"),
        (b"a x", "line 1: row 'x' is no whole number"),
        (b"a -1", "line 1: row '-1' is no whole number"),
        ("a ١".encode(), "line 1: row '١' is no whole number"),
        (b"a\na", "has 'a' twice"),
        (b"\xff", "can't be read"),
    ],
)
def test_a_wrong_file_is_named_with_its_line(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "words.txt"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=message):
        read_vocab_file(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"vocab_file '.*gone.txt' can't be read"):
        read_vocab_file(tmp_path / "gone.txt")
    with pytest.raises(ValueError, match="can't be read"):
        read_vocab_file(tmp_path)


def test_a_file_lies_in_the_folder_that_the_config_names(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("a\nb\n")
    found = vocabulary(config(vocab_file="words.txt", asset_dir=str(tmp_path), default_bucketize_value=1))
    assert (rows(found), found.oov_row, found.rows) == ({"a": 0, "b": 1}, 1, 2)


def test_the_word_of_a_weighted_default_is_without_its_weight() -> None:
    assert rows(vocabulary(config(vocab_list=("a",), default_value="none:0.5", weighted=True))) == {"none": 0, "a": 2}
    assert rows(vocabulary(config(vocab_dict=(("a", 3),), default_value="none", weighted=True))) == {"none": 0, "a": 3}
    assert rows(vocabulary(config(vocab_list=("a",), default_value="a:b"))) == {"a:b": 0, "a": 2}
