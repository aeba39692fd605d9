"""Lines of a file to a model, and its answers to a file: what `emberline predict` and `lookup` do."""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np
import orjson

from emberline.errors import DataError, RequestError, ServingError
from emberline.schema import GroupSpec, ModelSchema
from emberline.serving.ask_forms import EXPLAIN, Answer, Form, RowForm, UserForm
from emberline.serving.client import Client
from emberline.serving.security.access import NO_ACCESS, Access

E = TypeVar("E")


@dataclass(frozen=True, kw_only=True)
class Question:
    """What to ask of which model.

    Args:
        url: as `Client` takes it.
        model: its name.
        version: empty for the newest.
        users: each line is a user with rows, not a row.
        names: outputs, or groups where `lookup` is set; None for all.
        lookup: whether groups are asked for.
        explain: add how each row was read.
        timeout_s: of each request, with its retries.
        batch_rows: rows of a request, at most.
        access: what the server is shown, and whom to trust.
    """

    url: str
    model: str
    version: str = ""
    users: bool = False
    names: list[str] | None = None
    lookup: bool = False
    explain: bool = False
    timeout_s: float = 10.0
    batch_rows: int = 1024
    access: Access = NO_ACCESS


def answer_file(question: Question, source: str, target: str) -> int:
    """Answer every line of `source`, a JSON object each, with one line in `target`; `-` means standard input or output.

    Raises:
        DataError: a line says nothing that the model takes; the message names file and line. A target file is then not made.
        ServingError: the server did not answer.
    """
    name, access = "standard input" if source == "-" else source, question.access
    with (
        _open_source(source) as lines,
        _open_target(target) as out,
        Client(
            question.url,
            question.model,
            version=question.version,
            timeout_s=question.timeout_s,
            max_rows=question.batch_rows,
            token=access.token,
            ca=access.ca,
            cert=access.cert,
            key=access.key,
        ) as client,
    ):
        _check_names(client.schema, question)
        answers = (
            _answer_lines(question, UserForm(), client, lines, name) if question.users else _answer_lines(question, RowForm(), client, lines, name)
        )
        for batch in answers:
            for answer in batch:
                out.write(orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE))
            out.flush()
    return 0


def _answer_lines(question: Question, form: Form[E], client: Client, lines: Iterable[bytes], name: str) -> Iterator[list[Answer]]:
    """What is written for all lines, a batch at a time."""
    for numbers, entries in _batches(lines, name, form, client.schema, question.batch_rows):
        try:
            yield _answer(client, question, form, entries)
        except RequestError as error:
            place, part = form.find(error, entries)
            if place is None:
                raise
            where = f"{name}, line {numbers[place]}: {part}"
            raise DataError(f"{where}feature {error.feature!r}: {error.problem}" if error.feature else where + error.problem) from error


def _answer(client: Client, question: Question, form: Form[E], entries: list[E]) -> list[Answer]:
    """What is written for each entry."""
    schema, wanted, asked = client.schema, question.names, form.arguments(entries)
    lengths = {group.name: _lengths_of(schema, group) for group in schema.groups if question.lookup and group.is_jagged}
    if wanted is not None:
        wanted = [*wanted, *(lengths[name] for name in wanted if name in lengths)]
    found: dict[str, Any] = client.lookup(groups=wanted, **asked) if question.lookup else client.predict(outputs=wanted, **asked)
    for name in lengths.keys() & found.keys():
        found[name] = np.split(found[name], np.cumsum(found[lengths[name]])[:-1])
    shown = found.keys() if question.names is None else question.names
    ends = np.cumsum([form.num_rows(entry) for entry in entries]).tolist()
    answers = [{name: found[name][place] for name in shown} for place in range(ends[-1])]
    explained = form.explain(schema, entries, answers, client.known) if question.explain else [{} for _ in entries]
    starts = [0, *ends[:-1]]
    return [form.line(answers[start:end], more) for start, end, more in zip(starts, ends, explained, strict=True)]


def _lengths_of(schema: ModelSchema, group: GroupSpec) -> str:
    """The group that counts the steps of each row of a jagged one."""
    for other in schema.groups:
        if other.is_lengths and other.stream == group.stream:
            return other.name
    raise ServingError(f"no group of the model counts the steps that each row has in {group.name!r}: its steps cannot be told apart by row")


def _check_names(schema: ModelSchema, question: Question) -> None:
    """The explanation lies beside the answers, under a name of its own."""
    names = [spec.name for spec in (schema.groups if question.lookup else schema.outputs)]
    if question.explain and EXPLAIN in names:
        raise RequestError(f"the model has an answer {EXPLAIN!r}, so that an explanation cannot be told from it: leave --explain out")


def _batches(lines: Iterable[bytes], name: str, form: Form[E], schema: ModelSchema, size: int) -> Iterator[tuple[list[int], list[E]]]:
    """Entries with their line numbers, `size` rows at a time, or as many as the last one brings; blank lines are passed over."""
    numbers: list[int] = []
    entries: list[E] = []
    rows = 0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            entry = form.read(schema, line)
        except RequestError as error:
            raise DataError(f"{name}, line {number}: {error}") from error
        numbers.append(number)
        entries.append(entry)
        rows += max(1, form.num_rows(entry))
        if rows >= size:
            yield numbers, entries
            numbers, entries, rows = [], [], 0
    if entries:
        yield numbers, entries


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
