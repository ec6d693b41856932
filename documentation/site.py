"""Hooks of MkDocs: pages beyond docs/, links out of it, formulas as MathML."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
_SAMPLE = "reports/20261130T145216Z-orig-vs-fla-port/report.html"
# Pages and files that lie elsewhere in the repository: their place in the site, and in it.
ELSEWHERE = {
    "index.md": "README.md",
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "ci/github/pull-request.yml": "ci/github/pull-request.yml",
    "ci/github/nightly.yml": "ci/github/nightly.yml",
    **{
        f"ci/nightly/{file.name}": f"ci/nightly/{file.name}"
        for file in sorted((ROOT / "ci/nightly").iterdir())
    },
    "ci/gitlab/evalguard.yml": "ci/gitlab/evalguard.yml",
    **{
        f"benchmarks/results/{file.name}": f"benchmarks/results/{file.name}"
        for suffix in ("md", "svg", "html")
        for file in sorted((ROOT / "benchmarks/results").glob(f"*.{suffix}"))
    },
    # The report of the demo that README shows.
    _SAMPLE: _SAMPLE,
}
# A list right after a line of text: a list on GitHub, but not in Python's Markdown.
_LIST = re.compile(r"^((?!\s*(?:[-*]|\d+\.) |\s*$|\s{2,}).+)\n(?=(?:[-*]|\d+\.) )", re.MULTILINE)
_FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<=\]\()([^)\s:#]+)(?=[#)])")
_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Fill the part of the navigation that lists measurements."""
    assert config.nav is not None
    for section in config.nav:
        if "Measured" in section:
            measured = (page for page in ELSEWHERE if page.startswith("benchmarks/"))
            section["Measured"] = [page for page in measured if page.endswith(".md")]
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages that do not lie in docs/."""
    for page, home in ELSEWHERE.items():
        text = (ROOT / home).read_text("utf-8")
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """What holds on a repository's page, links and lists, holds on the site's page, too."""
    place = page.file.src_uri
    if place == "reference/commands.md":
        return markdown
    parts = _FENCE.split(markdown)
    parts[::2] = [_LIST.sub(r"\1\n\n", _moved_links(part, place)) for part in parts[::2]]
    return "".join(parts)


def _moved_links(markdown: str, place: str) -> str:
    home = ELSEWHERE.get(place, f"docs/{place}")

    def moved(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(home), link[1]))
        here = next((site for site, file in ELSEWHERE.items() if file == path), None)
        target = here or path.removeprefix("docs/")
        return posixpath.relpath(target, posixpath.dirname(place) or ".")

    return _LINK.sub(moved, markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Formulas as MathML, which browsers show without a script from elsewhere."""
    return _FORMULA.sub(_mathml, html)


def _mathml(found: re.Match[str]) -> str:
    tex = found[2].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    return convert(tex.strip(), display="block" if found[1] == "div" else "inline")
