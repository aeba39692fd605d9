"""The documentation site is built as `make docs` does: nothing on it comes from outside, and every link of it leads to a place that is there."""

import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from posixpath import dirname, normpath
from urllib.parse import unquote

import pytest

from scripts.site.repository import MADE, links_of, target_of

LOADED = {
    ("script", "src"),
    ("img", "src"),
    ("link", "href"),
    ("iframe", "src"),
    ("source", "src"),
    ("video", "src"),
    ("object", "data"),
    ("use", "href"),
}
KNOWN = re.compile(r"[a-z]+:|//|#")
HTML_TAG = re.compile(
    r"a|article|aside|body|br|button|circle|code|defs|del|details|div|em|footer|form|g|h[1-6]|head|header|hr|html|img|input|label|li|line|link|main|marker|"
    r"meta|nav|ol|p|path|polygon|pre|rect|script|section|span|strong|style|sup|sub|summary|svg|table|tbody|td|text|th|thead|title|tr|tspan|ul"
)


@dataclass
class Page(HTMLParser):
    """What a page loads, links to, and has names for."""

    loads: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    names: Counter[str] = field(default_factory=Counter)
    tags: set[str] = field(default_factory=set)
    paragraphs: list[str] = field(default_factory=list)
    cells: list[str] = field(default_factory=list)
    is_paragraph: bool = False
    is_cell: bool = False

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            if (tag, name) in LOADED:
                self.loads.append(value or "")
            elif name == "href":
                self.links.append(value or "")
            elif name in ("id", "name") and tag != "meta":
                self.names[value or ""] += 1
        if tag == "td":
            self.is_cell = True
            self.cells.append("")
        if tag in ("p", "li"):
            self.is_paragraph = True
            self.paragraphs.append("")
        elif tag in ("code", "pre"):
            self.is_paragraph = False

    def handle_endtag(self, tag: str) -> None:
        self.is_paragraph = tag == "code"
        self.is_cell = self.is_cell and tag != "td"

    def handle_data(self, data: str) -> None:
        if self.cells and self.is_cell:
            self.cells[-1] += data
        if self.is_paragraph:
            self.paragraphs[-1] += data


@pytest.fixture(scope="module")
def site(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=repository, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[str, Page]:
    found = {}
    for path in sorted(site.rglob("*.html")):
        page = found[path.relative_to(site).as_posix()] = Page()
        page.feed(path.read_text(encoding="utf-8"))
    return found


def test_nothing_comes_from_outside(site: Path, pages: dict[str, Page], said: list[str]) -> None:
    loads = [(name, url) for name, page in pages.items() for url in page.loads]
    assert [(name, url) for name, url in loads if KNOWN.match(url) and not url.startswith("data:")] == []
    missing = [(name, url) for name, url in loads if not url.startswith("data:") and not (site / dirname(name) / url.partition("?")[0]).is_file()]
    assert [(name, url) for name, url in missing if name != "404.html"] == []
    styles = sorted(site.rglob("*.css"))
    urls = [(path.name, url) for path in styles for url in re.findall(r"url\(([^)]*)\)|@import[^;]*", path.read_text(encoding="utf-8"))]
    assert [(name, url) for name, url in urls if KNOWN.match(url.strip("\"'")) and not url.strip("\"'").startswith(("data:", "#"))] == []
    # The theme's script fetches these where a page asks for them, and nothing else: drawings in mermaid's language, and the numbers of a repository.
    texts = [path.read_text(encoding="utf-8") for path in site.rglob("*.html")]
    assert [text for text in texts if 'class="mermaid"' in text or "data-md-component=source" in text] == []
    said.append(f"documentation: {len(pages)} pages and {len(styles)} style sheets, {len(loads)} files that they load, none from outside")
    assert len(pages) > 50
    assert len(loads) > 100


def test_every_link_leads_somewhere(pages: dict[str, Page], site: Path, said: list[str]) -> None:
    wrong, seen = [], 0
    for name, page in pages.items():
        for link in page.links:
            if re.match(r"[a-z]+:", link) or name == "404.html":
                continue
            path, _, anchor = link.partition("#")
            target = normpath(f"{dirname(name)}/{unquote(path)}".lstrip("/")) if path else name
            target = f"{target}/index.html" if (site / target).is_dir() else target
            seen += 1
            is_there = target in pages or (site / target).is_file()
            if not is_there or (anchor and target in pages and not pages[target].names[unquote(anchor)] and not anchor.startswith("__")):
                wrong.append(f"{name}: {link}")
    assert wrong == []
    said.append(f"documentation: {seen} links inside of the site")
    assert seen > 1000


def test_no_markup_is_left_over(pages: dict[str, Page]) -> None:
    assert {tag: name for name, page in pages.items() for tag in page.tags if not HTML_TAG.fullmatch(tag)} == {}
    left = [(name, text) for name, page in pages.items() for text in page.paragraphs if re.search(r"\n\s*(?:[-*] |\|)|\]\(|```", text)]
    assert left == []
    cells = [(name, cell) for name, page in pages.items() if not name.startswith("repository/") for cell in page.cells if "\\|" in cell]
    assert cells == []
    twice = {name: [each for each, count in page.names.items() if count > 1 and not each.startswith("_")] for name, page in pages.items()}
    assert {name: names for name, names in twice.items() if names} == {}


def slugs(markdown: str) -> set[str]:
    """The anchors that a page has where a repository is read in a browser."""
    text = re.sub(r"^```.*?^```", "", markdown, flags=re.M | re.S)
    found: Counter[str] = Counter()
    names = set()
    for heading in re.findall(r"^#+ (.*)$", text, flags=re.M):
        slug = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        names.add(f"{slug}-{found[slug]}" if found[slug] else slug)
        found[slug] += 1
    return names


def test_links_of_the_repository_lead_somewhere(repository: Path, said: list[str]) -> None:
    sources = [*repository.glob("*.md"), *sorted((repository / "docs").rglob("*.md")), repository / "model_repository" / "README.md"]
    wrong, seen = [], 0
    for source in sources:
        page = source.relative_to(repository).as_posix()
        for link in links_of(source.read_text(encoding="utf-8")):
            target = target_of(page, link)
            path = repository / (target.path if target else page)
            anchor = target.rest.removeprefix("#") if target else link.removeprefix("#") if link.startswith("#") else ""
            if page.startswith("docs/") and target and target.path.startswith(MADE):
                continue  # made when the site is built, which looks at these links
            seen += 1
            if not path.exists() or (anchor and path.suffix == ".md" and anchor not in slugs(path.read_text(encoding="utf-8"))):
                wrong.append(f"{page}: {link}")
    assert wrong == []
    said.append(f"documentation: {seen} links in {len(sources)} files of the repository")
    assert len(sources) > 20
