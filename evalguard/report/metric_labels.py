"""The words that all reports share: labels, outcomes in order of gravity, colours, margins.

Whoever shows one of these words to a reader takes what it means from here.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from evalguard.core.compare_report import CompareReport
from evalguard.core.comparison import Comparison, Outcome
from evalguard.core.gate_state import GateState
from evalguard.core.verdict import Margin
from evalguard.page import rounding
from evalguard.page.safe_text import printable

# Short enough to stand beside a table.
SIGMA_UNIT = "standard errors of the base, + is worse"
# How an outcome of JSON is called where people read it; the others are called as they are.
TOLERATED = "tolerated"
GLOSSARY: Mapping[str, str] = {
    "base": "the model that is compared with: the original.",
    "candidate": "the model that is compared: what became of it.",
    "drift": "how far the candidate's score is from the base's on the same documents.",
    "sigma": f"the unit of a drift: {SIGMA_UNIT}. The standard error is lm-eval's own, of the "
    "base's score.",
    "interval": "where the drift lies, in sigma, at 95% (`--confidence`): from the difference that "
    "each document makes, and so often far narrower than 1 sigma.",
    "paired p": "how often chance alone would give so large a drift to the worse, by the same "
    "differences.",
    "margin": "the drift that is allowed: 1 sigma, unless `--margin` says otherwise.",
    "gate": "the rule that makes the exit code: by default a metric fails it whose drift is above "
    "the margin and real.",
    "real": "not chance: the interval lies above 0, adjusted for the number of metrics that the "
    "gate judges.",
    "Holm": "that adjustment: over all metrics together an unchanged candidate has one that is "
    "called real in at most 2.5 of 100 runs, if documents are independent and not very skewed.",
}
OUTCOMES: Mapping[Outcome, str] = {
    "regressed": "worse by more than the margin, and real: the gate fails.",
    "degraded": "worse, and real, but by no more than the margin: allowed. In JSON: `degraded`.",
    "improved": "better: the interval lies below 0.",
    "unchanged": "shown not to be worse by the margin: the interval holds 0 and ends below it.",
    "undecided": "not known: the interval holds 0 and reaches the margin, or the drift is above "
    "the margin and may be chance.",
    "failed": "no number, so nothing is known.",
}


def outcome_definitions(outcomes: Iterable[Outcome]) -> tuple[tuple[str, str], ...]:
    """Return names of outcomes, as people read them, with what they mean, the gravest first."""
    present = set(outcomes)
    return tuple(
        (outcome_name(outcome), text) for outcome, text in OUTCOMES.items() if outcome in present
    )


def outcome_name(outcome: Outcome, *, fails: bool = False) -> str:
    """Return an outcome as people read it.

    Args:
        fails: whether the gate fails for it: then a real drift within the margin is no tolerated
            one.
    """
    return TOLERATED if outcome == "degraded" and not fails else outcome


# Of more subtasks only those that drifted are shown.
_MOST_SHOWN = 20
_QUIET_OUTCOMES: tuple[Outcome, ...] = ("unchanged", "undecided")


def ungated_subtasks(report: CompareReport) -> frozenset[str]:
    """Names of tasks and groups below a group's aggregate that the gate does not judge."""
    gated = {task for task, _, _ in report.gate.gated}
    below = {name for c in report.comparisons for name in (*c.subtasks, *c.subgroups)}
    return frozenset(below - gated)


def judged_comparisons(report: CompareReport) -> tuple[Comparison, ...]:
    """What a report is about: what the gate judges; all but subtasks where it judges nothing."""
    gated, below = set(report.gate.gated), ungated_subtasks(report)
    judged = tuple(c for c in report.comparisons if c.key in gated)
    return judged or tuple(c for c in report.comparisons if c.task not in below)


def select_shown(comparisons: Sequence[Comparison]) -> tuple[list[Comparison], list[str]]:
    """Return the comparisons that a table shows, and a line about those left out of each group."""
    quiet: dict[str, list[Comparison]] = {}
    for group in _large_groups(comparisons):
        hidden = {name for members in quiet.values() for name in (c.task for c in members)}
        quiet[group.task] = [
            c
            for c in comparisons
            if c.task in group.subtasks and c.outcome in _QUIET_OUTCOMES and c.task not in hidden
        ]
    left_out = [c for some in quiet.values() for c in some]
    return [c for c in comparisons if c not in left_out], [
        _hidden_line(group, some) for group, some in quiet.items() if some
    ]


def _large_groups(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """One comparison of each group with many subtasks, outermost groups first."""
    groups = {c.task: c for c in comparisons if len(c.subtasks) > _MOST_SHOWN}
    return sorted(groups.values(), key=lambda group: -len(group.subtasks))


def _hidden_line(group: str, left_out: Sequence[Comparison]) -> str:
    counts = Counter(c.outcome for c in left_out)
    several = len({(c.metric, c.filter) for c in left_out}) > 1
    what = " and ".join(
        f"{counts[outcome]} {outcome}" for outcome in _QUIET_OUTCOMES if counts[outcome]
    )
    noun = "metrics of subtasks" if several else "subtasks"
    hidden = f"{printable(group)}: {what} {noun} are not shown"
    return f"{hidden}; the JSON document has all, with caveats."


_MOST_MARGINS = 8
# Gravest first.
GRAVITY: tuple[Outcome, ...] = (
    "failed",
    "regressed",
    "undecided",
    "degraded",
    "improved",
    "unchanged",
)
OUTCOME_STYLE: dict[Outcome, str] = {
    "failed": "bold magenta",
    "regressed": "bold red",
    "undecided": "yellow",
    "degraded": "green",
    "improved": "green",
    "unchanged": "green",
}
STATE_STYLE: dict[GateState, str] = {
    "failed": OUTCOME_STYLE["failed"],
    "regressed": OUTCOME_STYLE["regressed"],
    "undecided": "bold yellow",
    "passed": "bold green",
}


def metric_label(comparison: Comparison) -> str:
    """Return "perplexity", or "exact_match (flexible-extract)" where a filter has a name."""
    if comparison.filter in ("", "none"):
        return printable(comparison.metric)
    return printable(f"{comparison.metric} ({comparison.filter})")


def key_label(task: str, filter_name: str, metric: str) -> str:
    """Return "lastword perplexity", with the filter where it has a name."""
    named = "" if filter_name in ("", "none") else f" ({filter_name})"
    return printable(f"{task} {metric}{named}")


def full_label(comparison: Comparison) -> str:
    """Return task and metric: "lastword perplexity"."""
    return f"{printable(comparison.task)} {metric_label(comparison)}"


def decisive_comparison(report: CompareReport) -> Comparison | None:
    """Return the comparison that the report is about.

    One of those that brought about the gate's state (where it passed: any), and among them the
    gravest outcome, then the largest sigma. None if nothing was compared.
    """
    gate = report.gate
    decisive = {"regressed": gate.regressed, "failed": gate.failed, "undecided": gate.undecided}
    keys = decisive.get(gate.state, ())
    chosen = [c for c in report.comparisons if c.key in keys]
    return min(
        chosen or judged_comparisons(report),
        key=lambda c: (GRAVITY.index(c.outcome), -sigma_order(c)),
        default=None,
    )


def _tally_outcomes(report: CompareReport, comparisons: Sequence[Comparison]) -> str:
    """Return "1 regressed, 2 unchanged", gravest first."""
    gravest = sorted(comparisons, key=lambda c: GRAVITY.index(c.outcome))
    counts = Counter(_outcome_name(report, c) for c in gravest)
    return ", ".join(f"{number} {name}" for name, number in counts.items())


def tally_report(report: CompareReport) -> str:
    """Count outcomes, those that the gate does not judge apart."""
    about = judged_comparisons(report)
    text = _tally_outcomes(report, about) or "no metrics"
    judged = {id(comparison) for comparison in about}
    ungated = [c for c in report.comparisons if id(c) not in judged]
    below = ungated_subtasks(report)
    of = "of subtasks, not gated" if all(c.task in below for c in ungated) else "not gated"
    return f"{text}; {of}: {_tally_outcomes(report, ungated)}" if ungated else text


def ungated_regression_text(report: CompareReport) -> str:
    """Say what is worse and not judged: "not gated: acc +2.70 sigma, and 3 more"; else ""."""
    below, gated = ungated_subtasks(report), report.gate.gated
    worse = [
        c for c in report.comparisons
        if c.outcome == "regressed" and c.key not in gated and c.task not in below
    ]  # fmt: skip
    if not worse or not gated:
        return ""
    first = max(worse, key=sigma_order)
    suffix = f", and {len(worse) - 1} more" if len(worse) > 1 else ""
    return f"not gated: {full_label(first)} {drift_size(report, first)}{suffix}"


def outcome_words(report: CompareReport, comparison: Comparison) -> str:
    """Return the outcome, with "not gated" where it decides nothing and no note says so."""
    name = _outcome_name(report, comparison)
    return f"{name}, not gated" if is_said_ungated(report, comparison) else name


def is_said_ungated(report: CompareReport, comparison: Comparison) -> bool:
    """Whether a metric decides nothing among others that do, and no note says so."""
    gated = report.gate.gated
    decides = comparison.key in gated or not gated
    return not decides and comparison.task not in ungated_subtasks(report)


def _outcome_name(report: CompareReport, comparison: Comparison) -> str:
    return outcome_name(comparison.outcome, fails=comparison.key in report.gate.regressed)


def format_percent(confidence: float) -> str:
    """Return a confidence as "95%" or "99.9%"."""
    return f"{100 * confidence:.6g}%"


def metric_margin(report: CompareReport, comparison: Comparison) -> float:
    """Return the margin of a metric in sigma; the gate's where a stored result has none."""
    return report.gate.margin if comparison.margin is None else comparison.margin


def is_in_sigma(margin: str) -> bool:
    """Whether a margin, as it was given, is in standard errors; one that nobody gave is."""
    return not margin or Margin.parse(margin).unit == "sigma"


def margin_words(report: CompareReport, comparison: Comparison, *, unit: str = "") -> str:
    """Return a metric's margin: "1.0", "1pp (0.93 sigma)"; ``unit`` follows a number of sigmas."""
    given = comparison.margin_text
    if is_in_sigma(given):
        return f"{margin_text(metric_margin(report, comparison))}{unit}"
    if comparison.margin is None and comparison.tolerated is not None:
        return printable(given)
    return f"{printable(given)} ({metric_margin(report, comparison):.3g} sigma)"


def drift_in_unit(comparison: Comparison) -> str:
    """Return the drift in points or percent where the margin is: "+4.6% [4.3, 5.0]"; else ""."""
    converted = None if is_in_sigma(comparison.margin_text) else _in_unit(comparison)
    return "" if converted is None else f"{converted[0]} [{converted[1]}, {converted[2]}]"


def drift_cells(report: CompareReport, comparison: Comparison) -> tuple[str, str, str]:
    """Return a drift and the ends of its interval: in sigma where the base's documents scatter.

    Where they do not a sigma has no size: in points, or "-" of a metric that has none.
    """
    if not has_no_sigma(comparison):
        return rounding.format_sigma_interval(
            comparison.sigma, shown_interval(comparison), margin=metric_margin(report, comparison)
        )
    return _in_unit(comparison) or ("-", "", "")


def drift_size(report: CompareReport, comparison: Comparison) -> str:
    """Return a drift with its unit: "+2.70 sigma", "+50.0pp"."""
    size, _, _ = drift_cells(report, comparison)
    return size if has_no_sigma(comparison) else f"{size} sigma"


def has_no_sigma(comparison: Comparison) -> bool:
    """Whether the base's documents do not scatter, so that sigma is infinite or has no ends."""
    if comparison.base_stderr != 0.0 or comparison.bit_identical:
        return False
    ends = (comparison.sigma, *(shown_interval(comparison) or ()))
    return any(end is not None and math.isinf(end) for end in ends)


def _in_unit(comparison: Comparison) -> tuple[str, str, str] | None:
    """The drift in the margin's unit, with its interval; of right and wrong answers in points."""
    given, size, ends = comparison.margin_text, comparison.drift, comparison.drift_interval
    if comparison.bit_identical:
        return None
    if is_in_sigma(given):
        if comparison.flips is None:
            return None
        allowed, points, scale = 0.0, True, 100.0
    else:
        margin = Margin.parse(given)
        allowed, points = 100.0 * margin.value, margin.unit == "points"
        scale = 100.0 if points else 100.0 / abs(comparison.base or math.nan)
        if comparison.tolerated is None:  # a log scale, or a result of an earlier version
            if comparison.sigma is None or not comparison.margin:
                return None
            size, ends = comparison.sigma, comparison.sigma_interval
            scale = allowed / comparison.margin
    if size is None or ends is None or not all(map(math.isfinite, (scale, *ends))):
        return None
    drift, low, high = rounding.format_sigma_interval(
        size * scale, (ends[0] * scale, ends[1] * scale), margin=allowed
    )
    return f"{drift}{'pp' if points else '%'}", low, high


def shown_interval(comparison: Comparison) -> tuple[float, float] | None:
    """Return the interval of sigma that the verdict rests on: Holm-adjusted where that matters."""
    return comparison.adjusted_interval or comparison.sigma_interval


def margin_lines(comparisons: Sequence[Comparison]) -> list[str]:
    """Return a paragraph with the drifts whose margins are in points or percent, in these."""
    held = [c for c in comparisons if drift_in_unit(c)]
    if not held:
        return []
    listed = "; ".join(
        f"{full_label(c)} {drift_in_unit(c)}, margin {printable(c.margin_text)}"
        + ("" if c.margin is None else f" ({c.margin:.3g} sigma)")
        for c in held[:_MOST_MARGINS]
    )
    remaining = len(held) - _MOST_MARGINS
    return [f"In the margin's unit: {listed}{f'; and {remaining} more' if remaining > 0 else ''}."]


def margin_text(margin: float) -> str:
    """Return the gate's margin with at least one decimal: "1.0", "0.25"."""
    text = f"{margin:.6g}"
    return text if "." in text or "e" in text or "n" in text else f"{text}.0"


def sigma_order(comparison: Comparison) -> float:
    """Return a drift to order by: the least where there is none."""
    sigma = comparison.sigma
    return float("-inf") if sigma is None or sigma != sigma else sigma
