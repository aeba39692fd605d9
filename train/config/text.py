"""Protobuf text with all of its mistakes at once.

protobuf's own parser stops at the first mistake. This one walks the text along the message's descriptor, notes every unknown field, wrong type and
unknown enum value with its line and column, blanks what is wrong, and lets protobuf parse the rest. Only a broken structure (a brace that
closes nothing, a text without an end) ends the walk.
"""

import re
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn, TypeVar, cast

from google.protobuf import text_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from emberline.train.config.tokens import Token, UnknownTokenError, expected, tokenize
from emberline.train.features.sentences import unknown_name

Path = tuple[str | int, ...]
"""Field names and places from the root, such as ("feature_configs", 3, "id_feature", 0)."""

M = TypeVar("M", bound=Message)

_MOST_LEVELS = 100
_CLOSERS = {"{": "}", "<": ">", "[": "]"}


class _BrokenError(Exception):
    """The text's structure ends here; what is wrong has been noted."""


@dataclass
class TextProblems:
    """What is wrong with a text, in its order, and which messages lost a field by it."""

    messages: list[str] = field(default_factory=list)
    damaged: set[Path] = field(default_factory=set)
    is_broken: bool = False

    def covers(self, path: Path) -> bool:
        """Whether something inside of `path` is wrong already, so that follow-on problems there would mislead."""
        return self.is_broken or any(damaged[: len(path)] == path for damaged in self.damaged)


def parse_text(text: str, make: Callable[[], M]) -> tuple[M, TextProblems]:
    """The message that is left of a text without its mistakes, and the mistakes."""
    walk = _Walk(text)
    message = make()
    try:
        walk.tokens = walk.lex()
        walk.fields(cast(Descriptor, message.DESCRIPTOR), "", ())
    except _BrokenError:
        walk.problems.is_broken = True
        return message, walk.problems
    try:
        text_format.Parse(walk.cleaned(), message)
    except text_format.ParseError as error:
        walk.problems.messages.append(f"line {error.GetLine()} column {error.GetColumn()}: {error}" if error.GetLine() else str(error))
        walk.problems.is_broken = True
    return message, walk.problems


class _Walk:
    """One pass over one text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[Token] = []
        self.at = 0
        self.blanks: list[tuple[int, int]] = []
        self.problems = TextProblems()
        self.line_starts = [0, *(match.end() for match in re.finditer("\n", text))]

    def lex(self) -> list[Token]:
        try:
            return tokenize(self.text)
        except UnknownTokenError as error:
            found = self.text[error.position]
            self.broken(error.position, "this text has no end on its line" if found in "\"'" else f"unexpected {found!r}")

    def cleaned(self) -> str:
        """The text with blanks for all that is wrong; lines keep their places."""
        parts = []
        position = 0
        for start, end in sorted(self.blanks):
            parts += [self.text[position:start], re.sub(r"[^\n]", " ", self.text[max(start, position) : end])]
            position = max(end, position)
        return "".join([*parts, self.text[position:]])

    def note(self, position: int, message: str) -> None:
        line = bisect_right(self.line_starts, position)
        column = position - self.line_starts[line - 1] + 1
        self.problems.messages.append(f"line {line} column {column}: {message}")

    def broken(self, position: int, message: str) -> NoReturn:
        self.note(position, message)
        raise _BrokenError

    @property
    def token(self) -> Token:
        return self.tokens[self.at]

    def take(self) -> Token:
        token = self.tokens[self.at]
        if token.kind != "end":
            self.at += 1
        return token

    def accept(self, *marks: str) -> str:
        """The next token's text if it is one of these marks, and on to the one behind it; else empty."""
        if self.token.kind == "mark" and self.token.text in marks:
            return self.take().text
        return ""

    def fields(self, descriptor: Descriptor, closer: str, path: Path) -> None:
        """All fields of one message, through its closing mark."""
        counts: dict[str, int] = {}
        oneofs: dict[str, str] = {}
        while True:
            if self.token.kind == "end" or (self.token.kind == "mark" and self.token.text in "}>]"):
                if self.token.text == closer or (self.token.kind == "end" and not closer):
                    self.take()
                    return
                opened = f"{closer!r} that closes {_label(path)}" if closer else "a field"
                self.broken(self.token.start, f"expected {opened}, found {self.token.text if self.token.kind == 'end' else repr(self.token.text)}")
            self.one_field(descriptor, path, counts, oneofs)
            self.accept(",", ";")

    def one_field(self, descriptor: Descriptor, path: Path, counts: dict[str, int], oneofs: dict[str, str]) -> None:
        name = self.take()
        if name.kind != "word":
            self.broken(name.start, f"expected a field of {_label(path)}, found {name.text!r}")
        known = descriptor.fields_by_name.get(name.text)
        if known is None:
            self.note(name.start, f"{_label(path)}: {unknown_name('field', name.text, descriptor.fields_by_name)}")
            self.skip_value()
            is_right = False
        else:
            is_right = self.is_first(known, name, counts, oneofs)
            is_right &= self.value(known, path, counts)
        if not is_right:
            self.blanks.append((name.start, self.tokens[self.at - 1].end))
            self.problems.damaged.add(path)

    def is_first(self, known: FieldDescriptor, name: Token, counts: dict[str, int], oneofs: dict[str, str]) -> bool:
        """Whether a field may be given here: not if it, or another of its oneof, has been."""
        oneof = known.containing_oneof
        if not _is_repeated(known) and known.name in counts:
            self.note(name.start, f"{known.name} is given twice")
            return False
        if oneof is not None and oneofs.setdefault(oneof.name, known.name) != known.name:
            self.note(name.start, f"{known.name} and {oneofs[oneof.name]} exclude each other")
            return False
        return True

    def value(self, known: FieldDescriptor, path: Path, counts: dict[str, int]) -> bool:
        """The value of a known field, one or a list of them; whether it is right, apart from what is wrong inside of a message."""
        colon = self.accept(":")
        if not colon and not _is_message(known):
            self.broken(self.token.start, f"expected ':' after {known.name}, found {self.token.text!r}")
        if not self.accept("["):
            return self.element(known, path, counts)
        is_right = _is_repeated(known)
        if not is_right:
            self.note(self.tokens[self.at - 1].start, f"{known.name} takes one value, not a list")
        if self.accept("]"):
            return is_right
        while True:
            is_right &= self.element(known, path, counts)
            if self.accept("]"):
                return is_right
            if not self.accept(","):
                self.broken(self.token.start, f"expected ',' or ']' in the list of {known.name}, found {self.token.text!r}")

    def element(self, known: FieldDescriptor, path: Path, counts: dict[str, int]) -> bool:
        place = counts.get(known.name, 0)
        counts[known.name] = place + 1
        if not _is_message(known):
            return self.scalar(known)
        opener = self.accept("{", "<")
        if len(path) > _MOST_LEVELS:
            self.broken(self.token.start, "messages lie too deep in each other")
        if not opener:
            self.broken(self.token.start, f"expected '{{' after {known.name}, found {self.token.text!r}")
        assert known.message_type is not None
        self.fields(known.message_type, _CLOSERS[opener], (*path, known.name, place))
        return True

    def scalar(self, known: FieldDescriptor) -> bool:
        """A number, word or text; several texts in a row are one."""
        start = self.token.start
        minus = self.accept("-")
        token = self.take()
        if token.kind in ("mark", "end"):
            self.broken(token.start, f"expected a value for {known.name}, found {token.text if token.kind == 'end' else repr(token.text)}")
        while token.kind == "string" and self.token.kind == "string":
            self.take()
        wanted = expected(known, minus, token)
        if wanted:
            self.note(start, f"{known.name} must be {wanted}, found {self.text[start : self.tokens[self.at - 1].end]}")
        return not wanted

    def skip_value(self) -> None:
        """Past the value of an unknown field, whatever it is."""
        self.accept(":")
        if self.token.kind == "mark" and self.token.text in _CLOSERS:
            self.skip_nested()
            return
        self.accept("-")
        token = self.take()
        if token.kind in ("mark", "end"):
            self.broken(token.start, f"expected a value, found {token.text if token.kind == 'end' else repr(token.text)}")
        while token.kind == "string" and self.token.kind == "string":
            self.take()

    def skip_nested(self) -> None:
        stack: list[str] = []
        while True:
            token = self.take()
            if token.kind == "end" or (token.kind == "mark" and token.text in "}>]" and (not stack or token.text != stack[-1])):
                self.broken(token.start, f"expected {stack[-1]!r}, found {token.text if token.kind == 'end' else repr(token.text)}")
            if token.kind == "mark" and token.text in _CLOSERS:
                stack.append(_CLOSERS[token.text])
            elif token.kind == "mark" and token.text == stack[-1]:
                stack.pop()
                if not stack:
                    return


def _is_message(known: FieldDescriptor) -> bool:
    return known.message_type is not None


def _is_repeated(known: FieldDescriptor) -> bool:
    return bool(known.is_repeated)


def _label(path: Path) -> str:
    return str(path[-2]) if path else "the config"
