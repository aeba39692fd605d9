"""Links out of `docs/` lead to pages too: each file or folder of the repository that a page links to becomes a page of the site.

Paths here are relative to the repository's root, with slashes; those of the site are relative to `docs/`.
"""

import posixpath
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROJECT_PAGES = ("CONTRIBUTING.md", "CHANGELOG.md")
"""Pages of the repository's root that the navigation has, whether they are linked to or not."""
MADE = "docs/reference/"
"""What is made from the code when the site is built: in the repository there is no such folder."""

_PARTS = re.compile(r"^ *(?P<fence>`{3,})[^\n]*\n.*?^ *(?P=fence)[^\n]*$|(?P<ticks>`+)[^\n]*?(?P=ticks)|\]\((?P<link>[^)\s]+)\)", re.M | re.S)
_CODE = re.compile(r"`[^`]+`")
_LANGUAGES: Mapping[str, str] = {".py": "python", ".c": "c", ".sh": "bash", ".json": "json", ".toml": "toml", ".proto": "proto", ".pbtxt": "text"}
_IMAGES = (".png", ".svg", ".jpg")
_LISTED = (".md", ".pbtxt", ".proto", ".png")


class BrokenLinkError(Exception):
    """A page links to a file that is not there."""


@dataclass(frozen=True)
class Target:
    """What a link leads to: a path of the repository, and what comes behind it, such as `#anchor`."""

    path: str
    rest: str


def map_links(markdown: str, change: Callable[[str], str]) -> str:
    """The text with every inline link changed; code stays as it is."""
    return _PARTS.sub(lambda found: f"]({change(found['link'])})" if found["link"] else found[0], markdown)


def links_of(markdown: str) -> list[str]:
    """Every inline link outside of code, in order."""
    found: list[str] = []
    map_links(markdown, lambda link: found.append(link) or link)  # type: ignore[func-returns-value]
    return found


def with_plain_bars(markdown: str) -> str:
    """The text with bars of code in tables as they are: Python-Markdown shows a backslash before one, which GitHub wants there."""
    lines = (_CODE.sub(lambda found: found[0].replace("\\|", "|"), line) if line.startswith("|") else line for line in markdown.split("\n"))
    return "\n".join(lines)


def target_of(page: str, link: str) -> Target | None:
    """Where a link of a page leads; None where it stays on the page or leaves the repository."""
    if re.match(r"[a-z]+:|#", link):
        return None
    path, mark, rest = link.partition("#")
    return Target(posixpath.normpath(posixpath.join(posixpath.dirname(page), path)), mark + rest)


def site_path(path: str) -> str:
    """The page of a file or folder, relative to `docs/`."""
    is_folder = (ROOT / path).is_dir()
    if path.startswith("docs/"):
        return path.removeprefix("docs/") + ("/index.md" if is_folder else "")
    if is_folder:
        return f"repository/{path}/index.md"
    return f"repository/{path}" + ("" if path.endswith((".md", *_IMAGES)) else ".md")


def site_link(page: str, link: str) -> str:
    """A link as a page of the site has it.

    Args:
        page: the page's own path in the repository.
        link: as the page has it in the repository.
    """
    target = target_of(page, link)
    if target is None:
        return link
    return posixpath.relpath(site_path(target.path), posixpath.dirname(site_path(page)) or ".") + target.rest


def reached(pages: Iterable[str]) -> list[str]:
    """Files and folders of the repository that these pages link to, from page to page, without what is a page of `docs/` already.

    Raises:
        BrokenLinkError: one of them is not there.
    """
    seen, waiting, found = set(), list(pages), []
    while waiting:
        page = waiting.pop()
        if page in seen:
            continue
        seen.add(page)
        if not page.startswith("docs/") or (ROOT / page).is_dir():
            found.append(page)
        for link in links_of(_markdown_of(page)):
            target = target_of(as_page(page), link)
            if target is None or target.path.startswith(MADE):
                continue
            if not (ROOT / target.path).exists() or target.path.startswith(".."):
                raise BrokenLinkError(f"{page} links to {link}, which is not there")
            waiting.append(target.path)
    return sorted(found)


def page_of(path: str) -> str:
    """The text of the page of a file or folder."""
    place = ROOT / path
    if place.is_dir():
        return _markdown_of(path)
    if place.suffix == ".md":
        return place.read_text(encoding="utf-8")
    text = place.read_text(encoding="utf-8").rstrip("\n")
    return f"---\nsearch:\n  exclude: true\n---\n\n# {place.name}\n\n`{path}`\n\n````{_LANGUAGES.get(place.suffix, 'text')}\n{text}\n````\n"


def as_page(path: str) -> str:
    """What the links of a path's page are relative to: those of a folder's page are inside of it."""
    return f"{path}/index.md" if (ROOT / path).is_dir() else path


def is_image(path: str) -> bool:
    """Whether a path is shown as it is, and not as a page."""
    return path.endswith(_IMAGES)


def _markdown_of(path: str) -> str:
    """What a page of a path links with; a folder's is the list of what it holds."""
    place = ROOT / path
    if place.is_dir():
        names = sorted(entry.name for entry in place.iterdir() if entry.suffix in _LISTED and entry.name != "index.md")
        return f"# {path}/\n\n" + "\n".join(f"- [{_title(place / name)}]({name})" for name in names) + "\n"
    return place.read_text(encoding="utf-8") if place.suffix == ".md" and place.is_file() else ""


def _title(path: Path) -> str:
    """A page's first heading, or the file's name."""
    first = path.read_text(encoding="utf-8").partition("\n")[0] if path.suffix == ".md" else ""
    return first.removeprefix("# ").replace("[", "").replace("]", "") if first.startswith("# ") else path.name
