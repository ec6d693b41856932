"""Text of models and files inside Markdown: it stays text, whatever it holds."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence

# What Markdown reads as markup anywhere, and at the beginning of a line; there, GitLab also reads
# /merge or /close as an order.
_MARKUP = re.compile(r"([\\`*_\[\]|~])")
_BEGINNING = re.compile(r"^(#(?=[#\s]|$)|[+-](?=[\s-]|$)|=(?=[=\s]|$)|\d+(?=[.)](?:\s|$))|/(?=\w))")
# What GitHub and GitLab turn into mentions, links and pictures. They look for it in the text that
# is shown, where an escape does not help; a character without width between its parts does.
_BREAK = "\u200b"
_EMOJI = r"(?:[\w+-]*[a-z_][\w+-]*|100|1234|[+-]1):"  # and no time of day: 11:00:00
_REFERENCE = re.compile(
    rf'(?<=[@#!%$~])(?=[\w"])|(?<=&)(?=\d)|(?<=\[)(?=\w+:[\w"])|(?<=:)(?=//|{_EMOJI})'
    r"|(?<=www)(?<![^\W_]www)(?=\.)|(?<=\bGH)(?=-\d)",
    re.IGNORECASE,
)
_MOST = 1500


def inline(text: str, most: int = _MOST) -> str:
    """Return printable ``text`` as a part of a line: no markup, link, mention, picture or HTML.

    Args:
        most: characters; a longer one (a name of a megabyte) is cut in its middle.
    """
    text = " ".join(text.split())
    if len(text) > most:
        text = f"{text[: most // 2]} … {text[-most // 2 :]}"
    escaped = _MARKUP.sub(r"\\\1", html.escape(_REFERENCE.sub(_BREAK, text), quote=False))
    escaped = escaped.replace("$", "<span>$</span>")  # no formula begins
    return _BEGINNING.sub(lambda found: f"&#{ord(found[1][0])};{found[1][1:]}", escaped)


def code_block(lines: Sequence[str], language: str = "") -> str:
    """Return printable lines as a block of code that nothing in them can end."""
    longest = max((len(run) for line in lines for run in re.findall("`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return "\n".join([f"{fence}{language}", *lines, fence])


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, left: int) -> str:
    """Return a table of texts; all columns but the first ``left`` are flush right."""
    rules = ["---" if column < left else "---:" for column in range(len(header))]
    cells = [header, rules, *([inline(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def fold(title: str, body: str) -> str:
    """Return a body that opens at a click."""
    return f"<details><summary>{inline(title)}</summary>\n\n{body}\n\n</details>"


def paragraphs(*parts: str) -> str:
    """Join what there is with an empty line between."""
    return "\n\n".join(part for part in parts if part)


def size(text: str) -> int:
    """Bytes of a paragraph in a file."""
    return len(text.encode("utf-8", "replace")) + 2
