"""The pages that are made from the code have every field and option, and tell no default but the one that counts."""

import argparse
import dataclasses
import re

import pytest

from emberline.cli import COMMANDS
from scripts.site import api_pages, command_pages, config_pages
from scripts.site.config_pages import split_default
from scripts.site.docstrings import as_markdown, entries, plain
from scripts.site.repository import links_of, map_links, site_link, with_plain_bars


def test_every_field_has_a_line(said: list[str]) -> None:
    pages, seen = config_pages.pages(), 0
    for message in config_pages.messages():
        text = pages[f"reference/config/{message.file.name.rpartition('/')[2].removesuffix('.proto')}.md"]
        section = text.partition(f"## {message.name}\n")[2].partition("\n## ")[0]
        assert re.findall(r"^\| `(\w+)` \|", section, flags=re.M) == [field.name for field in message.fields], message.name
        seen += len(message.fields)
    said.append(f"reference: {seen} fields of the config")
    assert seen > 500


def test_comments_and_dataclasses_agree(said: list[str]) -> None:
    wrong, seen = [], 0
    for name in config_pages.FILES:
        told = config_pages.comments(config_pages.PROTOS / f"{name}.proto")
        for message in config_pages.messages():
            for field in message.fields:
                value = split_default(told.get(f"{message.name}.{field.name}", "")).value
                default = config_pages.default_of(message, field)
                if not re.fullmatch(r"-?[\d.]+(e-?\d+)?|true|false", value) or default in (None, dataclasses.MISSING):
                    continue
                seen += 1
                same = value == str(default).lower() if isinstance(default, bool) else isinstance(default, int | float) and float(value) == default
                if not same:
                    wrong.append(f"{message.name}.{field.name}: the comment says {value}, the dataclass {default}")
    assert wrong == []
    said.append(f"reference: {seen} defaults in comments of the config, each the one that counts")
    assert seen > 40


@pytest.mark.parametrize(
    ("comment", "meaning", "default"),
    [
        ("Default: 65536.", "", "`65536`"),
        ("Steps: 2000.", "Steps.", "`2000`"),
        ("Share: 0.15.", "Share.", "`0.15`"),
        ("Required: norm, value or none.", "Norm, value or none.", "required"),
        ("Required.", "", "required"),
        ("Newest checkpoints kept: 0, all.", "Newest checkpoints kept: 0, all.", ""),
        ("The table's name. Default: <feature_name>_emb.", "The table's name.", "&lt;feature_name>_emb"),
        ("Default: 2.0; may be inf.", "Default: 2.0; may be inf.", ""),
        ("", "", ""),
    ],
)
def test_a_comment_is_split_into_meaning_and_default(comment: str, meaning: str, default: str) -> None:
    told = split_default(comment)
    assert (told.meaning, told.default) == (meaning, default)


def test_every_option_of_every_command_has_a_line(said: list[str]) -> None:
    text, seen = command_pages.pages()["reference/commands.md"], 0
    for command in COMMANDS:
        section = text.partition(f"## emberline {command.name}\n")[2].partition("\n## ")[0]
        assert command.summary in section.replace("&lt;", "<")
        assert command.example in section
        for option in re.findall(r"(?<![\w-])--[a-z][\w-]*", command_pages.parser_of(command).format_usage()):
            assert re.search(rf"^\| `[^`]*{option}[ ,`]", section, flags=re.M), (command.name, option)
            seen += 1
    said.append(f"reference: {seen} options of {len(COMMANDS)} commands")
    assert seen > 100


def test_commands_below_a_command_have_their_options() -> None:
    parser = argparse.ArgumentParser(prog="emberline try")
    children = parser.add_subparsers(dest="what", required=True)
    children.add_parser("begin").add_argument("--share", type=float, default=0.1, help="of 100 %% of them")
    children.add_parser("end").add_argument("name", metavar="NAME", help="which <one>")
    text = command_pages.options_of(parser)
    assert "| `{begin,end}` |  |  |" in text
    assert "### emberline try begin\n" in text
    assert "| `--share SHARE` | `0.1` | of 100 % of them |" in text
    assert "| `NAME` |  | which &lt;one> |" in text


def test_what_is_stable_is_described() -> None:
    text = api_pages.pages()["reference/python.md"]
    for module, names in api_pages.STABLE.values():
        assert all(f"### {name}\n\nIn `{module}`.\n" in text for name in names)
    assert "#### Engine.predict()\n" in text
    assert "└── ServingError" in text
    assert " at 0x" not in text


def test_docstrings_become_lists() -> None:
    text = """Says <what> it `is <name>`.

        a.b(1)

    Args:
        one: the first,
            with more.
        two: the second.

    Raises:
        ValueError: it is wrong.
    """
    wanted = [
        "Says &lt;what> it `is <name>`.\n\n    a.b(1)",
        "**Args**\n\n- `one`: the first, with more.\n- `two`: the second.",
        "**Raises**\n\n- `ValueError`: it is wrong.\n",
    ]
    assert as_markdown(text) == "\n\n".join(wanted)
    assert entries(text) == {"one": "the first, with more.", "two": "the second."}
    assert plain("at `<a>` and <b>") == "at `<a>` and &lt;b>"


def test_links_in_code_stay() -> None:
    text = "[a](b.md) `[c](d.md)` [`e`](f.md#g)\n```\n[h](i.md)\n```\n[j](k.md)"
    assert links_of(text) == ["b.md", "f.md#g", "k.md"]
    assert map_links(text, lambda link: "x") == "[a](x) `[c](d.md)` [`e`](x)\n```\n[h](i.md)\n```\n[j](x)"


def test_bars_of_code_in_tables_are_plain() -> None:
    assert with_plain_bars("| `a\\|b` | c\\|d |\n`e\\|f`") == "| `a|b` | c\\|d |\n`e\\|f`"


@pytest.mark.parametrize(
    ("page", "link", "wanted"),
    [
        ("docs/training.md", "../examples/dssm.pbtxt", "repository/examples/dssm.pbtxt.md"),
        ("docs/training.md", "../examples/", "repository/examples/index.md"),
        ("docs/training.md", "zch.md#unknown-ids", "zch.md#unknown-ids"),
        ("docs/decisions/0009-deltas.md", "../serving.md", "../serving.md"),
        ("CHANGELOG.md", "docs/export.md#deltas", "../export.md#deltas"),
        ("docs/how-to/zch.md", "../../README.md", "../repository/README.md"),
        ("docs/export.md", "#deltas", "#deltas"),
        ("docs/export.md", "https://example.org/a", "https://example.org/a"),
    ],
)
def test_links_of_the_repository_become_those_of_the_site(page: str, link: str, wanted: str) -> None:
    assert site_link(page, link) == wanted
