"""House docstrings as Markdown: what stands below `Args:`, `Returns:` or `Raises:` becomes a list."""

import inspect
import re
from collections.abc import Iterator

_SECTION = re.compile(r"^(Args|Attributes|Returns|Yields|Raises):$")
_ENTRY = re.compile(r"^    ([*\w.,` ]+): (.*)$")
_BRACKET = re.compile(r"<(?=[a-z/])")


def as_markdown(docstring: str | None) -> str:
    """The text with its sections as lists; blocks that are indented stay code."""
    parts = []
    for name, lines in _sections(inspect.cleandoc(docstring or "")):
        text = "\n".join(lines).strip("\n")
        parts.append(f"**{name}**\n\n{_listed(lines)}" if name else plain(text))
    return "\n\n".join(part for part in parts if part) + "\n"


def entries(docstring: str | None) -> dict[str, str]:
    """Each argument's name and what is said of it."""
    found: dict[str, str] = {}
    for section, lines in _sections(inspect.cleandoc(docstring or "")):
        if section in ("Args", "Attributes"):
            found.update(_entries(lines))
    return found


def plain(text: str) -> str:
    """Text whose angle brackets are no tags, outside of code."""
    lines, is_drawing = [], False
    for line in text.split("\n"):
        is_drawing = bool(re.search("[│├└─►▼▲]", line))
        if line.startswith("    ") or is_drawing:
            lines.append(line if line.startswith("    ") else f"    {line}")
        else:
            lines.append("`".join(_BRACKET.sub("&lt;", part) if place % 2 == 0 else part for place, part in enumerate(line.split("`"))))
    return re.sub(r"(?m)^(?!    )(.*\S.*)\n(    \S)", r"\1\n\n\2", "\n".join(lines))


def _sections(text: str) -> Iterator[tuple[str, list[str]]]:
    """Name and lines of each part; what comes before the first has no name."""
    name, lines = "", list[str]()
    for line in text.split("\n"):
        found = _SECTION.match(line)
        if found or (name and line and not line.startswith(" ")):
            yield name, lines
            name, lines = (found[1], []) if found else ("", [line])
        else:
            lines.append(line)
    yield name, lines


def _entries(lines: list[str]) -> Iterator[tuple[str, str]]:
    """Name and text of each entry, its lines joined; an entry without a name has an empty one."""
    name, words = "", list[str]()
    for line in lines:
        found = _ENTRY.match(line)
        if found:
            if words:
                yield name, " ".join(words)
            name, words = found[1].strip("`"), [found[2]]
        elif line.strip():
            words.append(line.strip())
    if words:
        yield name, " ".join(words)


def _listed(lines: list[str]) -> str:
    return "\n".join(f"- `{name}`: {plain(text)}" if name else f"- {plain(text)}" for name, text in _entries(lines))
