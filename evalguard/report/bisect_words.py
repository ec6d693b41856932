"""What a bisection found, in words: sentences that a maintainer can act on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from evalguard.bisect_report import SIGMA, BisectReport, GuiltySetting, MetricSearch, Repaired
from evalguard.report import rounding
from evalguard.report.bisect_amount import amount, drift_text, sized, told
from evalguard.report.limits import limits_kept
from evalguard.report.plain_text import printable
from evalguard.report.resources import duration
from evalguard.report.wording import margin_text

if TYPE_CHECKING:
    from evalguard.bisect.result import Part, Suspect

_MOST_NAMED = 6
_ENDED = {
    "interrupted": "it was interrupted",
    "budget": "its budget is spent",
    "failed": "it could not go on",
    "": "it was stopped",
}


def metric_text(task: str, filter_name: str, metric: str) -> str:
    """Return "lastword perplexity", the filter beside it where it has a name."""
    named = "" if filter_name in ("", "none") else f" ({filter_name})"
    return printable(f"{task} {metric}{named}")


def subject_of(search: MetricSearch) -> str:
    """Return what was searched, as ``metric_text``."""
    return metric_text(search.task, search.filter, search.metric)


def listed(names: Sequence[str], *, most: int = _MOST_NAMED) -> str:
    """Return "a", "a and b" or "a, b and 3 others"."""
    shown = [printable(name) for name in names[:most]]
    more = len(names) - len(shown)
    if more:
        shown.append(f"{more} other{'s' if more > 1 else ''}")
    if len(shown) < 2:
        return "".join(shown)
    return f"{', '.join(shown[:-1])} and {shown[-1]}"


def answer(search: MetricSearch) -> str:
    """Return the answer of one search as a sentence without a full stop."""
    said = {
        "minimal": _found,
        "masked": _found,
        "unexplained": _unexplained,
        "diffuse": _diffuse,
        "not_reproduced": _not_reproduced,
        "stopped": _stopped,
    }[search.status]
    within = f"Inside {listed(search.inside)}: " if search.inside else ""
    return f"{within}{said(search)}{_broken_off(search)}"


def _broken_off(search: MetricSearch) -> str:
    """Why nothing came after an answer; a search that has none says it itself."""
    if not search.ended or search.status == "stopped":
        return ""
    failure = f" ({printable(search.failure)})" if search.failure else ""
    return f"; then {_ENDED[search.ended]}{failure}"


def _found(search: MetricSearch) -> str:
    them = "it" if len(search.culprits) == 1 else "them"
    text = (
        f"The drift of {_drift(search)} on {subject_of(search)} comes from {_who(search)}; "
        f"without {them}, {_left(search)} left"
    )
    if search.status == "masked":
        better = [c.setting for c in search.culprits if c.sigma_in_context < 0.0]
        acts = "acts" if len(better) == 1 else "act"
        text += f" ({listed(better)} {acts} the other way, and hid part of what the rest does)"
    if search.eliminated:
        text += f" (by elimination: without {them} every document scores as the base's, bit by bit)"
    return text + _outside(search)


def _who(search: MetricSearch) -> str:
    """The culprits, and how they act together."""
    names = listed([culprit.setting for culprit in search.culprits])
    roles = {culprit.role for culprit in search.culprits}
    if roles == {"together"}:
        return f"{names}, which act only together"
    if roles == {"redundant"}:
        return f"{names}, each of which would be enough"
    return names


def _unexplained(search: MetricSearch) -> str:
    if not search.culprits:
        head = f"No setting could be proven to make the drift of {_drift(search)}"
        return f"{head} on {subject_of(search)}{_suspects(search)}{_outside(search)}"
    verb = "is" if len(search.culprits) == 1 else "are"
    names = listed([c.setting for c in search.culprits])
    head = f"{names} {verb} proven to make part of the drift of {_drift(search)} on"
    left = search.unexplained_sigma
    if left is not None and abs(left) <= search.margin:
        them = "it" if len(search.culprits) == 1 else "them"
        return (
            f"{head} {subject_of(search)}; without {them}, {_left(search)} left, inside "
            f"the margin, but whether that is all could not be told{_suspects(search)}"
            f"{_outside(search)}"
        )
    return (
        f"{head} {subject_of(search)}, and {_left(search)} left that no setting could "
        f"be proven to make{_suspects(search)}{_outside(search)}"
    )


def _diffuse(search: MetricSearch) -> str:
    text = (
        f"No single setting makes the drift of {_drift(search)} on {subject_of(search)}: it "
        f"is the sum of many small ones, none of which is worth the margin by itself"
    )
    parts = sorted(search.parts, key=lambda part: -abs(part.sigma))
    shown = [f"{listed(part.settings, most=4)} ({_of_part(part, search)})" for part in parts]
    return f"{text}. By groups: {'; '.join(shown)}" if shown else text


def _not_reproduced(search: MetricSearch) -> str:
    count = len(search.settings)
    settings = "The setting moves" if count == 1 else f"The {count} settings move"
    text = f"{settings} {subject_of(search)} by {_drift(search)} only, within the margin"
    outside = _outside(search)
    return text + (outside or "; there is nothing to find")


def _stopped(search: MetricSearch) -> str:
    """What is known so far; a search that did not end names nobody that is not proven."""
    text = f"No answer for {subject_of(search)} yet: {_ENDED[search.ended]}"
    if search.failure:
        text += f" ({printable(search.failure)})"
    if search.culprits:
        verb = "is" if len(search.culprits) == 1 else "are"
        text += f"; {listed([c.setting for c in search.culprits])} {verb} proven so far"
    return text + _suspects(search)


def _suspects(search: MetricSearch) -> str:
    if not search.suspects:
        return ""
    shown = [f"{printable(s.name)} ({_evidence(s)})" for s in search.suspects]
    return f"; suspected, not proven: {listed(shown)}"


def _evidence(suspect: Suspect) -> str:
    """How probable it is, and whether the paired test of its own effect says chance."""
    share = f"{100 * suspect.probability:.0f}%"
    return share if suspect.p_value is None else f"{share}, own paired p = {suspect.p_value:.2g}"


def _outside(search: MetricSearch) -> str:
    if abs(search.outside_sigma) < search.margin / 10.0:
        return ""
    outside = told(search.outside_sigma, search)
    lies = "lies" if outside.startswith("a factor") else "lie"
    return (
        f"; {outside} {lies} outside the settings: the "
        "model with all of them at reference is not the base"
    )


def _drift(search: MetricSearch) -> str:
    return told(search.drift_sigma, search)


def _left(search: MetricSearch) -> str:
    """What is left, with its verb: "+0.06 sigma are"."""
    left = told(search.unexplained_sigma, search)
    return f"{left} {'is' if left.startswith('a factor') else 'are'}"


def _of_part(part: Part, search: MetricSearch) -> str:
    return drift_text(part.sigma, part.error_sigma, search)


def repaired_text(repaired: Repaired | None) -> str:
    """Say what the gate makes of the candidate without its culprits; "" without culprits."""
    if repaired is None:
        return ""
    head = f"With {listed(repaired.reset)} at reference"
    if repaired.failure:
        return f"{head}, nothing more is known: {printable(repaired.failure)}."
    gated = [metric for metric in repaired.metrics if metric.gated]
    known = [m for m in gated if m.sigma is not None]
    worst = max(known, key=lambda m: m.sigma or 0.0, default=None)
    limits = limits_kept(repaired.limits)
    if worst is None:
        return f"{head}, the gate says {repaired.state}{limits}."
    where = f"{sized(worst.sigma, 0.0, 0.0)} sigma on {printable(f'{worst.task} {worst.metric}')}"
    if repaired.passed:
        noun = "the gated metric" if len(gated) == 1 else f"all {len(gated)} gated metrics"
        return f"{head}, the gate lets {noun} pass; the largest drift is {where}{limits}."
    return f"{head}, the gate still says {repaired.state}; the largest drift is {where}{limits}."


def cleared_text(search: MetricSearch) -> str:
    """Say which settings are cleared, and by what."""
    if not search.cleared:
        return ""
    many = len(search.cleared) > 1
    text = f"Cleared: {listed(search.cleared, most=12)}"
    if search.status in ("minimal", "masked"):
        left = told(search.unexplained_sigma, search)
        together = "together all at their candidate value" if many else "at its candidate value"
        return f"{text}: {together}, {left} on all {rounding.count(search.n)} documents."
    if search.status == "diffuse":
        return ""
    return f"{text}: each is worth the margin with a probability below 10%, by what was measured."


def beside_text(search: MetricSearch) -> str:
    """Say which settings changed nothing, and which assignments could not run."""
    parts = []
    if search.inert:
        parts.append(
            f"No effect seen, bit-identical scores where asked: {listed(search.inert, most=12)}."
        )
    if search.untestable:
        said = [f"{listed(one.settings)} ({printable(one.reason)})" for one in search.untestable]
        number = len(said)
        noun = "assignment" if number == 1 else "assignments"
        parts.append(f"Could not run, and counts for nothing: {number} {noun}, {said[0]}.")
    return " ".join(parts)


def cost_text(report: BisectReport) -> str:
    """Say what it cost."""
    evaluations = f"{report.evaluations:.1f} full evaluations in {report.probes} probes"
    took = "" if report.seconds is None else f", {duration(report.seconds)}"
    settings = len(report.searches[0].settings)
    alone = 1.05 * settings
    beside = f"; each of {settings} settings by itself would be {alone:.1f}" if settings > 3 else ""
    jobs = f", {report.jobs} at a time" if report.jobs > 1 else ""
    return f"Bisection took {evaluations}{jobs}{took}{beside}."


def facts(search: MetricSearch) -> str:
    """Say on what a search was made."""
    settings = f"{len(search.settings)} setting{'' if len(search.settings) == 1 else 's'}"
    exact = margin_text(search.margin)
    margin = f"margin {exact if len(exact) < 6 else f'{search.margin:.3g}'} sigma"
    if search.unit != SIGMA:
        margin = f"up to {search.margin:.4g} {printable(search.unit)}"
    elif search.coarse:  # an estimate, of which a few digits say enough
        rough = amount(search.margin, 0.0, log_unit=search.log_unit)
        margin = f"margin {rough.removeprefix('+')}"
    more = "" if not search.inside else "; every other setting at reference"
    more += "; largest causes first" if search.coarse else ""
    before = f"; {listed(search.repaired_before)} at reference" if search.repaired_before else ""
    return (
        f"{settings}, {rounding.count(search.n)} documents, {margin}, "
        f"seed {search.seed}{before}{more}"
    )


def shown_roles(culprits: Sequence[GuiltySetting]) -> bool:
    """Whether the culprits' roles tell anything."""
    return any(culprit.role != "additive" for culprit in culprits)
