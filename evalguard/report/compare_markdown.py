"""Markdown of a comparison: the comment of a pull request, the summary of a job, a file."""

from __future__ import annotations

import hashlib

from evalguard.core.gate_state import GateState
from evalguard.core.markdown_text import inline
from evalguard.report.markdown_blocks import paragraph_bytes
from evalguard.report.markdown_sections import folded_sections, open_sections
from evalguard.report.view.report_view import ReportView

# GitHub refuses a comment of more than 65,536 characters, and a summary of more than 1 MiB.
COMMENT_BYTES = 60_000
SUMMARY_BYTES = 1_000_000

_ICON: dict[GateState, str] = {
    "passed": "✅",
    "regressed": "❌",
    "failed": "💥",
    "undecided": "⚠️",
}
_CUT_NOTICE_BYTES = 3000


def render_markdown(view: ReportView, *, most: int = SUMMARY_BYTES, marker: str = "") -> str:
    """Return the page: verdict on top, table, culprits, then fold-outs.

    Texts of models and files stay text: no markup, HTML, link or mention comes out of them.

    Args:
        most: bytes of UTF-8, ``COMMENT_BYTES`` or more. Where the page would be longer, rows of
            the table and whole sections are left out, and the page says which.
        marker: hidden first line, by which a comment is found again.
    """
    parts = [
        *([marker] if marker else []),
        f"### {_ICON[view.state]} {inline(view.headline, 200)}",
        f"**{inline(view.first, 600)}**",
        *([inline(view.cause, 600)] if view.cause else []),
        *(f"> {inline(text, 600)}" for text in view.findings),
        *([inline(view.answers_change, 600)] if view.answers_change else []),
        f"{inline(view.title, 200)}: {inline(view.sentence, 1000)}",
    ]
    room = most - _CUT_NOTICE_BYTES - sum(map(paragraph_bytes, parts))
    left_out = []
    for title, body in (*open_sections(view, room // 2), *folded_sections(view)):
        room -= paragraph_bytes(body)
        if room >= 0:
            parts.append(body)
        else:
            left_out.append(title)
            room += paragraph_bytes(body)
    if left_out:
        parts.append(f"_This page may not be longer. Left out: {', '.join(left_out)}._")
    return "\n\n".join(parts) + "\n"


def comment_marker(*names: str) -> str:
    """Return the hidden line of a comment about what these names say; other names, another."""
    digest = hashlib.sha256("\0".join(names).encode("utf-8", "replace")).hexdigest()
    return f"<!-- evalguard {digest[:16]} -->"


def failure_markdown(message: str, hint: str, *, exit_code: int, marker: str = "") -> str:
    """Return the page of a comparison that gave no verdict.

    Args:
        message, hint: printable but for line breaks; they stay text as in :func:`render`.
    """
    head = f"{_ICON['failed']} No verdict: the comparison did not finish, exit code {exit_code}"
    parts = [
        *([marker] if marker else []),
        f"### {head}",
        "Nothing is known about the candidate: this is neither a pass nor a regression.",
        *(inline(line) for line in message.splitlines()[:20]),
        *([f"**What to do:** {inline(hint)}"] if hint else []),
    ]
    return "\n\n".join(parts) + "\n"
