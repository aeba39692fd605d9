"""Rows from a file to a server, and its answers to a file: what `emberline predict` and `lookup` do."""

import sys
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import orjson

from emberline.encoding import required_columns
from emberline.errors import DataError, RequestError
from emberline.schema import GroupSpec, ModelSchema
from emberline.serving.client import Client
from emberline.serving.explained import explain_rows
from emberline.serving.protocol.strict_json import parse_object, quote

EXPLAIN = "explain"
"""The key of the explanation in a line."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """What to ask of which model: `names` are outputs, or groups where `lookup` is set; None for all. `explain` adds how each row was read."""

    url: str
    model: str
    version: str = ""
    names: list[str] | None = None
    lookup: bool = False
    explain: bool = False
    timeout_s: float = 10.0
    batch_rows: int = 1024


def answer_file(question: Question, source: str, target: str) -> int:
    """Answer every row of `source`, one JSON object a line, with one line in `target`; `-` means standard input or output.

    Raises:
        DataError: a line is no row that the model takes; the message names file and line. A target file is then not made.
        ServingError: the server did not answer.
    """
    name = "standard input" if source == "-" else source
    with (
        _open_source(source) as lines,
        _open_target(target) as out,
        Client(question.url, question.model, version=question.version, timeout_s=question.timeout_s, max_rows=question.batch_rows) as client,
    ):
        schema = client.schema
        _check_names(schema, question)
        for numbers, rows in _batches(lines, name, required_columns(schema.features), question.batch_rows):
            try:
                answers = _answer(client, question, rows)
            except RequestError as error:
                if error.row is None:
                    raise
                where = f"{name}, line {numbers[error.row]}"
                raise DataError(f"{where}: feature {error.feature!r}: {error.problem}" if error.feature else f"{where}: {error.problem}") from error
            for answer in answers:
                out.write(orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE))
            out.flush()
    return 0


def _answer(client: Client, question: Question, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What is written for each row."""
    schema, wanted = client.schema, question.names
    lengths = {group.name: _lengths_of(schema, group) for group in schema.groups if question.lookup and group.is_jagged}
    if wanted is not None:
        wanted = [*wanted, *(lengths[name] for name in wanted if name in lengths)]
    found: dict[str, Any] = client.lookup(rows, wanted) if question.lookup else client.predict(rows, wanted)
    for name in lengths.keys() & found.keys():
        found[name] = np.split(found[name], np.cumsum(found[lengths[name]])[:-1])
    shown = found.keys() if question.names is None else question.names
    answers = [{name: found[name][place] for name in shown} for place in range(len(rows))]
    if question.explain:
        for answer, explanation in zip(answers, explain_rows(schema, rows, client.known(rows)), strict=True):
            answer[EXPLAIN] = explanation
    return answers


def _lengths_of(schema: ModelSchema, group: GroupSpec) -> str:
    """The group that counts the steps of each row of a jagged one."""
    return next(other.name for other in schema.groups if other.is_lengths and other.stream == group.stream)


def _check_names(schema: ModelSchema, question: Question) -> None:
    """The explanation lies beside the answers, under a name of its own."""
    names = [spec.name for spec in (schema.groups if question.lookup else schema.outputs)]
    if question.explain and EXPLAIN in names:
        raise RequestError(f"the model has an answer {EXPLAIN!r}, so that an explanation cannot be told from it: leave --explain out")


def _batches(lines: Iterable[bytes], name: str, columns: Collection[str], size: int) -> Iterator[tuple[list[int], list[dict[str, Any]]]]:
    """Rows with their line numbers, `size` at a time; blank lines are passed over."""
    numbers: list[int] = []
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = parse_object(line, "the row")
        except RequestError as error:
            raise DataError(f"{name}, line {number}: {error}") from error
        if unknown := [column for column in row if column not in columns]:
            raise DataError(f"{name}, line {number}: the model reads no column {quote(unknown[0])}; it reads {', '.join(columns)}")
        numbers.append(number)
        rows.append(row)
        if len(rows) == size:
            yield numbers, rows
            numbers, rows = [], []
    if rows:
        yield numbers, rows


@contextmanager
def _open_source(source: str) -> Iterator[BinaryIO]:
    if source == "-":
        yield sys.stdin.buffer
        return
    with _named_errors(source, "read"), Path(source).open("rb") as stream:
        yield stream


@contextmanager
def _open_target(target: str) -> Iterator[BinaryIO]:
    """The file appears under its name when all is written."""
    if target == "-":
        yield sys.stdout.buffer
        return
    path, draft = Path(target), Path(target + ".part")
    with _named_errors(target, "written"):
        try:
            with draft.open("wb") as stream:
                yield stream
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)


@contextmanager
def _named_errors(path: str, what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataError(f"{path} cannot be {what}: {error.strerror}") from error
