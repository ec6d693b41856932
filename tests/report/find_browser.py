"""Which browser the tests of pages drive; as a program it prints that, or fails."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_browser() -> str | None:
    """The one that EVALGUARD_BROWSER names, else the system's, else the one playwright brought."""
    given = os.environ.get("EVALGUARD_BROWSER")
    if given:
        return given
    for name in NAMES:
        found = shutil.which(name)
        if found:
            return found
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        own = playwright.chromium.executable_path
    return own if Path(own).exists() else None


if __name__ == "__main__":
    browser = find_browser()
    sys.exit(print(browser) if browser else "no browser: playwright install chromium")
