"""A bisection in words: its answer, its culprits with their shares, drifts in their units.

A search inside a culprit asks about it alone, all else at reference: what its parts make there
need not be what it makes beside other culprits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from math import inf, isfinite
from typing import TYPE_CHECKING

from evalguard.bisect.bisect_report import BisectReport, GuiltySetting, MetricSearch, Repaired
from evalguard.core.verdict import SIGMA
from evalguard.page import rounding
from evalguard.page.phrases import list_names
from evalguard.page.safe_text import printable
from evalguard.report.distribution_texts import distributions_moved_clause
from evalguard.report.limit_texts import limit_figures_text
from evalguard.report.metric_labels import key_label, margin_text
from evalguard.report.run_costs import format_duration

if TYPE_CHECKING:
    from evalguard.bisect.search.search_result import Part, Suspect
    from evalguard.core.compare_report import CompareReport

_BEYOND_READING = 1e5  # sigma


def format_drift(
    sigma: float | None, error: float, margin: float, *, log_unit: float = 0.0, unit: str = SIGMA
) -> str:
    """Return a drift with a sign, and no more digits than its standard error supports.

    Of a metric that is an exponential (``MetricSearch.log_unit``) a drift beyond reading is shown
    as how many times the base's the metric is: "x5.1e+08". A divergence, of any other ``unit`` than
    sigma, is shown to three digits.
    """
    if sigma is None:
        return "-"
    if unit != SIGMA:
        return f"{sigma:+.3g}"
    if is_beyond_reading(sigma, log_unit):
        return f"x{_factor(sigma, log_unit)}"
    ends = (sigma - 2.0 * error, sigma + 2.0 * error)
    return rounding.format_sigma_interval(sigma, ends if error else None, margin=margin)[0]


def drift_phrase(
    sigma: float | None,
    margin: float,
    *,
    log_unit: float = 0.0,
    unit: str = SIGMA,
    sigmas: str = " sigma",
) -> str:
    """Return a drift as it stands in a sentence: "+1.47 sigma", "a factor of 5.1e+08".

    Args:
        sigmas: what stands behind a number of standard errors.
    """
    if unit == SIGMA and sigma is not None and is_beyond_reading(sigma, log_unit):
        return f"a factor of {_factor(sigma, log_unit)}"
    text = format_drift(sigma, 0.0, margin, log_unit=log_unit, unit=unit)
    if unit != SIGMA:
        return f"{text} {printable(unit)}"
    return f"{text}{sigmas}"


def _factor(sigma: float, log_unit: float) -> str:
    return f"{1.0 + sigma * log_unit:.2g}"


def is_beyond_reading(sigma: float, log_unit: float) -> bool:
    """Whether a drift is so large that its number says nothing more."""
    return log_unit > 0.0 and isfinite(sigma) and sigma >= _BEYOND_READING


def is_in_factors(search: MetricSearch) -> bool:
    """Whether what its culprits do is told in factors: for one of them sigma is beyond reading.

    Sigma of some beside factors of others could not be compared.
    """
    drifts = [drift for c in search.culprits for drift in (c.sigma_alone, c.sigma_in_context)]
    sizes = [abs(drift) for drift in drifts if drift is not None]
    return search.unit == SIGMA and any(is_beyond_reading(size, search.log_unit) for size in sizes)


def culprit_phrase(sigma: float, search: MetricSearch) -> str:
    """A drift that a culprit makes, as it stands in a sentence beside those of the others."""
    factor = 1.0 + sigma * search.log_unit
    if is_in_factors(search) and isfinite(factor) and factor > 0.0:
        return f"a factor of {factor:.2g}"
    return search_drift_phrase(sigma, search)


def culprit_figures(culprit: GuiltySetting, search: MetricSearch) -> tuple[str, str]:
    """What a culprit does alone, and beside the others; where that is told in factors: how many
    times the metric of the base, and of the candidate without it, the metric is with it."""
    alone, beside = culprit.sigma_alone, culprit.sigma_in_context
    error = culprit.alone_error_sigma or 0.0
    texts = (
        search_drift_text(alone, error, search),
        search_drift_text(beside, culprit.error_sigma, search),
    )
    if not is_in_factors(search):
        return texts
    whole = (search.drift_sigma or 0.0) - (search.unexplained_sigma or 0.0)
    with_it, without = (1.0 + effect * search.log_unit for effect in (whole, whole - beside))
    factors = (
        1.0 + (alone or 0.0) * search.log_unit,
        with_it / without if without > 0.0 else inf,
    )
    known = (alone is not None, isfinite(beside))
    return tuple(  # type: ignore[return-value]
        f"x{factor:.2g}" if is_known and isfinite(factor) and factor > 0.0 else text
        for factor, is_known, text in zip(factors, known, texts, strict=True)
    )


def search_drift_text(drift: float | None, error: float, search: MetricSearch) -> str:
    """A drift of a search, as ``format_drift``."""
    return format_drift(drift, error, search.margin, log_unit=search.log_unit, unit=search.unit)


def search_drift_phrase(
    drift: float | None, search: MetricSearch, *, sigmas: str = " sigma"
) -> str:
    """A drift of a search as it stands in a sentence."""
    return drift_phrase(
        drift, search.margin, log_unit=search.log_unit, unit=search.unit, sigmas=sigmas
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


def search_answer(search: MetricSearch) -> str:
    """Return the answer of one search as a sentence without a full stop."""
    writers = {
        "minimal": _found_sentence,
        "masked": _found_sentence,
        "unexplained": _unexplained_sentence,
        "diffuse": _diffuse_sentence,
        "not_reproduced": _not_reproduced_sentence,
        "stopped": _stopped_sentence,
    }[search.status]
    text = writers(search)
    if search.inside:
        text = f"Inside {list_names(search.inside)}: {text[:1].lower()}{text[1:]}"
    return f"{text}{_broken_off(search)}"


def list_answers(report: CompareReport) -> tuple[str, ...]:
    """The answers of a bisection, a sentence each; where a drift is within the margin, with how far
    the distributions moved beneath the scores."""
    answers = () if report.bisect is None else report.bisect.answers
    moved = distributions_moved_clause(report)
    within = [answer.status == "not_reproduced" and answer.unit == SIGMA for answer in answers]
    return tuple(
        f"{search_answer(answer)}{moved if is_within else ''}."
        for answer, is_within in zip(answers, within, strict=True)
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
    hiding = [culprit for culprit in search.culprits if culprit.sigma_in_context < 0.0]
    harmful = [c for c in hiding if (c.sigma_alone or 0.0) > 2.0 * (c.alone_error_sigma or 0.0)]
    better = [culprit.setting for culprit in hiding if culprit not in harmful]
    clauses = []
    if better:
        acts = "acts" if len(better) == 1 else "act"
        clauses.append(
            f"{list_names(better)} {acts} the other way, and hid part of what the rest does"
        )
    if harmful:
        alone = " and ".join(
            culprit_phrase(culprit.sigma_alone or 0.0, search) for culprit in harmful
        )
        names, makes = (
            list_names([c.setting for c in harmful]),
            "makes" if len(harmful) == 1 else "make",
        )
        clauses.append(
            f"{names} {makes} {alone} alone, and hid part of what the rest does beside it"
        )
    return f" ({'; '.join(clauses)})" if clauses else ""


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
    unexplained = search.unexplained_sigma
    if unexplained is not None and abs(unexplained) <= search.margin:
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
    remaining = search_drift_phrase(search.unexplained_sigma, search)
    return f"{remaining} {'is' if _is_factor(search.unexplained_sigma, search) else 'are'}"


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
        remaining = search_drift_phrase(search.unexplained_sigma, search)
        together = "together all at their candidate value" if many else "at its candidate value"
        return (
            f"{text}: {together}, {remaining} on all {rounding.format_count(search.n)} documents."
        )
    if search.status == "diffuse":
        return ""
    pronoun = "each" if many else "it"
    return (
        f"{text}: {pronoun} is worth the margin with a probability below 10%, by what was measured."
    )


def beside_text(search: MetricSearch) -> str:
    """Say which settings changed nothing, and which assignments could not run."""
    parts = []
    if search.inert:
        parts.append(
            f"No effect seen, bit-identical scores where asked: "
            f"{list_names(search.inert, most=12)}."
        )
    if search.untestable:
        untestable = [
            f"{list_names(assignment.settings)} ({printable(assignment.reason)})"
            for assignment in search.untestable
        ]
        number = len(untestable)
        noun = "assignment" if number == 1 else "assignments"
        parts.append(f"Could not run, and counts for nothing: {number} {noun}, {untestable[0]}.")
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
    generating = [result for result in report.searches if result.written and result.one_at_a_time]
    if not generating:
        return ""
    unit, spent, alone = "tokens", 0, 0
    if any(written_tokens(result) is None for result in generating):
        unit = "characters"
    for result in generating:
        assert result.written is not None
        assert result.one_at_a_time is not None
        both = written_tokens(result) or (0, 0)
        if unit == "characters":
            both = result.written.characters, result.one_at_a_time.characters
        spent, alone = spent + both[0], alone + both[1]
    return f" It generated {spent:,} {unit}; one setting at a time would have taken {alone:,}."


def written_tokens(search: MetricSearch) -> tuple[int, int] | None:
    """Tokens that were generated, and that one setting at a time would have taken, about."""
    if search.written is None or search.one_at_a_time is None:
        return None
    spent, alone = search.written.tokens, search.one_at_a_time.tokens
    return None if spent is None or alone is None else (spent, alone)


_MOST_CULPRITS = 4
_ROUNDING = 0.05  # sigma
_NEARLY = 0.1  # of a sum


def shares_text(found: BisectReport, searches: Sequence[MetricSearch]) -> str:
    """Return "a +1.30 (in it b +1.08, +0.26 in its other parts), c +0.4": each with its share.

    Shares of parts are shown where they add up to that of the whole; else what each makes by
    itself, and that this is not the sum. What is no share of the drift is told by two drifts that
    were measured: "a (alone a factor of 5e+08, without it +0.3 sigma)".

    Args:
        searches: of one metric, none of them inside a culprit.
    """
    groups: list[str] = []
    for search in searches:
        for group in _parted_groups(found, search.culprits):
            groups.append(_group_text(found, search, group))
    shown, hidden = groups[:_MOST_CULPRITS], len(groups) - _MOST_CULPRITS
    text = ", ".join(shown) + (f" and {hidden} more" if hidden > 0 else "")
    first, last = searches[0], searches[-1]
    if first.unit != SIGMA:
        text += f" {printable(first.unit)}"
    if not all(map(are_shares, searches)):
        return text
    shares = sum(culprit.shapley_sigma for search in searches for culprit in search.culprits)
    explained = (first.drift_sigma or 0.0) - (last.unexplained_sigma or 0.0)
    if _is_near(shares, explained, first):
        return text
    return f"{text} (together {search_drift_text(explained, 0.0, first)}: they act on each other)"


def _inner_search(found: BisectReport, setting: str) -> MetricSearch | None:
    return next((search for search in found.searches if setting in search.inside), None)


def _parted_groups(
    found: BisectReport, culprits: Sequence[GuiltySetting]
) -> list[list[GuiltySetting]]:
    """The culprits, those together that were searched inside together."""
    groups: dict[object, list[GuiltySetting]] = {}
    for culprit in culprits:
        inner = _inner_search(found, culprit.setting)
        groups.setdefault(culprit.setting if inner is None else inner.inside, []).append(culprit)
    return list(groups.values())


def _group_text(found: BisectReport, search: MetricSearch, group: Sequence[GuiltySetting]) -> str:
    text = ", ".join(f"{printable(culprit.setting)} {_share(search, culprit)}" for culprit in group)
    inner = _inner_search(found, group[0].setting)
    if inner is None:
        return text
    them = "it" if len(group) == 1 else "them"
    if inner.status == "diffuse":
        return f"{text} (all {len(inner.settings)} parts of {them} together)"
    if inner.status not in ("minimal", "masked"):
        return f"{text} (no single part of {them} is proven)"
    if adds_up(inner, group) and are_shares(inner) and are_shares(search):
        parts = [_group_text(found, inner, part) for part in _parted_groups(found, inner.culprits)]
        unexplained = inner.unexplained_sigma or 0.0
        rest = (
            ""
            if _is_near(unexplained, 0.0, inner)
            else f", {search_drift_text(unexplained, 0.0, inner)} in its other parts"
        )
        return f"{text} (in {them} {', '.join(parts)}{rest})"
    parts = [printable(leaf.setting) for leaf in _leaves(found, inner)]
    return f"{text} (in {them} {list_names(parts, most=_MOST_CULPRITS)})"


def _leaves(found: BisectReport, search: MetricSearch) -> list[GuiltySetting]:
    """The culprits of a search, those with guilty parts replaced by these."""
    leaves: list[GuiltySetting] = []
    for group in _parted_groups(found, search.culprits):
        inner = _inner_search(found, group[0].setting)
        settled = inner is not None and inner.status in ("minimal", "masked")
        leaves += _leaves(found, inner) if inner is not None and settled else group
    return leaves


def _share(search: MetricSearch, culprit: GuiltySetting) -> str:
    """Its share, rounded as in the table; of what is none, the drifts alone and without it."""
    if are_shares(search):
        return search_drift_text(culprit.shapley_sigma, culprit.error_sigma, search)
    drifts = (("alone", culprit.sigma_alone), ("without it", _drift_without(search, culprit)))
    known = [f"{name} {culprit_phrase(d, search)}" for name, d in drifts if d is not None]
    return f"({', '.join(known) or 'neither measured alone nor without it'})"


def _drift_without(search: MetricSearch, culprit: GuiltySetting) -> float | None:
    """The drift that was measured with it at reference and the others at candidate; None: none."""
    if len(search.culprits) == 1:
        return search.unexplained_sigma
    starts = (set(search.settings), {guilty.setting for guilty in search.culprits})
    for wanted in (start - {culprit.setting} for start in starts):
        for probe in search.measured:
            if set(probe.settings) == wanted and probe.documents_so_far == search.n:
                return probe.drift_sigma
    return None


def are_shares(search: MetricSearch) -> bool:
    """Whether what its culprits make are shares of its drift: of its sign, none larger than it.

    Where settings act on each other they need not be; and how many times the base's a metric is
    says of several settings no sum.
    """
    whole, shares = search.drift_sigma, [culprit.shapley_sigma for culprit in search.culprits]
    if whole is None:
        return True
    if len(shares) > 1 and any(is_beyond_reading(share, search.log_unit) for share in shares):
        return False
    sign = -1.0 if whole < 0.0 else 1.0
    least = -(_ROUNDING if search.unit == SIGMA else _ROUNDING * search.margin)
    return all(
        sign * share >= least and (sign * share <= abs(whole) or _is_near(share, whole, search))
        for share in shares
    )


def adds_up(inner: MetricSearch, group: Sequence[GuiltySetting]) -> bool:
    """Whether what a search inside culprits found is, with what is left, what those make."""
    whole = sum(culprit.shapley_sigma for culprit in group)
    parts = sum(culprit.shapley_sigma for culprit in inner.culprits) + (
        inner.unexplained_sigma or 0.0
    )
    return _is_near(parts, whole, inner)


def _is_near(parts: float, whole: float, search: MetricSearch) -> bool:
    """Whether a sum is what it is to be, but for rounding and for the metric's own curvature."""
    if parts == whole:  # two infinities have no difference
        return True
    rounding_error = _ROUNDING * search.margin if search.unit != SIGMA else _ROUNDING
    return abs(parts - whole) <= max(rounding_error, _NEARLY * abs(whole))


def sums_text(found: BisectReport, search: MetricSearch) -> str:
    """Say why the shares of a search do not add up to what they explain; "" where they do."""
    outer = [
        c
        for outer_search in found.searches
        for c in outer_search.culprits
        if c.setting in search.inside
    ]
    if search.inside and outer and not adds_up(search, outer):
        made = sum(culprit.shapley_sigma for culprit in outer)
        if math.isnan(made):  # of infinities: nobody knows whether they add up
            return ""
        whole = search_drift_phrase(made, search)
        alone = search_drift_phrase(search.drift_sigma, search)
        verb = "makes" if len(search.inside) == 1 else "make"
        return (
            f"By itself, all else at reference, {list_names(search.inside)} {verb} {alone}, beside "
            f"the other culprits {whole}: they act on each other, and so do not add up."
        )
    return ""


def search_facts(search: MetricSearch) -> str:
    """Say on what a search was made."""
    settings = f"{len(search.settings)} setting{'' if len(search.settings) == 1 else 's'}"
    exact = margin_text(search.margin)
    margin = f"margin {exact if len(exact) < 6 else f'{search.margin:.3g}'} sigma"
    if search.unit != SIGMA:
        margin = f"up to {search.margin:.4g} {printable(search.unit)}"
    elif search.coarse:  # an estimate, of which a few digits say enough
        rough = drift_phrase(search.margin, 0.0, log_unit=search.log_unit)
        margin = f"margin {rough.removeprefix('+')}"
    conditions = "" if not search.inside else "; every other setting at reference"
    conditions += "; largest causes first" if search.coarse else ""
    before = (
        f"; {list_names(search.repaired_before)} at reference" if search.repaired_before else ""
    )
    return (
        f"{settings}, {rounding.format_count(search.n)} documents, {margin}, "
        f"seed {search.seed}{before}{conditions}"
    )
