"""PricesView: what modules of a quantised model win back at the base's precision, as texts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from evalguard.core.amounts import size_text
from evalguard.core.reports.bisect_report import SIGMA
from evalguard.core.reports.module_prices import ModulePrice, ModulePrices, WonBack
from evalguard.report.table import Table
from evalguard.report.words import rounding
from evalguard.report.words.metric_labels import key_label
from evalguard.report.words.plain_text import printable

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
    won = [name for name, one in (("KL", found.kl), (found.unit, found.drift)) if one is not None]
    for place, name in enumerate(won):
        yield f"{name} back"
        if place == 0:
            yield "per MB"
    yield "p"


def _cells(row: ModulePrice, found: ModulePrices) -> Iterator[str]:
    yield printable(row.name)
    yield "?" if row.added_bytes is None else size_text(row.added_bytes)
    measured = [
        won for won, one in ((row.kl, found.kl), (row.metric, found.drift)) if one is not None
    ]
    for place, won in enumerate(measured):
        yield _won_text(won, row)
        if place == 0:
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
