"""A browser for the tests of pages; where there is none they are skipped, but not in our CI."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

# As root the browser has no sandbox of its own; none of the rest may ask the network for anything.
_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A headless Chromium."""
    from find_browser import find_browser
    from playwright.sync_api import expect, sync_playwright

    found = find_browser()
    if found is None:
        missing = "no browser for the tests of pages: playwright install chromium"
        if os.environ.get("EVALGUARD_REQUIRE_BROWSER"):
            pytest.fail(missing)
        pytest.skip(missing)
    expect.set_options(timeout=60_000)  # how long a page takes says something about the machine
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=found, args=list(_FLAGS))
        yield started
        started.close()


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Opens a page from its text; in the end it must have said nothing and asked for nothing."""
    contexts: list[Any] = []
    said: list[str] = []
    asked: list[str] = []

    def open_page(text: str, *, allowed: tuple[str, ...] = (), **options: Any) -> Any:
        file = tmp_path / f"page-{len(contexts)}.html"
        file.write_text(text, encoding="utf-8")
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        context.set_default_timeout(120_000)
        contexts.append(context)
        page = context.new_page()

        def hear(message: str) -> None:
            if not any(part in message for part in allowed):
                said.append(message)

        page.on("console", lambda message: hear(message.text))
        page.on("pageerror", lambda error: hear(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.on("requestfailed", lambda request: asked.remove(request.url))  # by the policy
        page.goto(file.as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert said == []
    assert len(asked) == len(contexts), asked
