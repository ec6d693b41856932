"""A bisection on a comparison's page: what is laid out, what it means, and what to do next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from evalguard.bisect.bisect_report import (
    BisectReport,
    GuiltySetting,
    MetricSearch,
    ModulePrice,
    ModulePrices,
    WonBack,
)
from evalguard.bisect.bisect_words import (
    are_shares,
    beside_text,
    cleared_text,
    cost_text,
    culprit_figures,
    is_in_factors,
    repaired_text,
    search_answer,
    search_drift_text,
    search_facts,
    search_subject,
    sums_text,
)
from evalguard.bisect.search.search_result import Probe
from evalguard.core.amounts import finite_or_none, size_text
from evalguard.core.settings import Value
from evalguard.core.verdict import SIGMA
from evalguard.page import rounding
from evalguard.page.phrases import list_names
from evalguard.page.safe_text import printable
from evalguard.page.table import Table
from evalguard.report.metric_labels import key_label
from evalguard.report.side_view import value_text

_BEST = 3  # rows whose option is printed
_LEAST_NAME = 30  # cells, where a table is cut


@dataclass(frozen=True, slots=True, kw_only=True)
class PricesView:
    """The table of prices.

    Attributes:
        title: of all of it; ``lead`` says what a row is.
        table: a line for each row; where a terminal is narrow, the metric leaves first.
        proven: of each row, whether it wins something back for sure.
        options: (modules, the owner's option) of the best rows.
        first: the best of them as a sentence, "" where none is proven.
        notes: what is not known.
    """

    title: str
    lead: str
    table: Table
    proven: tuple[bool, ...]
    options: tuple[tuple[str, str], ...]
    first: str
    notes: tuple[str, ...]


def prices_view(found: ModulePrices | None) -> PricesView | None:
    """Return a table of prices as texts; None where there is none."""
    if found is None:
        return None
    proven = found.proven
    return PricesView(
        title="What modules win back at the base's precision",
        lead=" ".join(_lead(found)),
        table=_price_table(found),
        proven=tuple(row in proven for row in found.rows),
        options=tuple(
            (printable(row.name), printable(row.option)) for row in proven[:_BEST] if row.option
        ),
        first=_best_buy(found, proven[0]) if proven else "",
        notes=(
            *map(printable, found.notes),
            *(f"{printable(r.name)}: {printable(r.failure)}" for r in found.rows if r.failure),
        ),
    )


def _lead(found: ModulePrices) -> Iterator[str]:
    drifts = []
    if found.kl is not None:
        drifts.append(f"a mean KL of {found.kl:.3g} nats")
    if found.drift is not None:
        subject = key_label(found.task, found.filter, found.metric)
        drifts.append(f"{found.drift:+.3g} {found.unit} of {subject}")
    documents = rounding.format_count(found.documents)
    if found.documents < found.n:
        documents += f" of {rounding.format_count(found.n)}"
    yield f"The candidate has {' and '.join(drifts)} on {documents} documents."
    yield (
        "Each row takes its modules from the base and leaves all others quantised: rows overlap, "
        "and what they win back does not add up."
    )
    yield (
        f"Intervals are {found.confidence:.0%}, paired, each for itself; p has Holm's correction "
        f"over {len(found.rows)} rows, and those told from none come first."
    )
    if found.evaluations:
        yield f"All of it took {found.evaluations:.1f} full evaluations."


def _price_table(found: ModulePrices) -> Table:
    headings = [*_headings(found)]
    last = len(headings) - 1
    return Table(
        headings=headings,
        rows=[[*_cells(row, found)] for row in found.rows],
        right=range(1, len(headings)),
        leaving=[*range(last - 1, 3, -1), last, 3, 1],
        giving_way=0,
        least=_LEAST_NAME,
    )


def _headings(found: ModulePrices) -> Iterator[str]:
    yield "restored"
    yield "adds"
    won = [
        name for name, drift in (("KL", found.kl), (found.unit, found.drift)) if drift is not None
    ]
    for index, name in enumerate(won):
        yield f"{name} back"
        if index == 0:
            yield "per MB"
    yield "p"


def _cells(row: ModulePrice, found: ModulePrices) -> Iterator[str]:
    yield printable(row.name)
    yield "?" if row.added_bytes is None else size_text(row.added_bytes)
    measured = [
        won for won, drift in ((row.kl, found.kl), (row.metric, found.drift)) if drift is not None
    ]
    for index, won in enumerate(measured):
        yield _won_text(won, row)
        if index == 0:
            yield "-" if row.per_megabyte is None else f"{row.per_megabyte:.3g}"
    yield "-" if row.won is None else rounding.format_p_value(row.won.adjusted_p)


def _won_text(won: WonBack | None, row: ModulePrice) -> str:
    if won is None:
        return "not measured"
    if row.same:
        return "0, the same weights"
    error = (won.high - won.low) / 4.0
    amount, low, high = (rounding.round_to_error(x, error) for x in (won.amount, won.low, won.high))
    return f"{amount} [{low}, {high}]" if error else amount


def _best_buy(found: ModulePrices, best: ModulePrice) -> str:
    assert best.won is not None
    whole, unit = (found.kl, "nats of KL") if best.kl is not None else (found.drift, found.unit)
    cost = "" if best.added_bytes is None else f" for {size_text(best.added_bytes)}"
    option = f": {printable(best.option)}" if best.option else ""
    won = f"{best.won.amount:.2g}" + ("" if whole is None else f" of {whole:.2g}")
    return (
        f"Best buy: {printable(best.name)} at the base's precision wins back {won} "
        f"{'sigma' if unit == SIGMA else unit}{cost}{option}"
    )


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

    @property
    def best_buy(self) -> str:
        """The first of the prices as a sentence; "" where none is proven."""
        return "" if self.prices is None else self.prices.first


def group_by_metric(searches: Sequence[SearchView]) -> list[list[SearchView]]:
    """Return searches of the same thing, one after another, together.

    Each was made with the culprits of those before at reference, so that they share one table.
    """
    groups: list[list[SearchView]] = []
    for search in searches:
        same = groups and groups[-1][-1].title == search.title
        if same and groups[-1][-1].unit == search.unit:
            groups[-1].append(search)
        else:
            groups.append([search])
    return groups


def culprit_table(culprits: Sequence[CulpritView]) -> Table:
    """Return a table of them, with their roles where these tell anything."""
    roles = any(culprit.role != "additive" for culprit in culprits)
    return Table(
        headings=["setting", "base -> candidate", "alone", "beside", "share", *["role"] * roles],
        rows=[
            [
                culprit.setting,
                culprit.change,
                culprit.alone,
                culprit.beside,
                culprit.share,
                *[culprit.role] * roles,
            ]
            for culprit in culprits
        ],
        right=(2, 3, 4),
        leaving=(),
        giving_way=1,
    )


def bisection_view(found: BisectReport) -> BisectionView:
    """Return a bisection as texts."""
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
    divergences = " or ".join(sorted(units - {SIGMA}))
    return (
        f"Divergence ({divergences})"
        if SIGMA not in units
        else f"Sigma, or divergence ({divergences}),"
    )


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


def _probe_view(number: int, probe: Probe, search: MetricSearch) -> ProbeView:
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
        sigma=finite_or_none(sigma),
        error=finite_or_none(error),
        evaluations=probe.cost,
    )
