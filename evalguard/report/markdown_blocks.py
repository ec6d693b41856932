"""Markdown out of texts of models and files: blocks, tables, fold-outs."""

from __future__ import annotations

import re
from collections.abc import Sequence

from evalguard.core.markdown_text import inline


def code_block(lines: Sequence[str], language: str = "") -> str:
    """Return printable lines as a block of code that nothing in them can end."""
    longest = max((len(run) for line in lines for run in re.findall("`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return "\n".join([f"{fence}{language}", *lines, fence])


def foldout(title: str, body: str) -> str:
    """Return a body that opens at a click."""
    return f"<details><summary>{inline(title)}</summary>\n\n{body}\n\n</details>"


def join_paragraphs(*parts: str) -> str:
    """Join what there is with an empty line between."""
    return "\n\n".join(part for part in parts if part)


def paragraph_bytes(text: str) -> int:
    """Bytes of a paragraph in a file."""
    return len(text.encode("utf-8", "replace")) + 2
