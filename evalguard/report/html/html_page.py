"""A self-contained page: a template with its stylesheet and scripts inside, and a policy
that allows no others.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

if TYPE_CHECKING:
    from jinja2 import Environment


_PACKAGE = "evalguard.report.html"
_STYLES = ("page.css", "charts.css", "size_plot.css", "documents.css", "print.css")
_THEME = "theme.js"


def html_page(template: str, *, scripts: Sequence[str] = (), **context: Any) -> str:
    """Render a template of ``templates/`` that extends base.html; all text in it is escaped.

    Args:
        scripts: files of ``assets/``, run as one after the page is read.
        context: what the template names; a name that it misses is an error.
    """
    style = "\n".join(read_asset(name) for name in _STYLES)
    script = _join_scripts((_THEME, *scripts))
    page = _environment().get_template(template)
    return page.render(
        style=Markup(style),
        script=Markup(script),
        policy=content_security_policy(style, script),
        **context,
    )


def content_security_policy(style: str, script: str) -> str:
    """A Content-Security-Policy: this stylesheet and this script, and nothing from anywhere."""
    allowed = f"style-src {_hash(style)}; script-src {_hash(script)}"
    return f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'"


def read_asset(name: str) -> str:
    """The text of a file of ``assets/``."""
    file = resources.files(_PACKAGE).joinpath("assets", name)
    return file.read_text(encoding="utf-8")


def _join_scripts(names: Sequence[str]) -> str:
    """Several files as one script, whose names nothing else on the page sees."""
    inside = "\n".join(read_asset(name) for name in names)
    return f'(() => {{\n"use strict";\n{inside}}})();\n'


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader(_PACKAGE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
