"""Plain text inside generated Markdown."""

from __future__ import annotations

import html
import re


def cell(text: str) -> str:
    """Return ``text`` for a paragraph or table cell: nothing in it is Markdown or HTML."""
    return re.sub(r"([\\`*_\[\]|$])", r"\\\1", html.escape(" ".join(text.split()), quote=False))


def code(text: str) -> str:
    """Return ``text`` as inline code that may stand in a table."""
    return f"<code>{html.escape(text, quote=False).replace('|', '&#124;')}</code>" if text else ""
