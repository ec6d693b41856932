"""The first screen: verdict, cause, findings, caveats, and what stopping early promises."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from evalguard import tools
from evalguard.core.compare_report import CompareReport
from evalguard.core.comparison import Comparison, SequentialTask, Stopping
from evalguard.core.gate_state import GateState
from evalguard.page import rounding
from evalguard.page.safe_text import printable
from evalguard.report.distribution_texts import share_text
from evalguard.report.limit_texts import decisive_limit, limit_found
from evalguard.report.meaning import (
    differing_answers,
    same_answers_text,
    undecided_text,
)
from evalguard.report.metric_labels import (
    decisive_comparison,
    drift_cells,
    drift_in_unit,
    format_percent,
    full_label,
    has_no_sigma,
    judged_comparisons,
    metric_label,
    metric_margin,
    shown_interval,
    sigma_order,
    ungated_regression_text,
)
from evalguard.report.run_costs import format_duration

_MOST_LABELS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Caveat:
    """A caveat of metrics, or a note about the whole run.

    ``where`` names the metrics ("lastword perplexity, acc; choice acc"), "" for all of several or
    for the whole run; ``line`` is both together.
    """

    number: int
    where: str
    text: str

    @property
    def line(self) -> str:
        """The text, after the metrics that it belongs to."""
        return f"{self.where}: {self.text}" if self.where else self.text


def number_caveats(visible: Sequence[Comparison], notes: Sequence[str]) -> tuple[Caveat, ...]:
    """Number every caveat of the comparisons that are shown, then every note."""
    places: dict[str, list[Comparison]] = {}
    for comparison in visible:
        for caveat in dict.fromkeys((*comparison.caveats, *comparison.provenance)):
            places.setdefault(printable(caveat).strip(), []).append(comparison)
    whole = len(visible)
    entries = [
        ("" if len(at) == whole > 1 else _metric_names(at), text) for text, at in places.items()
    ]
    entries += [("", note) for note in dict.fromkeys(map(printable, notes)) if note not in places]
    return tuple(
        Caveat(number=number, where=where, text=text)
        for number, (where, text) in enumerate(entries, start=1)
    )


def _metric_names(comparisons: Sequence[Comparison]) -> str:
    """Return "lastword perplexity, acc; choice acc": each task once, and not too many metrics."""
    tasks: dict[str, list[str]] = {}
    for comparison in comparisons[:_MOST_LABELS]:
        tasks.setdefault(printable(comparison.task), []).append(metric_label(comparison))
    shown = "; ".join(f"{task} {', '.join(metrics)}" for task, metrics in tasks.items())
    remaining = len(comparisons) - _MOST_LABELS
    return shown + (f" and {remaining} more" if remaining > 0 else "")


def worst_drift(report: CompareReport) -> Comparison | None:
    """Return the comparison that the first line names: where all is well, the largest drift."""
    named = decisive_comparison(report)
    if named is None or report.gate.state != "passed":
        return named
    return max(judged_comparisons(report), key=sigma_order, default=named)


def verdict_line(report: CompareReport) -> str:
    """Say state, worst metric, the gate's rule and the exit code."""
    worst, gate = worst_drift(report), report.gate
    if worst is not None and worst.margin_text and decisive_limit(report) is None:
        gate = replace(gate, margin_text=worst.margin_text)  # the one that it was held to
    quiet = gate.state in ("passed", "undecided")
    beside = ungated_regression_text(report) if quiet else ""
    rule = printable(gate.rule)
    parts = (verdict_text(report), beside, rule, f"exit code {report.exit_code}")
    return "; ".join(filter(None, parts))


def verdict_text(report: CompareReport) -> str:
    """Say state and worst metric."""
    return f"{report.gate.state.upper()}: {_finding_text(report)}"


def gate_rule_text(report: CompareReport) -> str:
    """Say the gate's rule."""
    return printable(report.gate.rule)


def _finding_text(report: CompareReport) -> str:
    limit = decisive_limit(report)
    if limit is not None:
        return limit_found(limit)
    worst = worst_drift(report)
    if worst is None:
        return "nothing was compared"
    if worst.outcome == "failed":
        why = printable(worst.quoted_reason).strip().rstrip(".") or "no number came out"
        remaining = len(report.gate.failed) - 1
        suffix = f" (and {remaining} more failed)" if remaining > 0 else ""
        return f"{full_label(worst)} gives no number: {why}{suffix}"
    if report.gate.state == "passed":
        return _passed_text(report, worst)
    if report.gate.state == "undecided":
        return _undecided_text(report, worst)
    return f"{full_label(worst)} {_drift_text(report, worst)}"


def stated_reason(report: CompareReport) -> str:
    """Return the reason that the first line gives for a metric without a number; "" for none."""
    worst = worst_drift(report)
    if worst is None or worst.outcome != "failed" or decisive_limit(report) is not None:
        return ""
    return printable(worst.quoted_reason)


def _passed_text(report: CompareReport, worst: Comparison) -> str:
    if all(c.bit_identical for c in report.comparisons) and not report.broken_documents:
        return "every score is bit-identical to the base's"
    accepted = {metric.key for metric in report.gate.accepted}
    waived = ", accepted by a waiver" if worst.key in accepted else ""
    only = len(judged_comparisons(report)) == 1
    return (
        f"{'' if only else 'worst '}drift {_drift_text(report, worst)} "
        f"({full_label(worst)}){waived}"
    )


def _undecided_text(report: CompareReport, worst: Comparison) -> str:
    p = rounding.p_value_phrase(worst.p_value)
    differing = differing_answers(report, worst)
    if differing is not None and worst.drift == 0.0:  # what did not move says nothing of these
        same = same_answers_text(differing)
        return (
            f"{printable(worst.task)}: {same}, and no figure of them is worse: "
            f"{undecided_text(worst)}"
        )
    return f"{full_label(worst)} {_drift_text(report, worst)}, {p}: {undecided_text(worst)}"


def _drift_text(report: CompareReport, worst: Comparison) -> str:
    sigma, low, high = rounding.format_sigma_interval(
        worst.sigma, shown_interval(worst), margin=metric_margin(report, worst)
    )
    if worst.bit_identical:
        return "0 sigma, bit-identical"
    if has_no_sigma(worst):
        value, low, high = drift_cells(report, worst)
        size = f"{value} [{low}, {high}]" if low else _plain_drift(worst)
        return f"{size} (no sigma: the base's documents do not scatter)"
    text = f"{sigma} sigma [{low}, {high}]" if worst.sigma_interval else f"{sigma} sigma"
    return ", ".join(filter(None, (text, drift_in_unit(worst))))


def _plain_drift(worst: Comparison) -> str:
    """The drift in units of the metric."""
    if worst.drift is None or worst.drift_interval is None:
        return "worse" if (worst.sigma or 0.0) > 0.0 else "better"
    low, high = worst.drift_interval
    return f"{worst.drift:+.3g} [{low:.3g}, {high:.3g}]"


def cause_line(report: CompareReport, step: str = "") -> str:
    """Say which settings the drift comes from, each with its share, and what is left without.

    Args:
        step: of a chain of models, where the report is of one.
    """
    if report.bisect is None:
        reason = printable(report.bisect_reason)
        return f"Not bisected: {reason}." if reason else ""
    if not shows_bisection(report):
        return f"Bisection not shown: {bisection_reason(report)}."
    cause: str = tools.fetch("bisection_cause")(report, step)
    return cause


def shows_bisection(report: CompareReport) -> bool:
    """Whether there is a bisection, and the tool that reads it."""
    return report.bisect is not None and tools.is_there("bisect")


def bisection_reason(report: CompareReport) -> str:
    """Why no bisection is shown; "" where one is, or where none was expected."""
    if report.bisect is None:
        return printable(report.bisect_reason)
    return "" if shows_bisection(report) else str(tools.missing("bisect"))


def finding_lines(report: CompareReport) -> tuple[str, ...]:
    """Return what every reader must see beside the verdict, a sentence each."""
    return tuple(printable(finding.line) for finding in report.findings)


def distributions_line(report: CompareReport) -> str:
    """Say in a line how far the distributions are apart; "" where that was not measured."""
    known = [distribution for distribution in report.distributions if not distribution.failure]
    unknown = len(report.distributions) - len(known)
    missing = f"not known for {unknown} task{'' if unknown == 1 else 's'}" if unknown else ""
    spread = spread_of_tasks(report)
    if spread is None:
        return f"Distributions: {missing}" if missing else ""
    summary = f"mean KL {spread[0]}, same top token {spread[1]}"
    if all(distribution.bit_identical for distribution in known):
        summary = "bit-identical"
    return f"Distributions: {summary}" + (f"; {missing}" if missing else "")


def spread_of_tasks(report: CompareReport) -> tuple[str, str] | None:
    """Return mean KL and share of the same top token, each from task to task; None: not known."""
    known = [distribution for distribution in report.distributions if not distribution.failure]
    if not known:
        return None
    kls = sorted(known, key=lambda distribution: distribution.kl.value or 0.0)
    tops = sorted(known, key=lambda distribution: distribution.same_top1.value or 0.0)
    kl = dict.fromkeys(
        rounding.round_to_error(distribution.kl.value, distribution.kl.stderr)
        for distribution in (kls[0], kls[-1])
    )
    top = dict.fromkeys(share_text(distribution.same_top1) for distribution in (tops[0], tops[-1]))
    return " to ".join(kl), " to ".join(top)


def verdict_caveats(report: CompareReport, numbered: Sequence[Caveat]) -> tuple[Caveat, ...]:
    """Return the caveats of the metric that the verdict names."""
    worst = worst_drift(report)
    own = () if worst is None else tuple(printable(text).strip() for text in worst.caveats)
    return tuple(caveat for caveat in numbered if caveat.text in own)


def others_text(hidden: Sequence[GateState | None], *, accepted: bool) -> str:
    """Say what the metrics that a table leaves out came to.

    Args:
        hidden: the gate's state of each; None where the gate does not judge it.
        accepted: some of the run's metrics are let through by waivers.
    """
    if not hidden:
        return ""
    head = f"and {rounding.format_count(len(hidden))} more"
    within = "accepted or within the gate" if accepted else "within the gate"
    words: dict[GateState | None, str] = {
        "regressed": "regressed", "failed": "failed", "undecided": "undecided",
        "passed": within, None: "not gated",
    }  # fmt: skip
    counts = {word: hidden.count(state) for state, word in words.items()}
    counted = [(word, number) for word, number in counts.items() if number]
    if len(counted) == 1:
        return f"{head}, {'all ' if len(hidden) > 1 else ''}{counted[0][0]}"
    return f"{head}: {', '.join(f'{number} {word}' for word, number in counted)}"


def stopping_texts(report: CompareReport) -> list[str]:
    """Return the paragraphs that the terminal shows: the promise, then each task."""
    run = report.sequential
    if run is None:
        return []
    if not run.early:
        tasks = "; ".join(map(_full_task_text, run.tasks))
        return [f"Not stopped early, so that the verdict is the ordinary one: {tasks}."]
    promise = (
        "Stopped early: the gate's verdict is that of all documents, wrong in at most "
        f"{format_percent(run.alpha)} of document orders (seed {run.seed}"
    )
    if run.gated > 1:
        each = f"{100.0 * run.alpha / run.gated:.2g}%"
        promise += f"; {run.gated} gated metrics, each shown above the margin at {each}"
    texts = (f"{_task_text(task, report.comparisons)}." for task in run.tasks)
    return [f"{promise}).", *texts, *_saved_texts(run.saved_seconds)]


def _saved_texts(seconds: float | None) -> list[str]:
    if seconds is None:
        return []
    if seconds < 0.0:
        loading = "loading the models several times took longer than scoring the rest would have"
        return [f"No time saved: {loading}, by about {format_duration(-seconds)}."]
    return [f"Saved about {format_duration(seconds)}, at the pace of the documents scored now."]


def _task_text(task: SequentialTask, comparisons: tuple[Comparison, ...]) -> str:
    if task.n_used == task.n_total:
        return _full_task_text(task)
    head = (
        f"{printable(task.task)}: {rounding.format_count(task.n_used)} of "
        f"{rounding.format_count(task.n_total)} documents, look {task.look} of {len(task.looks)}"
    )
    own = [
        (metric_label(c), c.stopping)
        for c in comparisons
        if c.task == task.task and c.stopping is not None and c.stopping.error_chance < 1.0
    ]
    exact = [name for name, stopping in own if not stopping.assumption]
    parts = [f"{', '.join(exact)} exact"] if exact else []
    parts += [
        f"{name}{_method_note(s)} if {printable(s.assumption)}" for name, s in own if s.assumption
    ]
    return "; ".join([head, *parts])


def _method_note(stopping: Stopping) -> str:
    return " (asymptotic)" if stopping.method == "bounded-betting" else ""


def _full_task_text(task: SequentialTask) -> str:
    why = f" ({printable(task.reason)})" if task.reason else ""
    return f"{printable(task.task)}: all {rounding.format_count(task.n_total)} documents{why}"
