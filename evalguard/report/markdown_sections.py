"""The parts of a Markdown page about a comparison, each with the title it is missed by."""

from __future__ import annotations

from collections.abc import Iterator

from evalguard.core.gate_state import GateState
from evalguard.core.markdown_text import inline
from evalguard.report.markdown_blocks import (
    code_block,
    foldout,
    join_paragraphs,
    paragraph_bytes,
)
from evalguard.report.table import Table
from evalguard.report.view.bisection_view import BisectionView, culprit_table
from evalguard.report.view.distribution_view import DistributionView, distribution_table
from evalguard.report.view.generation_view import generation_table
from evalguard.report.view.metric_view import MetricView
from evalguard.report.view.prices_view import PricesView
from evalguard.report.view.report_view import ReportView

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
        yield "culprits", _culprit_tables(view.bisection)
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
    found = view.bisection
    if found is not None and found.fix is not None:
        fix = found.fix
        yield (
            "the repair",
            join_paragraphs(
                inline(fix.head), *([code_block(fix.lines, "yaml")] if fix.lines else [])
            ),
        )
    yield "caveats", "\n".join(f"{one.number}. {inline(one.line)}" for one in view.caveats)
    yield "distributions", _distribution_table(view.distributions, view.distributions_legend)
    if view.generations:
        yield (
            "generated answers",
            join_paragraphs(
                generation_table(view.generations).markdown(),
                inline(view.generations_legend),
            ),
        )
    more = (*view.kl_estimates, *view.answers, *view.stopping, view.influence)
    yield "more about the drift", join_paragraphs(*map(inline, more))
    if found is not None:
        beside = [text for search in found.searches for text in (search.cleared, search.beside)]
        if found.prices is not None:
            yield found.prices.title, _price_table(found.prices)
        yield "more about the bisection", join_paragraphs(*map(inline, (*beside, *found.sentences)))
    lines = [line for limit in view.limits for line in (limit.line, *limit.documents)]
    yield "all limits", "\n".join(f"- {inline(line)}" for line in lines)
    yield "what was not compared", "\n".join(f"- {inline(line)}" for line in view.left_out)
    yield "how this was made", _provenance(view)


def _price_table(prices: PricesView) -> str:
    options = [line for name, option in prices.options for line in (f"# {name}", option)]
    return join_paragraphs(
        inline(prices.lead),
        prices.table.markdown(),
        code_block(options) if options else "",
        *map(inline, prices.notes),
    )


def _metric_table(view: ReportView, room: int) -> str:
    """The table; where it would be longer than ``room``, rows that matter least are left out."""
    shown = [metric for metric in view.metrics if metric.shown]
    kept: set[int] = set()
    for index in sorted(range(len(shown)), key=lambda i: _GRAVITY.get(shown[i].gate_state, 3)):
        room -= sum(paragraph_bytes(inline(cell)) + 1 for cell in _metric_row(shown[index]))
        if room < 0:
            break
        kept.add(index)
    rows = [_metric_row(metric) for index, metric in enumerate(shown) if index in kept]
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


def _culprit_tables(found: BisectionView) -> str:
    parts = []
    for search in found.searches:
        parts += [f"**{inline(search.title)}**", inline(search.answer)]
        parts.append(culprit_table(search.culprits).markdown())
    return join_paragraphs(*parts, inline(found.legend))


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
