"""The culprits of a bisection with their shares, in words.

A search inside a culprit asks about it alone, all else at reference: what its parts make there
need not be what it makes beside other culprits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from evalguard.core.reports.bisect_report import (
    SIGMA,
    BisectReport,
    GuiltySetting,
    MetricSearch,
)
from evalguard.report.words import rounding
from evalguard.report.words.bisection_drifts import (
    culprit_phrase,
    drift_phrase,
    is_beyond_reading,
    search_drift_phrase,
    search_drift_text,
)
from evalguard.report.words.bisection_texts import list_names
from evalguard.report.words.metric_labels import margin_text
from evalguard.report.words.plain_text import printable

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
    told: list[str] = []
    for search in searches:
        for group in _parted_groups(found, search.culprits):
            told.append(_group_text(found, search, group))
    shown, more = told[:_MOST_CULPRITS], len(told) - _MOST_CULPRITS
    text = ", ".join(shown) + (f" and {more} more" if more > 0 else "")
    first, last = searches[0], searches[-1]
    if first.unit != SIGMA:
        text += f" {printable(first.unit)}"
    if not all(map(are_shares, searches)):
        return text
    shares = sum(one.shapley_sigma for search in searches for one in search.culprits)
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
    text = ", ".join(f"{printable(one.setting)} {_share(search, one)}" for one in group)
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
        left = inner.unexplained_sigma or 0.0
        rest = (
            ""
            if _is_near(left, 0.0, inner)
            else f", {search_drift_text(left, 0.0, inner)} in its other parts"
        )
        return f"{text} (in {them} {', '.join(parts)}{rest})"
    parts = [printable(one.setting) for one in _leaves(found, inner)]
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
    told = (("alone", culprit.sigma_alone), ("without it", _drift_without(search, culprit)))
    known = [f"{name} {culprit_phrase(d, search)}" for name, d in told if d is not None]
    return f"({', '.join(known) or 'neither measured alone nor without it'})"


def _drift_without(search: MetricSearch, culprit: GuiltySetting) -> float | None:
    """The drift that was measured with it at reference and the others at candidate; None: none."""
    if len(search.culprits) == 1:
        return search.unexplained_sigma
    others = (set(search.settings), {one.setting for one in search.culprits})
    for wanted in (one - {culprit.setting} for one in others):
        for probe in search.measured:
            if set(probe.settings) == wanted and probe.documents_so_far == search.n:
                return probe.drift_sigma
    return None


def are_shares(search: MetricSearch) -> bool:
    """Whether what its culprits make are shares of its drift: of its sign, none larger than it.

    Where settings act on each other they need not be; and how many times the base's a metric is
    says of several settings no sum.
    """
    whole, shares = search.drift_sigma, [one.shapley_sigma for one in search.culprits]
    if whole is None:
        return True
    if len(shares) > 1 and any(is_beyond_reading(one, search.log_unit) for one in shares):
        return False
    sign = -1.0 if whole < 0.0 else 1.0
    least = -(_ROUNDING if search.unit == SIGMA else _ROUNDING * search.margin)
    return all(
        sign * one >= least and (sign * one <= abs(whole) or _is_near(one, whole, search))
        for one in shares
    )


def adds_up(inner: MetricSearch, group: Sequence[GuiltySetting]) -> bool:
    """Whether what a search inside culprits found is, with what is left, what those make."""
    whole = sum(culprit.shapley_sigma for culprit in group)
    parts = sum(one.shapley_sigma for one in inner.culprits) + (inner.unexplained_sigma or 0.0)
    return _is_near(parts, whole, inner)


def _is_near(parts: float, whole: float, search: MetricSearch) -> bool:
    """Whether a sum is what it is to be, but for rounding and for the metric's own curvature."""
    if parts == whole:  # two infinities have no difference
        return True
    rounding_error = _ROUNDING * search.margin if search.unit != SIGMA else _ROUNDING
    return abs(parts - whole) <= max(rounding_error, _NEARLY * abs(whole))


def sums_text(found: BisectReport, search: MetricSearch) -> str:
    """Say why the shares of a search do not add up to what they explain; "" where they do."""
    outer = [c for one in found.searches for c in one.culprits if c.setting in search.inside]
    if search.inside and outer and not adds_up(search, outer):
        made = sum(one.shapley_sigma for one in outer)
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
    more = "" if not search.inside else "; every other setting at reference"
    more += "; largest causes first" if search.coarse else ""
    before = (
        f"; {list_names(search.repaired_before)} at reference" if search.repaired_before else ""
    )
    return (
        f"{settings}, {rounding.format_count(search.n)} documents, {margin}, "
        f"seed {search.seed}{before}{more}"
    )
