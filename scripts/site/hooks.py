"""What mkdocs calls while it builds the site: pages made from the code, and links that lead out of `docs/`."""

from collections.abc import Iterator
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.nav import Navigation
from mkdocs.structure.pages import Page

from scripts.site import api_pages, command_pages, config_pages
from scripts.site.repository import (
    PROJECT_PAGES,
    ROOT,
    BrokenLinkError,
    as_page,
    is_image,
    map_links,
    page_of,
    reached,
    site_link,
    site_path,
    with_plain_bars,
)

_PAGE_OF: dict[str, str] = {}
"""Page of the site -> its path in the repository, for pages that were written by hand: their links are those of the repository."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Fill the parts of the navigation that follow from the code and the folders."""
    decisions = sorted(path.name for path in (ROOT / "docs" / "decisions").glob("*.md"))
    parts: dict[str, list[Any]] = {
        "Reference": [*command_pages.NAVIGATION, *config_pages.NAVIGATION, *api_pages.NAVIGATION],
        "Architecture": ["architecture.md", {"Decisions": ["decisions/index.md", *(f"decisions/{name}" for name in decisions)]}],
        "Project": [site_path(path) for path in PROJECT_PAGES],
    }
    assert config.nav is not None
    unnamed = sorted({path.name for path in (ROOT / "docs").glob("*.md")} - set(_named(config.nav)) - {"architecture.md"})
    parts["Guides"] = [*next(pages for part in config.nav for name, pages in part.items() if name == "Guides"), *unnamed]
    config.nav = [{name: parts.get(name, pages)} for part in config.nav for name, pages in part.items()]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made."""
    _PAGE_OF.clear()
    _PAGE_OF.update({file.src_uri: f"docs/{file.src_uri}" for file in files.documentation_pages()})
    try:
        linked = reached([*_PAGE_OF.values(), *PROJECT_PAGES])
    except BrokenLinkError as error:
        raise PluginError(str(error)) from None
    for path in linked:
        src_uri = site_path(path)
        if is_image(path):
            files.append(File.generated(config, src_uri, abs_src_path=str(ROOT / path)))
            continue
        _PAGE_OF[src_uri] = as_page(path)
        level = InclusionLevel.INCLUDED if path in PROJECT_PAGES or path.startswith("docs/") else InclusionLevel.NOT_IN_NAV
        files.append(File.generated(config, src_uri, content=page_of(path), inclusion=level))
    for src_uri, text in {**command_pages.pages(), **config_pages.pages(), **api_pages.pages()}.items():
        files.append(File.generated(config, src_uri, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links lead to pages of the site, and tables be read as a repository's pages are."""
    path = _PAGE_OF.get(page.file.src_uri)
    return with_plain_bars(markdown if path is None else map_links(markdown, lambda link: site_link(path, link)))


def on_nav(nav: Navigation, config: MkDocsConfig, files: Files) -> Navigation:
    """Say how many pages there are."""
    print(f"{len(list(files.documentation_pages()))} pages, {len(nav.pages)} of them in the navigation")
    return nav


def _named(nav: Any) -> Iterator[str]:
    """The pages that a part of the navigation names."""
    if isinstance(nav, str):
        yield nav
    else:
        for part in nav.values() if isinstance(nav, dict) else nav:
            yield from _named(part)
