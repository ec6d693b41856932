"""The first screen's sentences: the verdict in a line, its cause, and what touches it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from evalguard.bisect_report import SIGMA, BisectReport, GuiltySetting
from evalguard.compare_report import CompareReport
from evalguard.comparison import Comparison
from evalguard.gate_reason import GateState
from evalguard.report import rounding
from evalguard.report.bisect_amount import drift_text, sized, told
from evalguard.report.bisect_words import answer, listed
from evalguard.report.distribution_words import kl_text, share_text
from evalguard.report.limits import decisive_limit, limit_found
from evalguard.report.plain_text import printable
from evalguard.report.subtasks import concerned
from evalguard.report.view.caveats import Caveat
from evalguard.report.wording import (
    beside_the_gate,
    drift_in_unit,
    full_label,
    margin_of,
    subject,
)

_MOST_CULPRITS = 4
# Notes about the whole run that bear on its verdict, or on where it is kept.
_TOUCHING_NOTE = re.compile(
    r"waiver|expired|differ|damaged|independent|not the same|not written|no run folder|"
    r"not kept|not in the history|"
    r"are not used|depends? on|another model's|in the base run and|noise of|nats, mean",
    re.I,
)
# Caveats that say how a number was made, and not that it may mislead.
_HOW_IT_WAS_MADE = re.compile(
    r"lm-eval (reports|gives) no standard error|scores are not kept for other runs|"
    r"every run builds it anew|^whole texts:|^scores that were stored|"
    r"of the task's .* documents were scored"
)


def worst_drift(report: CompareReport) -> Comparison | None:
    """Return the comparison that the first line names: where all is well, the largest drift."""
    named = subject(report)
    if named is None or report.gate.state != "passed":
        return named
    return max(concerned(report), key=_size, default=named)


def verdict_line(report: CompareReport) -> str:
    """Say state, worst metric, the gate's rule and the exit code."""
    worst, gate = worst_drift(report), report.gate
    if worst is not None and worst.margin_text and decisive_limit(report) is None:
        gate = replace(gate, margin_text=worst.margin_text)  # the one that it was held to
    quiet = gate.state in ("passed", "undecided")
    beside = beside_the_gate(report) if quiet else ""
    rule = f"gate {printable(gate.rule)}"
    parts = (verdict_text(report), beside, rule, f"exit code {report.exit_code}")
    return "; ".join(filter(None, parts))


def verdict_text(report: CompareReport) -> str:
    """Say state and worst metric."""
    return f"{report.gate.state.upper()}: {_found(report)}"


def gate_text(report: CompareReport) -> str:
    """Say the gate's rule."""
    return f"gate {printable(report.gate.rule)}"


def _found(report: CompareReport) -> str:
    limit = decisive_limit(report)
    if limit is not None:
        return limit_found(limit)
    worst = worst_drift(report)
    if worst is None:
        return "nothing was compared"
    if worst.outcome == "failed":
        why = printable(worst.reason).strip().rstrip(".") or "no number came out"
        others = len(report.gate.failed) - 1
        more = f" (and {others} more failed)" if others > 0 else ""
        return f"{full_label(worst)} gives no number: {why}{more}"
    if report.gate.state == "passed":
        return _passed(report, worst)
    if report.gate.state == "undecided":
        return _undecided(report, worst)
    return f"{full_label(worst)} {_drift(report, worst)}"


def _passed(report: CompareReport, worst: Comparison) -> str:
    if all(c.bit_identical for c in report.comparisons):
        return "every score is bit-identical to the base's"
    accepted = {one.key for one in report.gate.accepted}
    waived = ", accepted by a waiver" if worst.key in accepted else ""
    only = len(concerned(report)) == 1
    return f"{'' if only else 'worst '}drift {_drift(report, worst)} ({full_label(worst)}){waived}"


def _undecided(report: CompareReport, worst: Comparison) -> str:
    p = rounding.p_phrase(worst.p_value)
    found = f"{full_label(worst)} {_drift(report, worst)}, {p}"
    if worst.needed_n is not None and worst.needed_n > worst.n_used:
        used, needed = rounding.count(worst.n_used), rounding.about(worst.needed_n)
        return f"{found}; about {needed} documents would decide ({used} scored)"
    return f"{found}; more documents would decide"


def _drift(report: CompareReport, worst: Comparison) -> str:
    sigma, low, high = rounding.sigma_with_interval(
        worst.sigma, worst.sigma_interval, margin=margin_of(report, worst)
    )
    if worst.bit_identical:
        return "0 sigma, bit-identical"
    found = f"{sigma} sigma [{low}, {high}]" if worst.sigma_interval else f"{sigma} sigma"
    return ", ".join(filter(None, (found, drift_in_unit(worst))))


def cause_line(report: CompareReport) -> str:
    """Say which settings the drift comes from, each with its share, and what is left without."""
    found = report.bisect
    if found is None:
        reason = printable(report.bisect_reason)
        return f"Not bisected: {reason}." if reason else ""
    settled = all(search.status in ("minimal", "masked") for search in found.answers)
    if not found.culprits or not settled:
        return f"Cause: {' '.join(f'{answer(search)}.' for search in found.answers)}"
    units = {culprit.unit for culprit in found.culprits}
    costs = [f"{printable(c.setting)} {_cost(found, c)}" for c in found.culprits]
    shown, more = costs[:_MOST_CULPRITS], len(costs) - _MOST_CULPRITS
    text = ", ".join(shown) + (f" and {more} more" if more > 0 else "")
    other = "" if units == {SIGMA} else f" {listed(sorted(units))}"
    return f"Cause: {text}{other}; {_left(found)}"


def _cost(found: BisectReport, culprit: GuiltySetting) -> str:
    """Its share, rounded as in the table."""
    search = next((s for s in found.searches if culprit in s.culprits), found.searches[0])
    return drift_text(culprit.shapley_sigma, culprit.error_sigma, search)


def _left(found: BisectReport) -> str:
    """What is left without the culprits: of the whole run where that was judged."""
    repaired = found.repaired
    if repaired is not None and not repaired.failure:
        known = [m.sigma for m in repaired.metrics if m.gated and m.sigma is not None]
        if known:
            verdict = "" if repaired.passed else f", still {repaired.state}"
            return f"{sized(max(known), 0.0, 0.0)} left{verdict}"
        return f"without them the gate says {repaired.state}"
    last = found.answers[-1]
    return f"{told(last.unexplained_sigma, last)} left"


def distributions_line(report: CompareReport) -> str:
    """Say in a line how far the distributions are apart; "" where that was not measured."""
    known = [one for one in report.distributions if not one.failure]
    unknown = len(report.distributions) - len(known)
    missing = f"not known for {unknown} task{'' if unknown == 1 else 's'}" if unknown else ""
    found = spread_of_tasks(report)
    if found is None:
        return f"Distributions: {missing}" if missing else ""
    said = f"mean KL {found[0]}, same top token {found[1]}"
    if all(one.bit_identical for one in known):
        said = "bit-identical"
    return f"Distributions: {said}" + (f"; {missing}" if missing else "")


def spread_of_tasks(report: CompareReport) -> tuple[str, str] | None:
    """Return mean KL and share of the same top token, each from task to task; None: not known."""
    known = [one for one in report.distributions if not one.failure]
    if not known:
        return None
    kls = sorted(known, key=lambda one: one.kl.value or 0.0)
    tops = sorted(known, key=lambda one: one.same_top1.value or 0.0)
    kl = dict.fromkeys(kl_text(one.kl).split(" ± ")[0] for one in (kls[0], kls[-1]))
    top = dict.fromkeys(share_text(one.same_top1) for one in (tops[0], tops[-1]))
    return " to ".join(kl), " to ".join(top)


def touching_caveats(report: CompareReport, numbered: Sequence[Caveat]) -> tuple[Caveat, ...]:
    """Return the caveats that bear on the verdict: of its metric, and of the whole run."""
    worst = worst_drift(report)
    own = () if worst is None else tuple(printable(text).strip() for text in worst.caveats)
    about = {text for text in own if not _HOW_IT_WAS_MADE.search(text)}
    notes = {printable(note) for note in report.notes if _TOUCHING_NOTE.search(note)}
    return tuple(one for one in numbered if one.text in about or one.text in notes)


def others_text(hidden: Sequence[GateState | None], *, accepted: bool) -> str:
    """Say what the metrics that a table leaves out came to.

    Args:
        hidden: the gate's state of each; None where the gate does not judge it.
        accepted: some of the run's metrics are let through by waivers.
    """
    if not hidden:
        return ""
    head = f"and {rounding.count(len(hidden))} more"
    within = "accepted or within the gate" if accepted else "within the gate"
    words: dict[GateState | None, str] = {
        "regressed": "regressed", "failed": "failed", "undecided": "undecided",
        "passed": within, None: "not gated",
    }  # fmt: skip
    counts = {word: hidden.count(state) for state, word in words.items()}
    found = [(word, number) for word, number in counts.items() if number]
    if len(found) == 1:
        return f"{head}, {'all ' if len(hidden) > 1 else ''}{found[0][0]}"
    return f"{head}: {', '.join(f'{number} {word}' for word, number in found)}"


def _size(comparison: Comparison) -> float:
    sigma = comparison.sigma
    return float("-inf") if sigma is None or sigma != sigma else sigma
