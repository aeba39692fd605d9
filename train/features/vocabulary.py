"""Vocabularies: which row each word of a feature has.

| given | rows without `default_bucketize_value` | rows with it |
|---|---|---|
| `vocab_list` | 0: the default value, 1: unknown words, then the list from 2 | the list from 0; unknown words: that row |
| `vocab_dict` | as given; the default value: 0, unknown words: 1 | as given; unknown words: that row |
| `vocab_file` | refused | by line number or as given; unknown words: that row |
"""

from collections.abc import Sequence
from pathlib import Path

from emberline.schema import VocabEncoder
from emberline.train.features.configs import HashOrVocabularyConfig, IdFeatureConfig

VOCABULARIES = ("vocab_list", "vocab_dict", "vocab_file")
_DEFAULT_ROW, _OOV_ROW, _FIRST_WORD_ROW = 0, 1, 2


def vocabulary(config: HashOrVocabularyConfig) -> VocabEncoder:
    """The encoder for the vocabulary that `config` has.

    Raises:
        ValueError: a word twice, a row that can't be, a file that can't be read; the message names field and word.
    """
    default = config.default_value
    if isinstance(config, IdFeatureConfig) and config.weighted:
        default = default.rpartition(":")[0] or default
    if config.vocab_list:
        return _from_list(config.vocab_list, default, config.default_bucketize_value)
    if config.vocab_file:
        if config.default_bucketize_value is None:
            raise ValueError("vocab_file needs default_bucketize_value: the row of words that are not in the file")
        return _given(read_vocab_file(Path(config.asset_dir) / config.vocab_file), config.default_bucketize_value, "vocab_file")
    if config.default_bucketize_value is not None:
        return _given(config.vocab_dict, config.default_bucketize_value, "vocab_dict")
    return _from_dict(config.vocab_dict, default)


def _from_list(words: Sequence[str], default: str, oov_row: int | None) -> VocabEncoder:
    _check_distinct(words, "vocab_list")
    if oov_row is not None:
        return _given(tuple((word, row) for row, word in enumerate(words)), oov_row, "vocab_list")
    pairs = [(word, row) for row, word in enumerate(words, _FIRST_WORD_ROW)]
    if default and default not in words:
        pairs.insert(0, (default, _DEFAULT_ROW))
    return _encoder(pairs, oov_row=_OOV_ROW, rows=len(words) + _FIRST_WORD_ROW)


def _from_dict(pairs: Sequence[tuple[str, int]], default: str) -> VocabEncoder:
    kept = [(word, row) for word, row in pairs if word != default]
    if default:
        kept.insert(0, (default, _DEFAULT_ROW))
    rows = max(_OOV_ROW, *(row for _, row in kept)) + 1
    return _encoder(kept, oov_row=_OOV_ROW, rows=rows)


def _given(pairs: Sequence[tuple[str, int]], oov_row: int, source: str) -> VocabEncoder:
    rows = max(row for _, row in pairs) + 1
    if oov_row >= rows:
        raise ValueError(f"default_bucketize_value {oov_row} is outside of the {rows} rows of {source}")
    return _encoder(pairs, oov_row=oov_row, rows=rows)


def _encoder(pairs: Sequence[tuple[str, int]], *, oov_row: int, rows: int) -> VocabEncoder:
    return VocabEncoder(words=tuple(word for word, _ in pairs), word_rows=tuple(row for _, row in pairs), oov_row=oov_row, rows=rows)


def _check_distinct(words: Sequence[str], source: str) -> None:
    if len(set(words)) < len(words):
        seen: set[str] = set()
        twice = next(word for word in words if word in seen or seen.add(word))  # type: ignore[func-returns-value]
        raise ValueError(f"{source} has {twice!r} twice")


def read_vocab_file(path: Path) -> tuple[tuple[str, int], ...]:
    """Words and rows of a file: one `word`, or `word row`, a line; with words alone, the row is the line's number from 0.

    Raises:
        ValueError: the file can't be read or is empty, mixes both forms, has a word twice or a row that is no whole number; the message
            names the line.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"vocab_file {str(path)!r} can't be read: {error}") from None
    while lines and not lines[-1].strip():
        lines.pop()
    if not lines:
        raise ValueError(f"vocab_file {str(path)!r} has no words")
    entries = [(number, line.split()) for number, line in enumerate(lines, 1)]
    width = len(entries[0][1])
    pairs: list[tuple[str, int]] = []
    for number, parts in entries:
        if len(parts) != width or not 1 <= width <= 2:
            raise ValueError(f"vocab_file {str(path)!r} line {number}: expected 'word' or 'word row' as in the first line, found {' '.join(parts)!r}")
        if width == 2 and not (parts[1].isascii() and parts[1].isdigit()):
            raise ValueError(f"vocab_file {str(path)!r} line {number}: row {parts[1]!r} is no whole number")
        pairs.append((parts[0], int(parts[1]) if width == 2 else len(pairs)))
    _check_distinct([word for word, _ in pairs], f"vocab_file {str(path)!r}")
    return tuple(pairs)
