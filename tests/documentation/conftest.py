"""The documentation site, built once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from site_page import Page

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the site, built as ``make docs`` builds it, without a network."""
    folder = tmp_path_factory.mktemp("site")
    dead = "http://127.0.0.1:9"
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "http_proxy": dead, "https_proxy": dead, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


@pytest.fixture(scope="session")
def pages(site: Path) -> dict[str, Page]:
    """Every page by its path in the site."""
    return {
        str(file.relative_to(site)): Page(file.read_text("utf-8"))
        for file in sorted(site.rglob("*.html"))
    }
