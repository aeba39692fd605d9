"""Tokenize features: the tokens' ids, and how many there are."""

import json
from pathlib import Path
from typing import Any

from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from emberline.schema import BucketEncoder, TableKind
from emberline.train.features.common import Context, assemble, attempt, check_count, check_table, source
from emberline.train.features.family_configs import TokenizeFeatureConfig
from emberline.train.features.feature import Feature
from emberline.train.features.inputs import inputs_of
from emberline.train.features.sentences import Absence, unknown_name

_TYPES = ("bpe", "sentencepiece")
_PIECES = 1
"""The field of a sentencepiece model that is repeated for each piece."""


def tokenize_feature(config: TokenizeFeatureConfig, context: Context, problems: list[str]) -> Feature | None:
    """The feature, or None with what is wrong added to `problems`."""
    where = source(config, inputs_of(config), context, problems)
    check_table(config, TableKind.STATIC, problems)
    rows = config.vocab_size
    if config.tokenizer_type not in _TYPES:
        problems.append(unknown_name("tokenizer_type", config.tokenizer_type, _TYPES))
    elif config.vocab_file and rows is not None:
        problems.append("vocab_file and vocab_size exclude each other; keep one")
    elif config.vocab_file:
        rows = attempt(problems, read_vocab_size, Path(config.asset_dir) / config.vocab_file, config.tokenizer_type)
    elif rows is None:
        problems.append(Absence("vocab_file is missing: the tokenizer's file, or vocab_size: how many tokens it has"))
    if rows is not None:
        check_count("vocab_size", rows, 1, problems)
    if problems or rows is None:
        return None
    value_dim = int(config.tokens_as_sequence)
    return assemble(config, where, context, encoder=BucketEncoder(rows=rows), value_dim=value_dim, default=None, rows=rows)


def read_vocab_size(path: Path, kind: str) -> int:
    """How many ids a tokenizer has: one more than its largest.

    Args:
        path: of its file.
        kind: `bpe` (a JSON file: `model.vocab` and `added_tokens`) or `sentencepiece` (a model file).

    Raises:
        ValueError: the file can't be read, or is no such file.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ValueError(f"vocab_file {str(path)!r} can't be read: {error.strerror or error}") from None
    size = _bpe_size(data) if kind == "bpe" else _sentencepiece_size(data)
    if not size:
        raise ValueError(f"vocab_file {str(path)!r} has no tokens of a {kind} tokenizer; tokenizer_type says what the file is")
    return size


def _bpe_size(data: bytes) -> int:
    try:
        content: Any = json.loads(data)
        ids = [*content["model"]["vocab"].values(), *(token["id"] for token in content.get("added_tokens", ()))]
        return max(map(int, ids), default=-1) + 1
    except (ValueError, KeyError, TypeError, AttributeError):
        return 0


def _sentencepiece_size(data: bytes) -> int:
    try:
        fields = UnknownFieldSet(Empty.FromString(data))
        return sum(fields[place].field_number == _PIECES for place in range(len(fields)))
    except DecodeError:
        return 0
