"""The parts of a Markdown page about a comparison, each with the title it is missed by."""

from __future__ import annotations

from collections.abc import Iterator

from evalguard.escaping import inline
from evalguard.gate_reason import GateState
from evalguard.report.markdown_text import code_block, fold, paragraphs, size, table
from evalguard.report.view import BisectionView, DistributionView, MetricView, ReportView

Section = tuple[str, str]

_GRAVITY: dict[GateState | None, int] = {"regressed": 0, "failed": 1, "undecided": 2}
_METRICS = ("task", "metric", "base", "candidate", "sigma", "paired p", "outcome")
_CULPRITS = ("setting", "base → candidate", "alone", "beside", "share")
_DISTRIBUTIONS = ("task", "positions", "KL mean", "99%", "max", "Δp rms", "top-1")


def sections(view: ReportView, room: int) -> Iterator[Section]:
    """What stands open: the metrics in ``room`` bytes, limits that are not kept, the culprits."""
    yield "metrics", _metrics(view, room)
    decisive = [limit.line for limit in view.limits if limit.state != "passed"]
    if decisive or view.accepted:
        yield "limits", "\n".join(f"- {inline(line)}" for line in (*decisive, *view.accepted))
    if view.bisection is not None:
        yield "culprits", _culprits(view.bisection)
    elif view.bisection_reason:
        yield "why no setting was searched for", inline(view.bisection_reason)
    if view.floor:
        yield "the floor", inline(view.floor)
    if view.next_step:
        command = [code_block([view.next_command], "console")] if view.next_command else []
        yield "the next step", paragraphs(f"**Next:** {inline(view.next_step)}", *command)


def folds(view: ReportView) -> Iterator[Section]:
    """What opens at a click, the more useful in front."""
    for title, body in _folded(view):
        if body:
            yield title, fold(title[0].upper() + title[1:], body)


def _folded(view: ReportView) -> Iterator[Section]:
    found = view.bisection
    if found is not None and found.fix is not None:
        fix = found.fix
        yield (
            "the repair",
            paragraphs(inline(fix.head), *([code_block(fix.lines, "yaml")] if fix.lines else [])),
        )
    yield "caveats", "\n".join(f"{one.number}. {inline(one.line)}" for one in view.caveats)
    yield "distributions", _distributions(view.distributions, view.distributions_legend)
    more = (view.across, *view.answers, *view.stopping, view.influence)
    yield "more about the drift", paragraphs(*map(inline, more))
    if found is not None:
        beside = [text for search in found.searches for text in (search.cleared, search.beside)]
        yield "more about the bisection", paragraphs(*map(inline, (*beside, *found.sentences)))
    yield "all limits", "\n".join(f"- {inline(limit.line)}" for limit in view.limits)
    yield "what was not compared", "\n".join(f"- {inline(line)}" for line in view.left_out)
    yield "how this was made", _made(view)


def _metrics(view: ReportView, room: int) -> str:
    """The table; where it would be longer than ``room``, rows that matter least are left out."""
    shown = [metric for metric in view.metrics if metric.shown]
    kept: set[int] = set()
    for index in sorted(range(len(shown)), key=lambda i: _GRAVITY.get(shown[i].gate_state, 3)):
        room -= sum(size(inline(cell)) + 1 for cell in _row(shown[index]))
        if room < 0:
            break
        kept.add(index)
    rows = [_row(metric) for index, metric in enumerate(shown) if index in kept]
    missing = len(shown) - len(rows)
    return paragraphs(
        table(_METRICS, rows, left=2) if rows else "",
        f"_This page may not be longer. Left out: {missing} metrics._" if missing else "",
        *map(inline, (*view.hidden, view.legend)),
    )


def _row(metric: MetricView) -> tuple[str, ...]:
    caveats = f" ({', '.join(map(str, metric.caveats))})" if metric.caveats else ""
    sigma = f"{metric.sigma} {metric.interval}".strip()
    values = (metric.base, metric.candidate, sigma, metric.p)
    return (metric.task, metric.label, *values, f"{metric.said}{caveats}")


def _culprits(found: BisectionView) -> str:
    parts = []
    for search in found.searches:
        parts += [f"**{inline(search.title)}**", inline(search.answer)]
        rows = [(c.setting, c.change, c.alone, c.beside, c.share) for c in search.culprits]
        parts += [table(_CULPRITS, rows, left=2)] if rows else []
    return paragraphs(*parts, inline(found.legend))


def _distributions(all_of_them: tuple[DistributionView, ...], legend: str) -> str:
    rows = [
        (d.task, d.positions, d.kl, d.kl_p99, d.kl_max, d.dp_rms, d.same_top1)
        for d in all_of_them
        if d.known
    ]
    sentences = [sentence for d in all_of_them for sentence in d.sentences]
    measured = table(_DISTRIBUTIONS, rows, left=1) if rows else ""
    return paragraphs(measured, *map(inline, (legend, *sentences)))


def _made(view: ReportView) -> str:
    sides = [f"{side.name}: {side.about}" for side in (view.base, view.candidate)]
    saved = f"Saved in {view.run_folder}" if view.run_folder else ""
    when = f"evalguard {view.version}, {view.created}"
    texts = (*sides, f"Gate: {view.gate}.", when, view.resources, saved)
    command = code_block([view.command], "console") if view.command else ""
    values = table(("environment", "value"), view.environment, left=2) if view.environment else ""
    return paragraphs(*map(inline, texts), command, values)
