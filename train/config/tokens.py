"""The tokens of protobuf text, and which of them a field can have as its value."""

import re
from dataclasses import dataclass

from google.protobuf.descriptor import FieldDescriptor

_TOKEN = re.compile(
    r"""
    (?P<blank>(?:\s|\#[^\n]*)+)
  | (?P<string>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')
  | (?P<number>0[xX][0-9a-fA-F]+|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fF]?(?![\w.]))
  | (?P<word>[A-Za-z_]\w*)
  | (?P<mark>[{}<>\[\]:;,-])
  """,
    re.VERBOSE,
)
_BOOLS = frozenset({"true", "false", "True", "False", "t", "f", "1", "0"})
_INT = re.compile(r"0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*")
_INT_RANGES = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}


@dataclass(frozen=True)
class Token:
    """A piece of text: `string`, `number`, `word`, `mark` (punctuation) or `end`; `start` and `end` are its place."""

    kind: str
    text: str
    start: int
    end: int


class UnknownTokenError(Exception):
    """The text at `position` is no token."""

    def __init__(self, position: int) -> None:
        super().__init__(position)
        self.position = position


def tokenize(text: str) -> list[Token]:
    """All tokens but blanks and comments, with one of kind `end` behind the last.

    Raises:
        UnknownTokenError: something is no token.
    """
    tokens = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise UnknownTokenError(position)
        if match.lastgroup != "blank":
            tokens.append(Token(match.lastgroup or "", match[0], position, match.end()))
        position = match.end()
    return [*tokens, Token("end", "the end of the text", len(text), len(text))]


def expected(known: FieldDescriptor, minus: str, token: Token) -> str:
    """What the value should have been, or empty where it is fine."""
    kind = known.cpp_type
    if kind == FieldDescriptor.CPPTYPE_STRING:
        return "" if token.kind == "string" and not minus else "a text in quotes"
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return "" if token.text in _BOOLS and not minus else "true or false"
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        assert known.enum_type is not None
        names = list(known.enum_type.values_by_name)
        return "" if token.text in names and not minus else f"one of {', '.join(names)}"
    if kind == FieldDescriptor.CPPTYPE_DOUBLE:
        is_number = token.kind == "number" or token.text.lower() in ("inf", "infinity", "nan")
        return "" if is_number else "a number"
    low, high = _INT_RANGES[kind]
    if token.kind == "number" and _INT.fullmatch(token.text):
        value = int(token.text, 16 if token.text[:2].lower() == "0x" else 8 if token.text[0] == "0" else 10)
        if low <= (-value if minus else value) <= high:
            return ""
    return f"a whole number from {low} to {high}"
