"""Markdown of a comparison: the comment of a pull request, the summary of a job, a file."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from evalguard import tools
from evalguard.core.gate_state import GateState
from evalguard.page.safe_text import inline
from evalguard.page.table import Table
from evalguard.page.terminal import code_block, foldout, join_paragraphs, paragraph_bytes
from evalguard.report.compare_view import ReportView
from evalguard.report.distribution_section import DistributionView, distribution_table
from evalguard.report.generation_section import generation_table
from evalguard.report.metric_view import MetricView

MarkdownSection = tuple[str, str]
_GRAVITY: dict[GateState | None, int] = {"regressed": 0, "failed": 1, "undecided": 2}
_METRIC_HEADER = ("task", "metric", "base", "candidate", "sigma", "paired p", "outcome")


def open_sections(view: ReportView, room: int) -> Iterator[MarkdownSection]:
    """What stands open: the metrics in ``room`` bytes, limits that are not kept, the culprits."""
    yield "metrics", _metric_table(view, room)
    decisive = [limit.line for limit in view.limits if limit.state != "passed"]
    if decisive or view.accepted:
        yield "limits", "\n".join(f"- {inline(line)}" for line in (*decisive, *view.accepted))
    if view.bisection is not None:
        yield "culprits", tools.fetch("culprits_markdown")(view.bisection)
    elif view.bisection_reason:
        yield "why no setting was searched for", inline(view.bisection_reason)
    if view.floor:
        yield "the floor", inline(view.floor)
    if view.next_step:
        command = [code_block([view.next_command], "console")] if view.next_command else []
        inside = [code_block([view.trace_command], "console")] if view.trace_command else []
        where = ["Where in the model:", *inside] if inside else []
        step = f"**Next:** {inline(view.next_step)}"
        yield "the next step", join_paragraphs(step, *command, *where)


def folded_sections(view: ReportView) -> Iterator[MarkdownSection]:
    """What opens at a click, the more useful in front."""
    for title, body in _titled_folds(view):
        if body:
            yield title, foldout(title[0].upper() + title[1:], body)


def _titled_folds(view: ReportView) -> Iterator[MarkdownSection]:
    bisection = view.bisection
    if bisection is not None:
        yield "the repair", tools.fetch("repair_markdown")(bisection)
    yield "caveats", "\n".join(f"{caveat.number}. {inline(caveat.line)}" for caveat in view.caveats)
    yield "distributions", _distribution_table(view.distributions, view.distributions_legend)
    if view.generations:
        yield (
            "generated answers",
            join_paragraphs(
                generation_table(view.generations).markdown(),
                inline(view.generations_legend),
            ),
        )
    paragraphs = (*view.kl_estimates, *view.answers, *view.stopping, view.influence)
    yield "more about the drift", join_paragraphs(*map(inline, paragraphs))
    if bisection is not None:
        yield from tools.fetch("bisection_folds")(bisection)
    lines = [line for limit in view.limits for line in (limit.line, *limit.documents)]
    yield "all limits", "\n".join(f"- {inline(line)}" for line in lines)
    yield "what was not compared", "\n".join(f"- {inline(line)}" for line in view.left_out)
    yield "how this was made", _provenance(view)


def _metric_table(view: ReportView, room: int) -> str:
    """The table; where it would be longer than ``room``, rows that matter least are left out."""
    shown = [metric for metric in view.metrics if metric.shown]
    included: set[int] = set()
    for index in sorted(range(len(shown)), key=lambda i: _GRAVITY.get(shown[i].gate_state, 3)):
        room -= sum(paragraph_bytes(inline(cell)) + 1 for cell in _metric_row(shown[index]))
        if room < 0:
            break
        included.add(index)
    rows = [_metric_row(metric) for index, metric in enumerate(shown) if index in included]
    missing = len(shown) - len(rows)
    return join_paragraphs(
        Table(headings=_METRIC_HEADER, rows=rows, right=range(2, 7)).markdown(),
        f"_This page may not be longer. Left out: {missing} metrics._" if missing else "",
        *map(inline, (*view.hidden, view.legend)),
    )


def _metric_row(metric: MetricView) -> tuple[str, ...]:
    caveats = f" ({', '.join(map(str, metric.caveats))})" if metric.caveats else ""
    sigma = f"{metric.sigma} {metric.interval}".strip()
    values = (metric.base, metric.candidate, sigma, metric.p)
    return (metric.task, metric.label, *values, f"{metric.said}{caveats}")


def _distribution_table(all_of_them: tuple[DistributionView, ...], legend: str) -> str:
    sentences = [sentence for d in all_of_them for sentence in d.sentences]
    measured = distribution_table(all_of_them).markdown()
    printed = [code_block(d.llama_cpp) for d in all_of_them if d.llama_cpp]
    return join_paragraphs(measured, *map(inline, (legend, *sentences)), *printed)


def _provenance(view: ReportView) -> str:
    sides = [f"{side.name}: {side.about}" for side in (view.base, view.candidate)]
    saved = f"Saved in {view.run_folder}" if view.run_folder else ""
    when = f"evalguard {view.version}, {view.created}"
    texts = (*sides, f"Gate: {view.gate}.", when, view.resources, saved)
    command = code_block([view.command], "console") if view.command else ""
    values = Table(headings=("environment", "value"), rows=view.environment).markdown()
    return join_paragraphs(*map(inline, texts), command, values)


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
