"""The language of expressions: what it reads, in which order it works, and what it refuses."""

import re

import pytest

from emberline.encoding.expression import FUNCTIONS, Call, Number, Variable, parse_expression

NAMES = ("a", "b", "c")


def spelled(text: str, names: tuple[str, ...] = NAMES) -> str:
    """The program with parentheses around everything."""
    stack: list[str] = []
    used = tuple(name for name in names if re.search(rf"\b{name}\b", text))
    for part in parse_expression(text, used):
        if isinstance(part, Number):
            stack.append(f"{part.value:g}")
        elif isinstance(part, Variable):
            stack.append(part.name)
        else:
            assert isinstance(part, Call)
            arguments, stack = stack[-part.count :], stack[: -part.count]
            stack.append(f"({part.function} {' '.join(arguments)})")
    assert len(stack) == 1
    return stack[0]


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("a", "a"),
        (" ( ( a ) ) ", "a"),
        ("a + b * c", "(+ a (* b c))"),
        ("a - b - c", "(- (- a b) c)"),
        ("a / b % c", "(% (/ a b) c)"),
        ("-a ** b", "(negative (** a b))"),
        ("a ** -b ** c", "(** a (negative (** b c)))"),
        ("a ^ b ^ c", "(** a (** b c))"),
        ("!a == b", "(== (! a) b)"),
        ("a < b && b < c || !c", "(|| (&& (< a b) (< b c)) (! c))"),
        ("a + 1 >= b", "(>= (+ a 1) b)"),
        ("a ? b : c ? 1 : 2", "(if a b (if c 1 2))"),
        ("a ? b ? 1 : 2 : c", "(if a (if b 1 2) c)"),
        ("a == b ? 1 : 0", "(if (== a b) 1 0)"),
        ("if(a > 1, b, -c)", "(if (> a 1) b (negative c))"),
        ("pow(a, ln(b))", "(** a (log b))"),
        ("max(a, b, c, 1)", "(max a b c 1)"),
        ("a * 1.5e3 + .5 - 2.", "(- (+ (* a 1500) 0.5) 2)"),
        ("a * _pi", "(* a 3.14159)"),
        ("a - -+-b", "(- a (negative (negative b)))"),
        ("(a < b) < c", "(< (< a b) c)"),
    ],
)
def test_order(text: str, want: str) -> None:
    assert spelled(text) == want


def test_names_of_any_script_and_names_of_functions() -> None:
    assert parse_expression("价格 * log(log)", ("价格", "log")) == (Variable("价格"), Variable("log"), Call("log", 1), Call("*", 2))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "at its end: a number, a variable or '(' is missing"),
        ("a +", "at its end: a number"),
        ("a b", "character 3: 'b' is not expected here"),
        ("a)", "character 2: ')' is not expected here"),
        ("(a", "at its end: ')' is missing after what '(' opened, found nothing"),
        ("a * * b", "character 5: a number, a variable or '(' is missing, found '*'"),
        ("a < b < 1", "character 7: comparisons do not chain"),
        ("a ? b", "at its end: ':' is missing"),
        ("a = b", "character 3: '=' has no meaning; use == to compare"),
        ("a & b", "character 3: '&' has no meaning; use && for logic"),
        ("a | b", "character 3: '|' has no meaning; use ||"),
        ("a == 'x'", 'character 6: "\'" has no meaning; there are only numbers'),
        ("a.b", "character 2: '.' has no meaning"),
        ("a[0]", "character 2: '[' has no meaning"),
        ("a + d", "character 5: there is no variable 'd'; there are: a; constants: _pi, _e"),
        ("abs + a", "character 1: 'abs' is a function; write abs(...)"),
        ("rnd() + a", "character 1: there is no function 'rnd'; there are: abs, acos"),
        ("__import__(a)", "character 1: there is no function '__import__'"),
        ("pow(a)", "character 1: pow takes 2 arguments, found 1"),
        ("abs(a, a)", "character 1: abs takes 1 argument, found 2"),
        ("max() + a", "character 1: max takes 1 or more arguments, found 0"),
        ("max(a,)", "character 7: a number, a variable or '(' is missing, found ')'"),
        ("if(a, 1)", "character 1: if takes 3 arguments, found 2"),
        ("a + 1e999", "character 5: '1e999' is too large"),
        ("1 + 2", "uses no variable"),
        ("b + 1", "does not use 'a'"),
    ],
)
def test_refused(text: str, problem: str) -> None:
    names = ("a", "b") if "b" in text.replace("abs", "") else ("a",) if text != "1 + 2" else ()
    with pytest.raises(ValueError, match=re.escape(problem)):
        parse_expression(text, names)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("(" * 2000 + "a" + ")" * 2000, "characters, more than 4096|more than 1000 parts|levels deep"),
        ("(" * 40 + "a" + ")" * 40, "nests more than 32 levels deep"),
        ("-" * 900 + "a", "nests more than 32 levels deep"),
        ("a" + "**a" * 400, "nests more than 32 levels deep"),
        ("a" + "?a:a" * 200, "nests more than 32 levels deep"),
        ("abs(" * 100 + "a" + ")" * 100, "nests more than 32 levels deep"),
        ("a" + "+a" * 600, "more than 1000 parts"),
        ("a" + " " * 5000 + "+ a", "5004 characters, more than 4096"),
        ("9" * 4000 + "+a", "is too large"),
    ],
    ids=range(9),
)
def test_hostile(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem) as caught:
        parse_expression(text, ("a",))
    assert len(str(caught.value)) < 300


def test_as_long_and_as_deep_as_it_may_be() -> None:
    long = parse_expression("a" + "+a" * 499, ("a",))
    assert len(long) == 999
    assert spelled("-(" * 15 + "a" + ")" * 15).count("negative") == 15


def test_every_function_is_run() -> None:
    from emberline.encoding.evaluate import _FUNCTIONS

    operators = {"||", "&&", "!", "negative", "+", "-", "*", "/", "%", "**", "==", "!=", "<", "<=", ">", ">="}
    assert set(_FUNCTIONS) == operators | set(FUNCTIONS) - {"pow", "ln"}
