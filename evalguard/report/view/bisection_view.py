"""BisectionView: which settings make the drift, with every measurement that says so."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from evalguard.core.reports.bisect_report import (
    SIGMA,
    BisectReport,
    GuiltySetting,
    Measured,
    MetricSearch,
)
from evalguard.core.settings import Value
from evalguard.report.table import Table
from evalguard.report.view.prices_view import PricesView, prices_view
from evalguard.report.view.side_view import value_text
from evalguard.report.words import rounding
from evalguard.report.words.bisection_drifts import (
    culprit_figures,
    is_in_factors,
    search_drift_text,
)
from evalguard.report.words.bisection_texts import (
    beside_text,
    cleared_text,
    cost_text,
    list_names,
    repaired_text,
    search_answer,
    search_subject,
)
from evalguard.report.words.culprit_shares import are_shares, search_facts, sums_text
from evalguard.report.words.plain_text import printable

# Targets whose null is what comes with the checkpoint itself.
_TARGETS_OF_MODEL = ("weights:", "module:", "model_args.tokenizer")
_LEGEND = " of each alone, beside the other culprits, and as its share (Shapley)."


@dataclass(frozen=True, slots=True, kw_only=True)
class CulpritView:
    """A guilty setting; ``change`` is "reference -> candidate", the drifts in its search's unit.

    ``share`` is "-" where what the culprits make are no shares of the drift.

    ``alone`` begins with "~" where it was measured on part of the documents. ``number`` is the
    share (Shapley) as a number.
    """

    setting: str
    target: str
    change: str
    alone: str
    beside: str
    share: str
    role: str
    number: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeView:
    """One measurement of a search.

    Attributes:
        settings: those at their candidate value, all others at reference.
        documents: how many are scored under them in all.
        drift: in the search's unit; "-" if they were not scored. ``sigma`` and ``error`` as
            numbers, None likewise.
        outcome: "scored", or why not in a word; ``reason`` says why.
        cost: in full evaluations; ``evaluations`` as a number.
    """

    number: int
    settings: tuple[str, ...]
    documents: str
    drift: str
    outcome: str
    reason: str
    cost: str
    sigma: float | None
    error: float | None
    evaluations: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchView:
    """One search: ``title``, ``facts`` it was made on, culprits and what else is said of others.

    ``unit``: of its drifts, "sigma" or that of a limit's figure.
    ``answer`` is its result as a sentence; ``drift``, of all its settings at their candidate value,
    is what it explains, on so many ``documents``.
    ``cleared`` and ``beside`` are sentences, "" where there is nothing to say.
    """

    title: str
    status: str
    facts: str
    answer: str
    drift: str
    documents: str
    margin: float
    unit: str
    settings: tuple[str, ...]
    culprits: tuple[CulpritView, ...]
    cleared: str
    beside: str
    probes: tuple[ProbeView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FixView:
    """What repairs the candidate: a line, and lines of a guard file; () where a file holds them.

    ``where`` is the place of what they replace, "configs/demo.yaml:24", "" where unknown.
    """

    head: str
    where: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BisectionView:
    """A bisection.

    Attributes:
        searches: in the order in which they were made.
        legend: of the tables of culprits, "" where there is none.
        sentences: what the gate makes of the repaired candidate, notes, the cost.
        guilty: names of all culprits.
        fix: None where there is nothing to repair.
        proof, resume: commands, "" where there is none.
        prices: of a quantised candidate, what modules win back; None where that is not known.
    """

    status: str
    searches: tuple[SearchView, ...]
    legend: str
    sentences: tuple[str, ...]
    guilty: tuple[str, ...]
    fix: FixView | None
    proof: str
    resume: str
    prices: PricesView | None


def group_by_metric(searches: Sequence[SearchView]) -> list[list[SearchView]]:
    """Return searches of the same thing, one after another, together.

    Each was made with the culprits of those before at reference, so that they share one table.
    """
    found: list[list[SearchView]] = []
    for search in searches:
        same = found and found[-1][-1].title == search.title
        if same and found[-1][-1].unit == search.unit:
            found[-1].append(search)
        else:
            found.append([search])
    return found


def culprit_table(culprits: Sequence[CulpritView]) -> Table:
    """Return a table of them, with their roles where these tell anything."""
    roles = any(one.role != "additive" for one in culprits)
    return Table(
        headings=["setting", "base -> candidate", "alone", "beside", "share", *["role"] * roles],
        rows=[
            [one.setting, one.change, one.alone, one.beside, one.share, *[one.role] * roles]
            for one in culprits
        ],
        right=(2, 3, 4),
        leaving=(),
        giving_way=1,
    )


def bisection_view(found: BisectReport | None) -> BisectionView | None:
    """Return a bisection as texts; None where there was none."""
    if found is None:
        return None
    texts = (repaired_text(found.repaired), *found.notes, cost_text(found))
    return BisectionView(
        status=found.status,
        searches=tuple(_search_view(found, search) for search in found.searches),
        legend=_legend([search for search in found.searches if search.culprits]),
        sentences=tuple(printable(text) for text in texts if text),
        guilty=tuple(printable(culprit.setting) for culprit in found.culprits),
        fix=_fix_view(found),
        proof=printable(found.proof),
        resume=printable(found.resume),
        prices=prices_view(found.prices),
    )


def _legend(searches: Sequence[MetricSearch]) -> str:
    if not searches:
        return ""
    units = {printable(search.unit) for search in searches}
    what = "Sigma" if units == {SIGMA} else _search_legend(units)
    what += " (x: how many times the metric is)" if any(map(is_in_factors, searches)) else ""
    partly = any(_is_partial(culprit) for search in searches for culprit in search.culprits)
    return what + _LEGEND + (" ~: on part of the documents." if partly else "")


def _search_legend(units: set[str]) -> str:
    """What the columns hold where not all of them are in sigma."""
    others = " or ".join(sorted(units - {SIGMA}))
    return f"Divergence ({others})" if SIGMA not in units else f"Sigma, or divergence ({others}),"


def _fix_view(found: BisectReport) -> FixView | None:
    if not found.fix:
        return None
    where = printable(found.fix_where)
    if found.derived:
        what = "holds the base and the repaired candidate"
        return FixView(head=f"The repair: {where} {what}.", where=where, lines=())
    head = f"The repair, in {where}:" if where else "The repair:"
    return FixView(head=head, where=where, lines=tuple(map(printable, found.fix.split("\n"))))


def _search_view(found: BisectReport, search: MetricSearch) -> SearchView:
    head = f"Inside {list_names(search.inside)}" if search.inside else "Bisection"
    return SearchView(
        title=f"{head} of {search_subject(search)}",
        status=search.status,
        facts=search_facts(search),
        answer=f"{search_answer(search)}.",
        drift=search_drift_text(search.drift_sigma, 0.0, search),
        documents=rounding.format_count(search.n),
        margin=search.margin,
        unit=printable(search.unit),
        settings=tuple(map(printable, search.settings)),
        culprits=tuple(_culprit_view(culprit, search) for culprit in search.culprits),
        cleared=cleared_text(search),
        beside=" ".join(filter(None, (sums_text(found, search), beside_text(search)))),
        probes=tuple(_probe_view(n, probe, search) for n, probe in enumerate(search.measured, 1)),
    )


def _culprit_view(culprit: GuiltySetting, search: MetricSearch) -> CulpritView:
    alone, beside = culprit_figures(culprit, search)
    share = search_drift_text(culprit.shapley_sigma, culprit.error_sigma, search)
    return CulpritView(
        setting=printable(culprit.setting),
        target=printable(culprit.target),
        change=f"{_value(culprit.reference, culprit)} -> {_value(culprit.candidate, culprit)}",
        alone=f"~{alone}" if _is_partial(culprit) else alone,
        beside=beside,
        share=share if are_shares(search) else "-",
        role=culprit.role,
        number=culprit.shapley_sigma,
    )


def _value(value: Value, culprit: GuiltySetting) -> str:
    """A value in words, where null stands for what a model has by itself."""
    if isinstance(value, dict) and culprit.target.startswith("module:"):
        arguments = value.get("model_args")
        where = arguments.get("pretrained") if isinstance(arguments, dict) else None
        return f"{value_text(where)} with its settings"
    if value is not None:
        return value_text(value)
    if culprit.target.startswith(_TARGETS_OF_MODEL):
        return "its own"
    return "not set" if culprit.target.startswith("env.") else value_text(value)


def _is_partial(culprit: GuiltySetting) -> bool:
    """Whether what it does alone was measured on some of the documents only."""
    return culprit.sigma_alone is not None and culprit.alone_share < 1.0


def _probe_view(number: int, probe: Measured, search: MetricSearch) -> ProbeView:
    sigma, error = probe.drift_sigma, probe.error_sigma
    return ProbeView(
        number=number,
        settings=tuple(map(printable, probe.settings)),
        documents=(
            f"{rounding.format_count(probe.documents_so_far)} of {rounding.format_count(search.n)}"
        ),
        drift=search_drift_text(sigma, error or 0.0, search),
        outcome=probe.outcome,
        reason=printable(probe.reason),
        cost=f"{probe.cost:.2f}",
        sigma=_finite_or_none(sigma),
        error=_finite_or_none(error),
        evaluations=probe.cost,
    )


def _finite_or_none(number: float | None) -> float | None:
    return number if number is not None and math.isfinite(number) else None
