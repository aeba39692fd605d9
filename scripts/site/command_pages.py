"""The reference of the commands, from the parsers that read their options."""

import argparse
import functools
from collections.abc import Iterator
from typing import Any

from emberline.cli import COMMANDS, Command
from scripts.site.docstrings import plain

NAVIGATION: list[Any] = [{"Commands": "reference/commands.md"}]

_WIDTH = 88
_USAGE = "usage: "
_HEAD = "| option | default | meaning |\n|---|---|---|\n"


def pages() -> dict[str, str]:
    """Path of the page -> its text."""
    rows = [f"| [`{command.name}`](#emberline-{command.name}) | {command.summary} |" for command in COMMANDS]
    head = (
        "# Commands\n\n"
        "Made from the parsers of the command line: `emberline COMMAND --help` says the same. Every command ends with status "
        "0 where it did what it should, 1 after an error, 2 where its options or a config are wrong, and 130 when it was "
        "interrupted; where one has other statuses it says so.\n\n| command | what it does |\n|---|---|\n"
    )
    return {"reference/commands.md": head + "\n".join(rows) + "\n\n" + "\n".join(_command(command) for command in COMMANDS)}


def parser_of(command: Command) -> argparse.ArgumentParser:
    """A command's parser with all of its options, whose texts have one width on every terminal."""
    parser = argparse.ArgumentParser(prog=f"emberline {command.name}", formatter_class=_formatter())
    configure, _ = command.load()
    configure(parser)
    return parser


def _formatter() -> Any:
    return functools.partial(argparse.RawDescriptionHelpFormatter, width=_WIDTH)


def _command(command: Command) -> str:
    example = f"```bash\n{command.example}\n```\n"
    return f"## emberline {command.name}\n\n{plain(command.summary)}\n\n{options_of(parser_of(command))}\n{example}"


def options_of(parser: argparse.ArgumentParser) -> str:
    """Usage and options of a parser, group by group; then those of the commands below it."""
    parser.formatter_class = _formatter()
    usage = parser.format_usage().rstrip("\n").replace("\n" + " " * len(_USAGE), "\n").removeprefix(_USAGE)
    plain_rows, groups = list[str](), list[str]()
    for group in parser._action_groups:
        rows = [_row(action) for action in group._group_actions if not isinstance(action, argparse._HelpAction)]
        if group in (parser._positionals, parser._optionals):
            plain_rows += rows
        else:
            groups.append(f"**{group.title}**: {plain(group.description or '')}\n\n{_HEAD}" + "\n".join(rows) + "\n")
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    children = [f"### {child.prog}\n\n{options_of(child)}" for action in below for child in action.choices.values()]
    return "\n".join([f"```text\n{usage}\n```\n", *([_HEAD + "\n".join(plain_rows) + "\n"] if plain_rows else []), *groups, *children])


def _row(action: argparse.Action) -> str:
    text = " ".join((action.help or "").split())
    text = text % {**vars(action), "prog": "emberline"} if "%" in text else text
    default = "required" if action.required and action.option_strings else "" if "default" in text else _default(action)
    cells = (f"`{', '.join(_spellings(action))}`", default, plain(text))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _spellings(action: argparse.Action) -> Iterator[str]:
    """Each way to write an option, with what it takes."""
    choices = "{" + ",".join(map(str, action.choices)) + "}" if action.choices is not None else ""
    value = action.metavar if isinstance(action.metavar, str) else choices or (action.dest.upper() if action.option_strings else action.dest)
    if not action.option_strings:
        yield value
    for spelling in action.option_strings:
        yield spelling if action.nargs == 0 else f"{spelling} {value}"


def _default(action: argparse.Action) -> str:
    value = action.default
    return "" if value in (None, False, argparse.SUPPRESS, (), []) else f"`{value}`"
