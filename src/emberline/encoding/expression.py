"""Arithmetic expressions: text -> a program of plain data. Nothing of the text is ever run as code.

From the loosest binding to the tightest; `name(a, b)` calls a function of `FUNCTIONS`, parentheses group:

    a ? b : c                   b where a is not 0, else c; the same as if(a, b, c)
    ||     &&                   logic: 1 or 0
    == != < <= > >=             1 or 0; they do not chain
    + -    * / %                % has the sign of its left side
    - + !                       before a value
    ** ^                        power, from the right: -2 ** 2 is -4
    1.5e3  name  _pi  _e        a number, a variable, a constant
"""

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import lru_cache
from math import e, inf, isfinite, pi

from emberline.encoding.columns import show

MOST_CHARACTERS, MOST_PARTS, MOST_DEPTH = 4096, 1000, 32
FUNCTIONS: dict[str, tuple[int, float]] = {
    **dict.fromkeys(("abs", "sign", "sqrt", "exp", "expm1", "log", "ln", "log1p", "log2", "log10", "sigmoid"), (1, 1)),
    **dict.fromkeys(("floor", "ceil", "trunc", "rint", "round"), (1, 1)),
    **dict.fromkeys(("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh"), (1, 1)),
    **dict.fromkeys(("min", "max", "sum", "avg"), (1, inf)),
    "pow": (2, 2),
    "clip": (3, 3),
    "if": (3, 3),
}
"""How many arguments each function takes, at least and at most."""
_CONSTANTS = {"_pi": pi, "_e": e}
_LEVELS: tuple[tuple[str, ...], ...] = (("||",), ("&&",), ("==", "!=", "<=", ">=", "<", ">"), ("+", "-"), ("*", "/", "%"))
_COMPARISONS = 2
_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)"
    r"|(?P<name>[^\W\d]\w*)"
    r"|(?P<mark>\*\*|&&|\|\||[=!<>]=|[-+*/%^!<>?:(),]))"
)
_HINTS = {"&": "use && for logic", "|": "use || for logic", "=": "use == to compare", "'": "there are only numbers", '"': "there are only numbers"}


@dataclass(frozen=True)
class Number:
    """A finite number."""

    value: float


@dataclass(frozen=True)
class Variable:
    """A column's value, under the name that the expression gives it."""

    name: str


@dataclass(frozen=True)
class Call:
    """A function or operator of the last `count` results, in their order. Operators go by their mark; `-` before a value by `negative`,
    `^` and `pow` by `**`, `?:` by `if`, `ln` by `log`.
    """

    function: str
    count: int


Program = tuple[Number | Variable | Call, ...]
"""An expression in the order of its evaluation: every operator follows what it works on, so that no tree has to be climbed."""


@lru_cache(maxsize=1024)
def parse_expression(text: str, variables: tuple[str, ...]) -> Program:
    """The program of an expression.

    Args:
        text: at most 4,096 characters, 1,000 parts and 32 levels of nesting.
        variables: the names that it may use, all of which it must use.

    Raises:
        ValueError: it is none, with the place of what is wrong, from 1, and what could stand there.
    """
    if len(text) > MOST_CHARACTERS:
        raise ValueError(f"expression has {len(text)} characters, more than {MOST_CHARACTERS}")
    parser = _Parser(text, variables, _tokens(text))
    parser.choice(0)
    parser.expect_end()
    unused = [name for name in variables if name not in parser.used]
    if unused:
        raise ValueError(f"expression {show(text)} does not use {', '.join(map(repr, unused))}")
    if not parser.used:
        raise ValueError(f"expression {show(text)} uses no variable")
    return tuple(parser.program)


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    at: int


def _tokens(text: str) -> list[_Token]:
    tokens, at = [], 0
    end = len(text.rstrip())
    while at < end:
        found = _TOKEN.match(text, at, end)
        if found is None:
            at += len(text[at:]) - len(text[at:].lstrip())
            hint = _HINTS.get(text[at])
            raise ValueError(f"expression {show(text)}, character {at + 1}: {text[at]!r} has no meaning" + (f"; {hint}" if hint else ""))
        assert found.lastgroup is not None
        tokens.append(_Token(found.lastgroup, found[found.lastgroup], found.start(found.lastgroup)))
        at = found.end()
        if len(tokens) > MOST_PARTS:
            raise ValueError(f"expression has more than {MOST_PARTS} parts")
    return tokens


@dataclass
class _Parser:
    """Recursive descent; `depth` counts how deep the text nests, so that none can exhaust the stack."""

    text: str
    variables: Collection[str]
    tokens: list[_Token]
    at: int = 0
    program: list[Number | Variable | Call] = field(default_factory=list)
    used: set[str] = field(default_factory=set)

    def error(self, problem: str, token: _Token | None = None) -> ValueError:
        token = token or (self.tokens[self.at] if self.at < len(self.tokens) else None)
        place = "at its end" if token is None else f"character {token.at + 1}"
        return ValueError(f"expression {show(self.text)}, {place}: {problem}")

    def peek(self) -> str:
        """The operator or parenthesis that comes next, or empty."""
        return self.tokens[self.at].text if self.at < len(self.tokens) and self.tokens[self.at].kind == "mark" else ""

    def accept(self, *marks: str) -> _Token | None:
        if not self.peek() or self.peek() not in marks:
            return None
        self.at += 1
        return self.tokens[self.at - 1]

    def expect(self, mark: str, after: str) -> None:
        if self.accept(mark) is None:
            found = show(self.tokens[self.at].text) if self.at < len(self.tokens) else "nothing"
            raise self.error(f"{mark!r} is missing after {after}, found {found}")

    def expect_end(self) -> None:
        if self.at < len(self.tokens):
            raise self.error(f"{show(self.tokens[self.at].text)} is not expected here; an operator is missing, or a parenthesis is one too many")

    def deeper(self, depth: int) -> int:
        if depth >= MOST_DEPTH:
            raise self.error(f"nests more than {MOST_DEPTH} levels deep")
        return depth + 1

    def choice(self, depth: int) -> None:
        depth = self.deeper(depth)
        self.binary(0, depth)
        if self.accept("?") is not None:
            self.choice(depth)
            self.expect(":", "the first choice of '?'")
            self.choice(depth)
            self.program.append(Call("if", 3))

    def binary(self, level: int, depth: int) -> None:
        if level == len(_LEVELS):
            self.signed(depth)
            return
        self.binary(level + 1, depth)
        compared = False
        while (mark := self.accept(*_LEVELS[level])) is not None:
            if level == _COMPARISONS and compared:
                raise self.error(f"comparisons do not chain; write a < b && b < c instead of a second {mark.text!r}", mark)
            compared = True
            self.binary(level + 1, depth)
            self.program.append(Call(mark.text, 2))

    def signed(self, depth: int) -> None:
        mark = self.accept("-", "+", "!")
        if mark is None:
            self.power(depth)
            return
        self.signed(self.deeper(depth))
        if mark.text != "+":
            self.program.append(Call("negative" if mark.text == "-" else "!", 1))

    def power(self, depth: int) -> None:
        self.value(depth)
        if self.accept("**", "^") is not None:
            self.signed(self.deeper(depth))
            self.program.append(Call("**", 2))

    def value(self, depth: int) -> None:
        if self.accept("(") is not None:
            self.choice(depth)
            self.expect(")", "what '(' opened")
            return
        if self.at == len(self.tokens) or self.tokens[self.at].kind == "mark":
            found = f", found {self.peek()!r}" if self.peek() else ""
            raise self.error("a number, a variable or '(' is missing" + found)
        token = self.tokens[self.at]
        self.at += 1
        if token.kind == "number":
            if not isfinite(float(token.text)):
                raise self.error(f"{show(token.text)} is too large", token)
            self.program.append(Number(float(token.text)))
        elif self.accept("(") is not None:
            self.call(token, depth)
        else:
            self.named(token)

    def named(self, token: _Token) -> None:
        if token.text in self.variables:
            self.used.add(token.text)
            self.program.append(Variable(token.text))
        elif token.text in _CONSTANTS:
            self.program.append(Number(_CONSTANTS[token.text]))
        elif token.text in FUNCTIONS:
            raise self.error(f"{token.text!r} is a function; write {token.text}(...)", token)
        else:
            there = ", ".join(sorted(self.variables)) or "none"
            raise self.error(f"there is no variable {show(token.text)}; there are: {there}; constants: {', '.join(_CONSTANTS)}", token)

    def call(self, token: _Token, depth: int) -> None:
        if token.text not in FUNCTIONS:
            raise self.error(f"there is no function {show(token.text)}; there are: {', '.join(sorted(FUNCTIONS))}", token)
        count = 0
        while self.peek() != ")" if count == 0 else self.accept(",") is not None:
            self.choice(depth)
            count += 1
        self.expect(")", f"the arguments of {token.text}")
        least, most = FUNCTIONS[token.text]
        if not least <= count <= most:
            takes = f"{least}" if least == most else f"{least} or more"
            raise self.error(f"{token.text} takes {takes} argument{'s' if takes != '1' else ''}, found {count}", token)
        self.program.append(Call({"pow": "**", "ln": "log"}.get(token.text, token.text), count))
