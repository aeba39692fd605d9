"""The two forms of a line that `emberline predict` and `lookup` read: a row, or a user with rows.

{"age": 31, "item_id": 4}                                                             a row
{"user": {"age": 31}, "rows": [{"item_id": 4}, {"item_id": 5}]}                       a user with two
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from emberline.encoding import required_columns
from emberline.errors import RequestError
from emberline.schema import ModelSchema
from emberline.serving.explained import explain_rows, explain_sides
from emberline.serving.protocol.strict_json import json_type, parse_object, quote
from emberline.serving.tiled_rows import TiledRows

EXPLAIN = "explain"
"""The key of the explanation in a line."""
Row = dict[str, Any]
Answer = dict[str, Any]
Known = Callable[..., Mapping[str, Any]]
"""`Client.known`."""
E = TypeVar("E")


class Form(Protocol, Generic[E]):
    """How lines are read, asked and answered; E is what a line says."""

    def read(self, schema: ModelSchema, line: bytes) -> E:
        """What a line says.

        Raises:
            RequestError: it says nothing that the model takes.
        """

    def num_rows(self, entry: E) -> int:
        """Rows that are asked for it."""

    def arguments(self, entries: Sequence[E]) -> dict[str, Any]:
        """What `Client.predict`, `lookup` and `known` are called with."""

    def explain(self, schema: ModelSchema, entries: Sequence[E], answers: Sequence[Answer], known: Known) -> list[Answer]:
        """Add to the answers of all rows how each was read; gives what is to be added for each entry."""

    def line(self, answers: list[Answer], explained: Answer) -> Answer:
        """What is written for an entry with these answers."""

    def find(self, error: RequestError, entries: Sequence[E]) -> tuple[int | None, str]:
        """The entry that an error tells of, if it tells, and which part of it, in words that a message may begin with."""


class RowForm:
    """A row a line."""

    def read(self, schema: ModelSchema, line: bytes) -> Row:
        """A JSON object of columns that the model reads."""
        row, columns = parse_object(line, "the row"), required_columns(schema.features)
        if unknown := [column for column in row if column not in columns]:
            raise RequestError(f"the model reads no column {quote(unknown[0])}; it reads {', '.join(columns)}")
        return row

    def num_rows(self, entry: Row) -> int:
        """One."""
        return 1

    def arguments(self, entries: Sequence[Row]) -> dict[str, Any]:
        """The rows."""
        return {"data": entries}

    def explain(self, schema: ModelSchema, entries: Sequence[Row], answers: Sequence[Answer], known: Known) -> list[Answer]:
        """Each answer's row."""
        for answer, explanation in zip(answers, explain_rows(schema, entries, known(entries)), strict=True):
            answer[EXPLAIN] = explanation
        return [{} for _ in entries]

    def line(self, answers: list[Answer], explained: Answer) -> Answer:
        """The row's answer."""
        return answers[0]

    def find(self, error: RequestError, entries: Sequence[Row]) -> tuple[int | None, str]:
        """The row is the entry."""
        return error.row, ""


class User(NamedTuple):
    """What holds for a user, once, and its rows."""

    user: Row
    rows: list[Row]


class UserForm:
    """A user a line, with its rows."""

    def read(self, schema: ModelSchema, line: bytes) -> User:
        """`{"user": {column: value}, "rows": [{column: value}, ...]}`."""
        found = parse_object(line, "the line")
        if found.keys() != {"user", "rows"}:
            held = ", ".join(map(quote, found)) or "nothing"
            raise RequestError(f'the line must be {{"user": {{column: value}}, "rows": [{{column: value}}, ...]}}; it has {held}')
        user, rows = found["user"], found["rows"]
        if not isinstance(user, dict):
            raise RequestError(f"user must be an object of columns and values, not {json_type(user)}")
        if not isinstance(rows, list):
            raise RequestError(f"rows must be an array of objects, not {json_type(rows)}")
        for number, row in enumerate(rows):
            if not isinstance(row, dict):
                raise RequestError(f"row {number} must be an object of columns and values, not {json_type(row)}")
        return User(user, rows)

    def num_rows(self, entry: User) -> int:
        """Its rows."""
        return len(entry.rows)

    def arguments(self, entries: Sequence[User]) -> dict[str, Any]:
        """Rows by user, and users."""
        return {"data": [entry.rows for entry in entries], "users": [entry.user for entry in entries]}

    def explain(self, schema: ModelSchema, entries: Sequence[User], answers: Sequence[Answer], known: Known) -> list[Answer]:
        """Each answer's row, by the features that are not the user's; the user's for each entry."""
        given = TiledRows([entry.user for entry in entries], [entry.rows for entry in entries])
        users, rows = explain_sides(schema, given, known(**self.arguments(entries)))
        for answer, explanation in zip(answers, rows, strict=True):
            answer[EXPLAIN] = explanation
        return [{EXPLAIN: explanation} for explanation in users]

    def line(self, answers: list[Answer], explained: Answer) -> Answer:
        """The answers of its rows, beside how its user was read."""
        return {**explained, "rows": answers}

    def find(self, error: RequestError, entries: Sequence[User]) -> tuple[int | None, str]:
        """The user, or the one that has the row, which is then counted from its first."""
        if error.user is not None:
            return error.user, "the user: "
        if error.row is None:
            return None, ""
        left = error.row
        for place, entry in enumerate(entries):
            if left < len(entry.rows):
                return place, f"row {left}: "
            left -= len(entry.rows)
        return None, ""
