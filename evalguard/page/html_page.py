"""A self-contained page: a template with its stylesheet and scripts inside, and a policy
that allows no others.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

if TYPE_CHECKING:
    from jinja2 import Environment

_GZIP_LEVEL = 6  # level 9 takes twice as long for 1% less


def compress_json(data: Any) -> str:
    """Return data as JSON, gzip and base64: letters, digits, +, / and = only.

    The page's script reads it back with the browser's own ``DecompressionStream``.

    Raises:
        ValueError: the data holds NaN or an infinity, which JSON has not.
    """
    text = json.dumps(data, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    # A lone half of a character is no UTF-8; texts are made visible before they come here.
    squeezed = gzip.compress(text.encode("utf-8", "replace"), compresslevel=_GZIP_LEVEL, mtime=0)
    return base64.b64encode(squeezed).decode("ascii")


_PACKAGE = "evalguard"
_STYLES = ("page.css", "charts.css", "size_plot.css", "documents.css", "print.css")
_THEME = "theme.js"


def html_page(template: str, *, scripts: Sequence[str] = (), **context: Any) -> str:
    """Render a template that extends page/base.html; all text in it is escaped.

    Args:
        template: its room and its name, as "report/report.html" for the file of that name in
            ``report/templates/``.
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
    file = resources.files(_PACKAGE).joinpath("page", "assets", name)
    return file.read_text(encoding="utf-8")


def _join_scripts(names: Sequence[str]) -> str:
    """Several files as one script, whose names nothing else on the page sees."""
    inside = "\n".join(read_asset(name) for name in names)
    return f'(() => {{\n"use strict";\n{inside}}})();\n'


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _read_template(name: str) -> str | None:
    """The text of a room's template; None where the room, or the template, is not there."""
    room, _, file = name.partition("/")
    path = resources.files(_PACKAGE).joinpath(room, "templates", file)
    return path.read_text(encoding="utf-8") if path.is_file() else None


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    return Environment(
        loader=FunctionLoader(_read_template),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


Attribute = str | int | float | None


def make_tag(name: str, *children: object, **attributes: Attribute) -> Markup:
    """Return an element; text among the children is escaped, Markup is taken as it is.

    ``class_`` is ``class``, other underscores are dashes; numbers are rounded to two decimals, and
    attributes of None are left out.
    """
    given = "".join(
        f' {_attribute_name(key)}="{escape(_attribute_text(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    inside = "".join(map(escape, children))
    return Markup(f"<{name}{given}>{inside}</{name}>")  # every part of it is escaped


def _attribute_name(key: str) -> str:
    return key if key == "viewBox" else key.rstrip("_").replace("_", "-")


def _attribute_text(value: str | int | float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


# Control characters but tab and line feed; directions and isolates; what has no width; tags; halves
# of characters. The joiners that scripts and emoji need (200C, 200D) stay.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b\u200e\u200f"
    "\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb\ud800-\udfff"
    "\U000e0000-\U000e0fff]"
)
_PICTURES = 0x2400  # Unicode has a picture of every control character
_DELETE = 0x7F


def make_visible(text: str) -> str:
    """Write out what has no shape of its own, or would change the direction of what follows.

    >>> make_visible("a\\x1b[31mb\\u202ec")
    'a␛[31mb‹U+202E›c'
    """
    return _HIDDEN.sub(_visible_form, text)


def _visible_form(found: re.Match[str]) -> str:
    code = ord(found.group())
    if code < 0x20:
        return chr(_PICTURES + code)
    return "␡" if code == _DELETE else f"‹U+{code:04X}›"


def cut_middle(text: str, most: int) -> str:
    """Cut a text in its middle to about ``most`` characters, and say how many are left out."""
    if len(text) <= most:
        return text
    tail = most * 2 // 3  # what a model answers to stands at the end of its prompt
    left_out = len(text) - most
    return f"{text[: most - tail]} ‹{left_out:,} characters left out› {text[-tail:]}"


def cut_to_tail(text: str, most: int) -> str:
    """Keep the end of a text."""
    return text if len(text) <= most else f"…{text[len(text) - most :]}"
