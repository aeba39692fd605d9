"""Rows from a file to a server, and its answers to a file: what `emberline predict` and `lookup` do."""

import sys
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from emberline.encoding import required_columns
from emberline.errors import DataError, RequestError
from emberline.serving.client import Client
from emberline.serving.protocol.strict_json import parse_object, quote


@dataclass(frozen=True, kw_only=True)
class Question:
    """What to ask of which model: `names` are outputs, or groups where `lookup` is set; None for all."""

    url: str
    model: str
    version: str = ""
    names: list[str] | None = None
    lookup: bool = False
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
        columns = required_columns(client.schema.features)
        for numbers, rows in _batches(lines, name, columns, question.batch_rows):
            try:
                answers = (client.lookup if question.lookup else client.predict)(rows, question.names)
            except RequestError as error:
                if error.row is None:
                    raise
                where = f"{name}, line {numbers[error.row]}"
                raise DataError(f"{where}: feature {error.feature!r}: {error.problem}" if error.feature else f"{where}: {error.problem}") from error
            for place in range(len(rows)):
                answer = {output: values[place] for output, values in answers.items()}
                out.write(orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE))
            out.flush()
    return 0


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
