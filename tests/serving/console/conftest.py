"""A real browser, and pages in it that watch what they ask and say."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium. Of a module, not of the session: while playwright runs, no other test of the thread can have an event loop."""
    if not CHROMIUM.is_file():
        pytest.skip(f"no Chromium here: {CHROMIUM} is missing; `apt-get install chromium` brings it")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


@dataclass
class Watched:
    """A page with what it asked and said.

    Args:
        page: at the console.
        asked: its requests: method, URL and body.
        said: errors and warnings of its console, and exceptions.
        expected: parts of what it may say; anything else fails the test, and so does a request to another host.
    """

    page: Page
    asked: list[tuple[str, str, str | None]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)

    def fill(self, column: str, *values: str) -> None:
        """Type the values of a column, each added by Enter where there are several."""
        box = self.page.get_by_label(column, exact=True)
        for value in values[:-1]:
            box.fill(value)
            box.press("Enter")
        box.fill(values[-1])

    def wait(self, milliseconds: int) -> None:
        """Let the page's clock go on at once."""
        self.page.clock.fast_forward(milliseconds)

    def ask(self, button: str = "Predict") -> None:
        """Press a button of the form, and wait for the answer."""
        self.page.evaluate("document.getElementById('answer').replaceChildren()")
        self.page.get_by_role("button", name=button, exact=True).click()
        self.page.wait_for_selector("#answer:not([aria-busy]) > *")

    def answer(self) -> str:
        """All text of the answer."""
        return self.page.inner_text("#answer")

    def output(self, name: str) -> list[Any]:
        """The numbers of an output, row after row: a number, or a list of them."""
        found: list[Any] = self.page.evaluate(
            """(name) => [...document.querySelectorAll(`[data-output="${name}"] tr`)].map((row) => {
                const vector = row.querySelector(".numbers");
                return vector ? vector.textContent.split(", ").map(Number) : Number(row.querySelector(".number").textContent);
            })""",
            name,
        )
        return found

    def chips(self, feature: str, kind: str) -> list[str]:
        """Ids of a feature that the answer shows as `known` or `unknown`."""
        found: list[str] = self.page.evaluate(
            "(place) => [...document.querySelectorAll(place)].map((chip) => chip.firstChild.textContent)", f'[data-feature="{feature}"] .chip.{kind}'
        )
        return found


@contextmanager
def watched(browser: Browser, url: str) -> Iterator[Watched]:
    """The console in a tab of its own, once it shows a form."""
    context = browser.new_context()
    context.set_default_timeout(20_000)
    try:
        found = Watched(context.new_page())
        found.page.on("request", lambda request: found.asked.append((request.method, request.url, request.post_data)))
        found.page.on("console", lambda line: found.said.append(line.text) if line.type in ("error", "warning") else None)
        found.page.on("pageerror", lambda error: found.said.append(str(error)))
        found.page.clock.install()
        found.page.goto(url)
        found.page.wait_for_selector("#form .fields")
        yield found
        assert [line for line in found.said if not any(part in line for part in found.expected)] == []
        assert [asked for _, asked, _ in found.asked if not asked.startswith(url + "/")] == []
    finally:
        context.close()
