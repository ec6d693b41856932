"""The documentation site: it builds strictly, its links hold, nothing comes from elsewhere."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from urllib.parse import unquote

import pytest
from site_page import Page

pytestmark = pytest.mark.slow
Pages = dict[str, Page]


def test_every_internal_link_ends_at_a_page_and_a_heading_that_exist(
    site: Path, pages: Pages
) -> None:
    for name, page in pages.items():
        if name == "404.html":
            continue
        for link in page.links:
            path, _, anchor = unquote(link).partition("#")
            if re.match(r"[a-z]+:", path):
                assert path.startswith("https://"), f"{name}: {link}"
                continue
            target = posixpath.normpath(posixpath.join(posixpath.dirname(name), path or name))
            target = name if not path else target
            if (site / target).is_dir():
                target = posixpath.join(target, "index.html")
            assert (site / target).is_file(), f"{name}: {link}"
            assert not anchor or anchor in pages[target].ids, f"{name}: {link}"


def test_no_page_loads_anything_from_another_host(pages: Pages) -> None:
    for name, page in pages.items():
        foreign = [link for link in page.loaded if re.match(r"([a-z]+:)?//", link)]
        assert not foreign, f"{name}: {foreign}"


def test_lists_and_tables_are_rendered_as_such(pages: Pages) -> None:
    for name, page in pages.items():
        raw = re.findall(r"^(?:\|.*\||- .*|\d\. .*)$", page.prose, re.MULTILINE)
        assert not raw, f"{name}: {raw[:3]}"


def test_formulas_are_mathml_and_no_tex_is_left(site: Path) -> None:
    text = (site / "statistics.html").read_text("utf-8")
    assert text.count("<math") > 80
    assert "arithmatex" not in text
    assert not re.search(r"\\[a-z]{2,}|\$", Page(text).shown)
