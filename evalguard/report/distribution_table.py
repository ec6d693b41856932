"""The table of distributions, and what it says beside perplexity, for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len

from evalguard.compare_report import CompareReport
from evalguard.comparison import Comparison
from evalguard.distribution_comparison import DistributionComparison, Figure
from evalguard.report import rounding
from evalguard.report.plain_text import fitted, padded, printable, wrapped
from evalguard.report.wording import metric_label, percent

_TITLE = "Distributions"
_GAP, _INDENT, _NARROWEST_LABEL = 2, 2, 12
# Least important first: what goes where the terminal is too narrow for all.
_FIRST_TO_GO = ("positions", "max", "Δp rms", "99%", "top-1")
_PERPLEXITIES = frozenset({"perplexity", "word_perplexity", "byte_perplexity", "bits_per_byte"})
_STILL = frozenset({"unchanged", "degraded"})
_LEGEND = (
    "KL: divergence of the candidate from the base, nats a token; Δp: change in the scored "
    "token's probability; top-1: tokens where both have the same most probable one."
)


@dataclass(frozen=True, slots=True)
class _Column:
    header: str
    cells: Sequence[str]

    @property
    def width(self) -> int:
        return max(cell_len(text) for text in (self.header, *self.cells))


def distribution_lines(report: CompareReport, width: int, prose: int) -> list[str]:
    """Return the table's lines, none wider than ``width``, and sentences within ``prose``."""
    if not report.distributions:
        return []
    measured = [one for one in report.distributions if not one.failure]
    lines = _table(measured, width) if measured else []
    lines += wrapped(_LEGEND, prose) if measured else []
    for one in report.distributions:
        for sentence in (_failure(one), _bounds(one), _beside_perplexity(report, one)):
            lines += wrapped(sentence, prose) if sentence else []
    return lines


def kl_text(figure: Figure) -> str:
    """Return a KL, or another figure of any size, with its standard error."""
    return rounding.with_stderr(figure.value, figure.stderr)


def share_text(figure: Figure) -> str:
    """Return a share in per cent, with the digits that its standard error supports."""
    if figure.value is None:
        return "-"
    stderr = None if figure.stderr is None else 100.0 * figure.stderr
    return f"{rounding.rounded(100.0 * figure.value, stderr)}%"


def beneath_scores(report: CompareReport) -> str:
    """Say that distributions moved where no score did; "" where none did."""
    moved = [one for one in report.distributions if one.moved]
    if not moved:
        return ""
    largest = max(moved, key=lambda one: one.kl.value or 0.0)
    return (
        f"; beneath these scores the distributions moved: KL {kl_text(largest.kl)} nats a token "
        f"on {printable(largest.task)}"
    )


def _table(distributions: Sequence[DistributionComparison], width: int) -> list[str]:
    columns = _columns(distributions)
    for header in _FIRST_TO_GO:
        if _room(columns, width) >= _NARROWEST_LABEL:
            break
        columns = [column for column in columns if column.header != header]
    names = [printable(one.task) for one in distributions]
    longest = max(*map(cell_len, names), cell_len(_TITLE) - _INDENT)
    label = min(max(_room(columns, width), 0), longest)
    gap, indent = " " * _GAP, " " * _INDENT
    headers = [padded(column.header, column.width, right=True) for column in columns]
    lines = [gap.join([padded(_TITLE, _INDENT + label), *headers])]
    for row, name in enumerate(names):
        cells = [padded(column.cells[row], column.width, right=True) for column in columns]
        lines.append(gap.join([indent + padded(name, label), *cells]))
    return [fitted(line.rstrip(), width) for line in lines]


def _room(columns: Sequence[_Column], width: int) -> int:
    return width - _INDENT - sum(column.width + _GAP for column in columns)


def _columns(distributions: Sequence[DistributionComparison]) -> list[_Column]:
    return [
        _Column("positions", [rounding.count(one.positions) for one in distributions]),
        _Column("KL mean", [_mean(one) for one in distributions]),
        _Column("99%", [_percentile(one.kl_at(99.0)) for one in distributions]),
        _Column("max", [_percentile(one.kl_at(100.0)) for one in distributions]),
        _Column("Δp rms", [rounding.rounded(*_pair(one.dp_rms)) for one in distributions]),
        _Column("top-1", [share_text(one.same_top1) for one in distributions]),
    ]


def _mean(one: DistributionComparison) -> str:
    return "0 bit-identical" if one.bit_identical else kl_text(one.kl)


def _pair(figure: Figure) -> tuple[float | None, float | None]:
    return figure.value, figure.stderr


def _percentile(figure: Figure) -> str:
    """A percentile as its interval supports it; two digits where an end of that is open."""
    if figure.value is None:
        return "-"
    low, high = figure.interval or (0.0, float("inf"))
    if 0.0 < high - low < float("inf"):
        return rounding.rounded(figure.value, (high - low) / 4.0)
    return f"{figure.value:#.2g}".rstrip(".")


def _failure(one: DistributionComparison) -> str:
    if not one.failure:
        return ""
    return f"The distributions of {printable(one.task)} are not known: {printable(one.failure)}."


def _bounds(one: DistributionComparison) -> str:
    if one.kl.bounds is None:
        return ""
    low, high = one.kl.bounds
    return (
        f"{printable(one.task)}: KL is estimated from the base's reference; proven, on these "
        f"tokens, is a mean between {low:.2g} and {high:.2g}."
    )


def _beside_perplexity(report: CompareReport, one: DistributionComparison) -> str:
    """Say where perplexity stands still and the distributions moved."""
    of_task = [c for c in report.comparisons if c.task == one.task]
    perplexities = [c for c in of_task if c.metric in _PERPLEXITIES]
    still = bool(perplexities) and all(c.outcome in _STILL for c in perplexities)
    if one.failure or not (still and one.moved) or one.kl.interval is None:
        return ""
    first = perplexities[0]
    low, high = one.kl.interval
    return (
        f"On {printable(one.task)} {metric_label(first)} is {_drift(report, first)}, but the "
        f"distributions moved: KL {kl_text(one.kl)} nats a token ({percent(one.confidence)} "
        f"interval {rounding.rounded(low, one.kl.stderr)} to "
        f"{rounding.rounded(high, one.kl.stderr)}), and both have the same most probable token "
        f"at {share_text(one.same_top1)} of the positions."
    )


def _drift(report: CompareReport, comparison: Comparison) -> str:
    sigma, _, _ = rounding.sigma_with_interval(
        comparison.sigma, comparison.sigma_interval, margin=report.gate.margin
    )
    return f"{comparison.outcome} ({sigma} sigma)"
