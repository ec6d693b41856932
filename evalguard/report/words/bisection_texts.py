"""What a bisection found, in words: sentences that a maintainer can act on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from evalguard.core.reports.bisect_report import (
    SIGMA,
    BisectReport,
    MetricSearch,
    Repaired,
)
from evalguard.report.words import rounding
from evalguard.report.words.distribution_texts import distributions_moved_clause
from evalguard.report.words.limit_texts import limit_figures_text
from evalguard.report.words.metric_labels import key_label
from evalguard.report.words.plain_text import printable
from evalguard.report.words.run_costs import format_duration

if TYPE_CHECKING:
    from evalguard.bisect.search_result import Part, Suspect
    from evalguard.core.reports.compare_report import CompareReport
from evalguard.report.words.bisection_drifts import (
    culprit_phrase,
    format_drift,
    is_beyond_reading,
    search_drift_phrase,
    search_drift_text,
)

_MOST_NAMED = 6
_END_REASONS = {
    "interrupted": "it was interrupted",
    "budget": "its budget is spent",
    "failed": "it could not go on",
    "": "it was stopped",
}


def search_subject(search: MetricSearch) -> str:
    """Return what was searched, as ``key_label``."""
    return key_label(search.task, search.filter, search.metric)


def list_names(names: Sequence[str], *, most: int = _MOST_NAMED) -> str:
    """Return "a", "a and b" or "a, b and 3 others"."""
    shown = [printable(name) for name in names[:most]]
    more = len(names) - len(shown)
    if more:
        shown.append(f"{more} other{'s' if more > 1 else ''}")
    if len(shown) < 2:
        return "".join(shown)
    return f"{', '.join(shown[:-1])} and {shown[-1]}"


def search_answer(search: MetricSearch) -> str:
    """Return the answer of one search as a sentence without a full stop."""
    said = {
        "minimal": _found_sentence,
        "masked": _found_sentence,
        "unexplained": _unexplained_sentence,
        "diffuse": _diffuse_sentence,
        "not_reproduced": _not_reproduced_sentence,
        "stopped": _stopped_sentence,
    }[search.status]
    text = said(search)
    if search.inside:
        text = f"Inside {list_names(search.inside)}: {text[:1].lower()}{text[1:]}"
    return f"{text}{_broken_off(search)}"


def list_answers(report: CompareReport) -> tuple[str, ...]:
    """The answers of a bisection, a sentence each; where a drift is within the margin, with how far
    the distributions moved beneath the scores."""
    answers = () if report.bisect is None else report.bisect.answers
    moved = distributions_moved_clause(report)
    within = [one.status == "not_reproduced" and one.unit == SIGMA for one in answers]
    return tuple(
        f"{search_answer(one)}{moved if is_within else ''}."
        for one, is_within in zip(answers, within, strict=True)
    )


def _broken_off(search: MetricSearch) -> str:
    """Why nothing came after an answer; a search that has none says it itself."""
    if not search.ended or search.status == "stopped":
        return ""
    failure = f" ({printable(search.failure)})" if search.failure else ""
    return f"; then {_END_REASONS[search.ended]}{failure}"


def _found_sentence(search: MetricSearch) -> str:
    them = "it" if len(search.culprits) == 1 else "them"
    text = (
        f"The drift of {_drift_phrase(search)} on {search_subject(search)} comes from "
        f"{_culprit_names(search)}; "
        f"without {them}, {_remaining_phrase(search)} left"
    )
    if search.status == "masked":
        text += _masking_clause(search)
    if search.eliminated:
        text += f" (by elimination: without {them} every document scores as the base's, bit by bit)"
    return text + _outside_clause(search)


def _masking_clause(search: MetricSearch) -> str:
    """Say which culprits hide what the rest does; alone one of them may do harm all the same."""
    hiding = [one for one in search.culprits if one.sigma_in_context < 0.0]
    harmful = [c for c in hiding if (c.sigma_alone or 0.0) > 2.0 * (c.alone_error_sigma or 0.0)]
    better = [one.setting for one in hiding if one not in harmful]
    told = []
    if better:
        acts = "acts" if len(better) == 1 else "act"
        told.append(
            f"{list_names(better)} {acts} the other way, and hid part of what the rest does"
        )
    if harmful:
        alone = " and ".join(culprit_phrase(one.sigma_alone or 0.0, search) for one in harmful)
        names, makes = (
            list_names([c.setting for c in harmful]),
            "makes" if len(harmful) == 1 else "make",
        )
        told.append(f"{names} {makes} {alone} alone, and hid part of what the rest does beside it")
    return f" ({'; '.join(told)})" if told else ""


def _culprit_names(search: MetricSearch) -> str:
    """The culprits, and how they act together."""
    names = list_names([culprit.setting for culprit in search.culprits])
    roles = {culprit.role for culprit in search.culprits}
    if roles == {"together"}:
        return f"{names}, which act only together"
    if roles == {"redundant"}:
        return f"{names}, each of which would be enough"
    groups = dict.fromkeys(
        (culprit.role, tuple(sorted((culprit.setting, *culprit.partners))))
        for culprit in search.culprits
        if culprit.partners
    )
    clauses = [
        f"{list_names(members)} act only together"
        if role == "together"
        else f"each of {list_names(members)} would be enough"
        for role, members in groups
    ]
    return f"{names} ({'; '.join(clauses)})" if clauses else names


def _unexplained_sentence(search: MetricSearch) -> str:
    if not search.culprits and search.inside:
        return (
            f"None of its {len(search.settings)} parts could be proven to make the drift of "
            f"{_drift_phrase(search)} on {search_subject(search)} by itself"
            f"{_suspects_clause(search)}"
        )
    if not search.culprits:
        head = f"No setting could be proven to make the drift of {_drift_phrase(search)}"
        return (
            f"{head} on {search_subject(search)}{_suspects_clause(search)}{_outside_clause(search)}"
        )
    verb = "is" if len(search.culprits) == 1 else "are"
    names = list_names([c.setting for c in search.culprits])
    head = f"{names} {verb} proven to make part of the drift of {_drift_phrase(search)} on"
    left = search.unexplained_sigma
    if left is not None and abs(left) <= search.margin:
        them = "it" if len(search.culprits) == 1 else "them"
        return (
            f"{head} {search_subject(search)}; without {them}, {_remaining_phrase(search)} "
            "left, inside "
            f"the margin, but whether that is all could not be told{_suspects_clause(search)}"
            f"{_outside_clause(search)}"
        )
    return (
        f"{head} {search_subject(search)}, and {_remaining_phrase(search)} left that no "
        "setting could "
        f"be proven to make{_suspects_clause(search)}{_outside_clause(search)}"
    )


def _diffuse_sentence(search: MetricSearch) -> str:
    if search.inside:
        return (
            f"All of its {len(search.settings)} parts make the drift of {_drift_phrase(search)} on "
            f"{search_subject(search)} together, none of them the margin's worth by itself"
        )
    text = (
        f"No single setting makes the drift of {_drift_phrase(search)} on "
        f"{search_subject(search)}: it "
        f"is the sum of many small ones, none of which is worth the margin by itself"
    )
    parts = sorted(search.parts, key=lambda part: -abs(part.sigma))
    shown = [f"{list_names(part.settings, most=4)} ({_part_drift(part, search)})" for part in parts]
    return f"{text}. By groups: {'; '.join(shown)}" if shown else text


def _not_reproduced_sentence(search: MetricSearch) -> str:
    count = len(search.settings)
    names = list_names(search.settings, most=3)
    settings = f"{names} moves" if count == 1 else f"The {count} settings ({names}) move"
    text = f"{settings} {search_subject(search)} by {_drift_phrase(search)} only, within the margin"
    return text + _outside_clause(search)


def _stopped_sentence(search: MetricSearch) -> str:
    """What is known so far; a search that did not end names nobody that is not proven."""
    text = f"No answer for {search_subject(search)} yet: {_END_REASONS[search.ended]}"
    if search.failure:
        text += f" ({printable(search.failure)})"
    if search.culprits:
        verb = "is" if len(search.culprits) == 1 else "are"
        text += f"; {list_names([c.setting for c in search.culprits])} {verb} proven so far"
    return text + _suspects_clause(search)


def _suspects_clause(search: MetricSearch) -> str:
    if not search.suspects:
        return ""
    shown = [f"{printable(s.name)} ({_evidence_text(s)})" for s in search.suspects]
    return f"; suspected, not proven: {list_names(shown)}"


def _evidence_text(suspect: Suspect) -> str:
    """How probable it is, and whether the paired test of its own effect says chance."""
    share = f"{100 * suspect.probability:.0f}%"
    return share if suspect.p_value is None else f"{share}, own paired p = {suspect.p_value:.2g}"


def _outside_clause(search: MetricSearch) -> str:
    if abs(search.outside_sigma) < search.margin / 10.0:
        return ""
    outside = search_drift_phrase(search.outside_sigma, search)
    lies = "lies" if _is_factor(search.outside_sigma, search) else "lie"
    return (
        f"; {outside} {lies} outside the settings: the "
        "model with all of them at reference is not the base"
    )


def _drift_phrase(search: MetricSearch) -> str:
    return search_drift_phrase(search.drift_sigma, search)


def _remaining_phrase(search: MetricSearch) -> str:
    """What is left, with its verb: "+0.06 sigma are"."""
    left = search_drift_phrase(search.unexplained_sigma, search)
    return f"{left} {'is' if _is_factor(search.unexplained_sigma, search) else 'are'}"


def _is_factor(sigma: float | None, search: MetricSearch) -> bool:
    """Whether a drift is said as "a factor of 5.1e+08", which is one thing."""
    sigmas = sigma is not None and search.unit == SIGMA
    return sigmas and is_beyond_reading(sigma or 0.0, search.log_unit)


def _part_drift(part: Part, search: MetricSearch) -> str:
    return search_drift_text(part.sigma, part.error_sigma, search)


def repaired_text(repaired: Repaired | None) -> str:
    """Say what the gate makes of the candidate without its culprits; "" without culprits."""
    if repaired is None:
        return ""
    head = f"With {list_names(repaired.reset)} at reference"
    if repaired.failure:
        return f"{head}, nothing more is known: {printable(repaired.failure)}."
    gated = [metric for metric in repaired.metrics if metric.gated]
    known = [m for m in gated if m.sigma is not None]
    worst = max(known, key=lambda m: m.sigma or 0.0, default=None)
    limits = limit_figures_text(repaired.limits)
    if worst is None:
        return f"{head}, the gate says {repaired.state}{limits}."
    where = (
        f"{format_drift(worst.sigma, 0.0, 0.0)} sigma on "
        f"{printable(f'{worst.task} {worst.metric}')}"
    )
    if repaired.passed:
        noun = "the gated metric" if len(gated) == 1 else f"all {len(gated)} gated metrics"
        return f"{head}, the gate lets {noun} pass; the largest drift is {where}{limits}."
    return f"{head}, the gate still says {repaired.state}; the largest drift is {where}{limits}."


def cleared_text(search: MetricSearch) -> str:
    """Say which settings are cleared, and by what."""
    if not search.cleared:
        return ""
    many = len(search.cleared) > 1
    text = f"Cleared of {search_subject(search)}: {list_names(search.cleared, most=12)}"
    if search.status in ("minimal", "masked"):
        left = search_drift_phrase(search.unexplained_sigma, search)
        together = "together all at their candidate value" if many else "at its candidate value"
        return f"{text}: {together}, {left} on all {rounding.format_count(search.n)} documents."
    if search.status == "diffuse":
        return ""
    one = "each" if many else "it"
    return f"{text}: {one} is worth the margin with a probability below 10%, by what was measured."


def beside_text(search: MetricSearch) -> str:
    """Say which settings changed nothing, and which assignments could not run."""
    parts = []
    if search.inert:
        parts.append(
            f"No effect seen, bit-identical scores where asked: "
            f"{list_names(search.inert, most=12)}."
        )
    if search.untestable:
        said = [
            f"{list_names(one.settings)} ({printable(one.reason)})" for one in search.untestable
        ]
        number = len(said)
        noun = "assignment" if number == 1 else "assignments"
        parts.append(f"Could not run, and counts for nothing: {number} {noun}, {said[0]}.")
    return " ".join(parts)


def cost_text(report: BisectReport) -> str:
    """Say what it cost."""
    evaluations = f"{report.evaluations:.1f} full evaluations in {report.probes} probes"
    took = "" if report.seconds is None else f", {format_duration(report.seconds)}"
    settings = len(report.searches[0].settings)
    alone = 1.05 * settings
    beside = f"; each of {settings} settings by itself would be {alone:.1f}" if settings > 3 else ""
    jobs = f", {report.jobs} at a time" if report.jobs > 1 else ""
    return f"Bisection took {evaluations}{jobs}{took}{beside}.{_written_text(report)}"


def _written_text(report: BisectReport) -> str:
    """How much was generated, beside one setting at a time; "" where that is not known."""
    found = [one for one in report.searches if one.written and one.one_at_a_time]
    if not found:
        return ""
    unit, spent, alone = "tokens", 0, 0
    if any(written_tokens(one) is None for one in found):
        unit = "characters"
    for one in found:
        assert one.written is not None
        assert one.one_at_a_time is not None
        both = written_tokens(one) or (0, 0)
        if unit == "characters":
            both = one.written.characters, one.one_at_a_time.characters
        spent, alone = spent + both[0], alone + both[1]
    return f" It generated {spent:,} {unit}; one setting at a time would have taken {alone:,}."


def written_tokens(search: MetricSearch) -> tuple[int, int] | None:
    """Tokens that were generated, and that one setting at a time would have taken, about."""
    if search.written is None or search.one_at_a_time is None:
        return None
    spent, alone = search.written.tokens, search.one_at_a_time.tokens
    return None if spent is None or alone is None else (spent, alone)
