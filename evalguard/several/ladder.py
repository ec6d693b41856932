"""A ladder: candidates of one base in rows, with how far each has moved from it over all tasks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from rich.text import Text

from evalguard.core.compare_report import CheckpointSize, CompareReport
from evalguard.core.comparison import Comparison
from evalguard.core.distribution_comparison import DistributionComparison, Figure
from evalguard.core.gate_state import GateState, Key
from evalguard.page import rounding
from evalguard.page.safe_text import printable
from evalguard.page.table import Table
from evalguard.report.distribution_texts import percentile_text, share_text
from evalguard.report.metric_labels import (
    STATE_STYLE,
    drift_cells,
    format_percent,
    full_label,
    judged_comparisons,
    shown_interval,
)
from evalguard.several.several_report import NoVerdict, SeveralReport, state_of

TAIL_PERCENT = 99.9


@dataclass(frozen=True, slots=True, kw_only=True)
class LadderRow:
    """One candidate.

    Attributes:
        outcome: its comparison with the base; without a verdict the reason of that.
        kl: mean KL(base || candidate) over the scored tokens of all tasks, in nats a token.
        kl_tail: KL that 99.9% of the tokens do not exceed, of the task where that is largest.
        same_top1: share of tokens where both find the same token most probable, over all tasks.
        unknown: why there is no KL; "" where there is.
    """

    outcome: CompareReport | NoVerdict
    kl: Figure = field(default_factory=Figure)
    kl_tail: Figure = field(default_factory=Figure)
    same_top1: Figure = field(default_factory=Figure)
    unknown: str = ""

    @property
    def name(self) -> str:
        """The candidate's name."""
        outcome = self.outcome
        return outcome.name if isinstance(outcome, NoVerdict) else outcome.candidate.name

    @property
    def state(self) -> GateState:
        """What its gate came to."""
        return state_of(self.outcome)

    @property
    def size(self) -> CheckpointSize | None:
        """What is stored of it; None where nobody looked."""
        return None if isinstance(self.outcome, NoVerdict) else self.outcome.candidate.size


def ladder_rows(outcomes: Sequence[CompareReport | NoVerdict]) -> tuple[LadderRow, ...]:
    """Return a row for each candidate, in order.

    KL is over the tasks of which any row has one: a row that lacks one of them has no KL, since it
    would be that of other tokens than the others'.
    """
    reports = [outcome for outcome in outcomes if isinstance(outcome, CompareReport)]
    known = [
        distribution.task
        for report in reports
        for distribution in report.distributions
        if not distribution.failure
    ]
    tasks = tuple(dict.fromkeys(known))
    return tuple(_row(outcome, tasks) for outcome in outcomes)


def _row(one: CompareReport | NoVerdict, tasks: Sequence[str]) -> LadderRow:
    if isinstance(one, NoVerdict):
        return LadderRow(outcome=one, unknown=f"no verdict: {one.reason}")
    by_task = {each.task: each for each in one.distributions}
    if not tasks:
        why = next((each.failure for each in one.distributions if each.failure), "")
        return LadderRow(outcome=one, unknown=why or "distributions were not compared")
    for task in tasks:
        if task not in by_task:
            return LadderRow(outcome=one, unknown=f"{task}: distributions were not compared")
        if by_task[task].failure:
            return LadderRow(outcome=one, unknown=f"{task}: {by_task[task].failure}")
    of_tasks = [by_task[task] for task in tasks]
    return LadderRow(
        outcome=one,
        kl=pool_tasks([(each.positions, each.kl) for each in of_tasks]),
        kl_tail=max((each.kl_at(TAIL_PERCENT) for each in of_tasks), key=_size),
        same_top1=pool_tasks([(each.positions, each.same_top1) for each in of_tasks]),
        unknown=_without_value(of_tasks),
    )


def _without_value(of_tasks: Sequence[DistributionComparison]) -> str:
    missing = [distribution.task for distribution in of_tasks if distribution.kl.value is None]
    return f"{missing[0]}: no number came out" if missing else ""


def _size(figure: Figure) -> float:
    return -math.inf if figure.value is None else figure.value


def pool_tasks(figures: Sequence[tuple[int, Figure]]) -> Figure:
    """Return a mean over the scored tokens of several tasks, from (tokens, mean over them) each.

    Tasks share no document, so that errors add up in squares. The interval keeps the asymmetry of
    the tasks' own ones: each end is as far from the mean as the root of the sum of their squared
    weighted distances there (Zou and Donner, Statistics in Medicine 27, 2008).
    """
    if len(figures) == 1:
        return figures[0][1]
    total = sum(tokens for tokens, _ in figures)
    parts = [(tokens / total, figure, figure.value) for tokens, figure in figures if total]
    known = [(weight, figure, value) for weight, figure, value in parts if value is not None]
    if not known or len(known) < len(figures):
        return Figure()
    mean = sum(weight * value for weight, _, value in known)
    if not math.isfinite(mean):
        return Figure(value=mean)
    errors = [
        None if figure.stderr is None else weight * figure.stderr for weight, figure, _ in known
    ]
    ends = [
        None
        if figure.interval is None
        else (weight * (value - figure.interval[0]), weight * (figure.interval[1] - value))
        for weight, figure, value in known
    ]
    stderr = interval = bounds = None
    if None not in errors:
        stderr = math.hypot(*(error for error in errors if error is not None))
    if None not in ends:
        below, above = zip(*(end for end in ends if end is not None), strict=True)
        interval = (mean - math.hypot(*below), mean + math.hypot(*above))
    if any(figure.bounds is not None for _, figure, _ in known):
        proven = [(weight, figure.bounds or (value, value)) for weight, figure, value in known]
        bounds = (
            sum(weight * low for weight, (low, _) in proven),
            sum(weight * high for weight, (_, high) in proven),
        )
    return Figure(value=mean, stderr=stderr, interval=interval, bounds=bounds)


NONE = "-"
MARK: dict[GateState | None, str] = {"regressed": " !", "undecided": " ?", "failed": " x"}
_UNITS = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))
_LEAST_NAME = 14
_OTHER = "*"  # after a size: what is loaded is not what is stored
# Columns leave from the largest rank on; those of each further metric before all of these.
_NEVER, _KL, _SIGMA, _SIZE, _BITS, _KL_INTERVAL, _RECOVERY, _TOP, _SIGMA_INTERVAL = range(9)
_TAIL, _VALUE, _TAIL_INTERVAL, _OF_OTHERS = range(9, 13)
_RANKS_A_METRIC = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    """``joins``: it stands in the cell before it where columns are joined."""

    heading: str
    cells: Sequence[str | Text]
    rank: int
    right: bool = True
    joins: bool = False


def ladder_table(report: SeveralReport, *, joined: bool = False) -> Table:
    """Return the table of all candidates, the base above them; columns leave by their rank.

    Args:
        joined: intervals stand in the cells of their numbers, for what has room for all columns.
    """
    columns = list(_columns(report))
    if joined:
        name, *middle, verdict = _joined(columns)
        columns = [name, verdict, *middle]  # the others are many
    order = sorted(range(len(columns)), key=lambda index: columns[index].rank, reverse=True)
    return Table(
        headings=[column.heading for column in columns],
        rows=[[column.cells[row] for column in columns] for row in range(len(columns[0].cells))],
        right=[index for index, column in enumerate(columns) if column.right],
        leaving=[index for index in order if columns[index].rank != _NEVER],
        giving_way=0,
        least=_LEAST_NAME,
    )


def metric_tables(report: SeveralReport) -> list[Table]:
    """Return a table for each metric: value, recovery and sigma of every candidate."""
    tables = []
    for key in ranked_metrics(report):
        name, *columns = _joined([_names(report), *_metric_columns(report, key, 0)])
        cells = [name.cells, *(column.cells for column in columns)]
        tables.append(
            Table(
                headings=[
                    _label(report, key),
                    "value",
                    *(column.heading for column in columns[1:]),
                ],
                rows=[list(row) for row in zip(*cells, strict=True)],
                right=range(1, len(cells)),
                giving_way=0,
                least=_LEAST_NAME,
            )
        )
    return tables


def ladder_legend(report: SeveralReport, width: int | None = None) -> list[str]:
    """Say what the columns are of, and what is not known of a row; a sentence each.

    Args:
        width: of a screen that has room for the columns that it shows alone; None: of all columns,
            with the reason of every dash.
    """
    table = ladder_table(report)
    shown = [
        table.headings[n] for n in (table.kept(width) if width else range(len(table.headings)))
    ]
    rows, keys = ladder_rows(report.candidates), ranked_metrics(report)
    sentences = []
    if any(not row.unknown for row in rows):
        tokens = next((row for row in rows if not row.unknown), rows[0]).outcome
        count = (
            sum(distribution.positions for distribution in tokens.distributions)
            if isinstance(tokens, CompareReport)
            else 0
        )
        sentences.append(f"KL in nats a token, over {count:,} tokens")
    if keys and {"sigma", "recovery"} & {*shown}:
        sentences.append(_metric_legend(report, keys[0], shown))
    sizes = _named_sizes(report)
    reloaded = [(name, size) for name, size in sizes if _has_other_form(size)]
    for text, in_memory in (("in memory, loaded as", True), ("as stored; loaded as", False)):
        named = [
            f"{name} {printable(size.loaded_as)}"
            for name, size in reloaded
            if (size.loaded_bytes is not None) == in_memory
        ]
        sentences += [f"{_OTHER} {text}: {'; '.join(named)}"] if named else []
    return sentences if width is not None else [*sentences, *dash_reasons(report)]


def dash_reasons(report: SeveralReport) -> list[str]:
    """Say why a size, bits or KL of a row is not known; a sentence each."""
    rows = ladder_rows(report.candidates)
    sentences = [
        f"{name}: {'size' if size.shown_bytes is None else 'bits'} not known: "
        f"{printable(size.reason)}"
        for name, size in _named_sizes(report)
        if size.reason
    ]
    return sentences + [
        f"{printable(row.name)}: no KL: {printable(row.unknown)}"
        for row in rows
        if row.unknown and not isinstance(row.outcome, NoVerdict)
        and any(not known.unknown for known in rows)
    ]  # fmt: skip


def _metric_legend(report: SeveralReport, key: Key, shown: Sequence[str]) -> str:
    """Which metric the columns that are seen are of, how recovery is taken, what a mark says."""
    first = next(c for compared in report.reports for c in compared.comparisons if c.key == key)
    of = "base / candidate" if not first.higher_is_better else "candidate / base"
    names = {"sigma": "sigma", "recovery": f"recovery ({of})"}
    columns = f"{', '.join(text for name, text in names.items() if name in shown)}: "
    intervals = any(pair == ("sigma", f"[{_confidence(report)}]") for pair in pairwise(shown))
    marks = "; ! fails the gate, ? undecided, x no number" if intervals else ""
    return f"{columns}{full_label(first)}{marks}"


def ranked_metrics(report: SeveralReport) -> list[Key]:
    """Return the metrics of all candidates: gated ones first, by how far they drift in any."""
    worst: dict[Key, tuple[bool, float]] = {}
    for compared in report.reports:
        for comparison in judged_comparisons(compared):
            sigma = comparison.sigma
            known = sigma if sigma is not None and sigma == sigma else float("-inf")
            rank = (comparison.key in compared.gate.gated, known)
            worst[comparison.key] = max(worst.get(comparison.key, rank), rank)
    return sorted(worst, key=lambda key: worst[key], reverse=True)


def row_texts(report: SeveralReport) -> list[str]:
    """Return each candidate's whole row on one line, headings and cells."""
    table = ladder_table(report, joined=True)
    lines = []
    for name, *cells in ([str(cell) for cell in row] for row in table.rows[1:]):
        headed = zip(table.headings[1:], cells, strict=True)
        parts = [f"{head} {cell}" for head, cell in headed if cell not in ("", NONE)]
        lines.append("; ".join([name, *parts]))
    return lines


def _columns(report: SeveralReport) -> Iterator[_Column]:
    rows, sizes = ladder_rows(report.candidates), _sizes(report)
    yield _names(report)
    if any(size is not None and size.shown_bytes is not None for size in sizes):
        yield _Column(heading="size", cells=[size_cell(size) for size in sizes], rank=_SIZE)
        yield _Column(heading="bits", cells=[bits_cell(size) for size in sizes], rank=_BITS)
    if any(not row.unknown for row in rows):
        yield from _kl_columns(report, rows)
    for number, key in enumerate(ranked_metrics(report)):
        yield from _metric_columns(report, key, number)
    states = [Text(row.state, style=STATE_STYLE[row.state]) for row in rows]
    yield _Column(heading="verdict", cells=["base", *states], rank=_NEVER, right=False)


def _names(report: SeveralReport) -> _Column:
    rows = ladder_rows(report.candidates)
    names = [printable(report.base), *(printable(row.name) for row in rows)]
    return _Column(heading="candidate", cells=names, rank=_NEVER, right=False)


def _sizes(report: SeveralReport) -> list[CheckpointSize | None]:
    base = next(
        (compared.base.size for compared in report.reports if compared.base.size is not None), None
    )
    return [base, *(row.size for row in ladder_rows(report.candidates))]


def _named_sizes(report: SeveralReport) -> list[tuple[str, CheckpointSize]]:
    names = [report.base, *(row.name for row in ladder_rows(report.candidates))]
    sizes = zip(names, _sizes(report), strict=True)
    return [(printable(name), size) for name, size in sizes if size is not None]


def _kl_columns(report: SeveralReport, rows: Sequence[LadderRow]) -> Iterator[_Column]:
    interval = f"[{_confidence(report)}]"
    kls, tails = [row.kl for row in rows], [row.kl_tail for row in rows]
    yield _Column(heading="mean KL", cells=["", *map(kl_cell, kls)], rank=_KL)
    yield _Column(
        heading=interval,
        cells=["", *map(kl_interval_cell, kls)],
        rank=_KL_INTERVAL,
        right=False,
        joins=True,
    )
    yield _Column(heading="99.9% KL", cells=["", *map(tail_cell, tails)], rank=_TAIL)
    yield _Column(
        heading=interval,
        cells=["", *map(tail_interval_cell, tails)],
        rank=_TAIL_INTERVAL,
        right=False,
        joins=True,
    )
    tops = [NONE if row.same_top1.value is None else share_text(row.same_top1) for row in rows]
    yield _Column(heading="top-1", cells=["", *tops], rank=_TOP)


def _metric_columns(report: SeveralReport, key: Key, number: int) -> Iterator[_Column]:
    """Value, recovery and sigma with its interval; of the first metric, more than of others."""
    ranks = (_VALUE, _RECOVERY, _SIGMA, _SIGMA_INTERVAL)
    if number:
        first = _OF_OTHERS + (number - 1) * _RANKS_A_METRIC
        ranks = (first + 2, first + 1, first, first + 3)
    comparisons = [_comparison(outcome, key) for outcome in report.candidates]
    known = next(comparison for comparison in comparisons if comparison is not None)
    values = [rounding.round_to_error(known.base, known.base_stderr)]
    values += [
        NONE
        if comparison is None
        else rounding.round_to_error(comparison.candidate, comparison.candidate_stderr)
        for comparison in comparisons
    ]
    yield _Column(heading=_label(report, key), cells=values, rank=ranks[0])
    recoveries = [
        NONE if comparison is None else recovery_cell(comparison) for comparison in comparisons
    ]
    yield _Column(heading="recovery", cells=["", *recoveries], rank=ranks[1])
    sigmas = [_sigma_cells(outcome, key) for outcome in report.candidates]
    yield _Column(heading="sigma", cells=["", *(value for value, _ in sigmas)], rank=ranks[2])
    yield _Column(
        heading=f"[{_confidence(report)}]",
        cells=["", *(interval for _, interval in sigmas)],
        rank=ranks[3],
        right=False,
        joins=True,
    )


def _joined(columns: Sequence[_Column]) -> list[_Column]:
    joined: list[_Column] = []
    for column in columns:
        if not column.joins:
            joined.append(column)
            continue
        before = joined.pop()
        joined.append(
            _Column(
                heading=f"{before.heading} {column.heading}",
                cells=[f"{a} {b}".strip() for a, b in zip(before.cells, column.cells, strict=True)],
                rank=before.rank,
            )
        )
    return joined


def _comparison(one: CompareReport | NoVerdict, key: Key) -> Comparison | None:
    comparisons = () if isinstance(one, NoVerdict) else one.comparisons
    return next((c for c in comparisons if c.key == key), None)


def _label(report: SeveralReport, key: Key) -> str:
    comparisons = (_comparison(compared, key) for compared in report.reports)
    return full_label(next(comparison for comparison in comparisons if comparison is not None))


def _confidence(report: SeveralReport) -> str:
    shown = {format_percent(compared.gate.confidence) for compared in report.reports}
    return shown.pop() if len(shown) == 1 else "interval"


def _sigma_cells(one: CompareReport | NoVerdict, key: Key) -> tuple[str, str]:
    comparison = _comparison(one, key)
    if comparison is None or isinstance(one, NoVerdict):
        return NONE, ""
    interval = shown_interval(comparison)
    value, low, high = drift_cells(one, comparison)
    mark = MARK.get(metric_state(one, key), "")
    return value, f"[{low}, {high}]{mark}" if interval is not None and low else mark.strip()


def metric_state(report: CompareReport, key: Key) -> GateState | None:
    """Return what a metric brought about; None where it did nothing."""
    gate = report.gate
    states: dict[GateState, Sequence[Key]] = {
        "regressed": gate.regressed, "failed": gate.failed, "undecided": gate.undecided,
    }  # fmt: skip
    return next((state for state, keys in states.items() if key in keys), None)


def size_cell(size: CheckpointSize | None) -> str:
    """Return what is shown as "1.53 GB", marked where what is loaded is not what is stored."""
    if size is None or size.shown_bytes is None:
        return NONE
    shown = size.shown_bytes
    mark = _OTHER if _has_other_form(size) else ""
    for unit, factor in _UNITS:
        if shown >= 0.9995 * factor:
            amount = shown / factor
            digits = 2 if amount < 9.995 else 1 if amount < 99.95 else 0
            return f"{amount:,.{digits}f} {unit}{mark}"
    return f"{shown} B{mark}"


def bits_cell(size: CheckpointSize | None) -> str:
    """Return bits per weight with two decimals, one from 10 on; marked as the size is."""
    bits = None if size is None else size.bits_per_weight
    mark = _OTHER if _has_other_form(size) else ""
    return NONE if bits is None else f"{bits:.{2 if bits < 9.995 else 1}f}{mark}"


def recovery_cell(comparison: Comparison) -> str:
    """Return recovery in per cent, to the digit that the paired error supports."""
    if comparison.recovery is None:
        return NONE
    return f"{comparison.recovery:.{2 if abs(comparison.recovery - 100) < 1 else 1}f}%"


def kl_cell(figure: Figure) -> str:
    """Return a mean KL to the first digit of its standard error."""
    return _short(rounding.round_to_error(figure.value, _coarse(figure.stderr)))


def kl_interval_cell(figure: Figure) -> str:
    """Return its interval with the same digits; "" where there is none."""
    if figure.interval is None:
        return ""
    ends = (_short(rounding.round_to_error(end, _coarse(figure.stderr))) for end in figure.interval)
    return f"[{', '.join(ends)}]"


def tail_cell(figure: Figure) -> str:
    """Return a percentile of KL with the digits that its interval supports."""
    return _short(percentile_text(figure))


def tail_interval_cell(figure: Figure) -> str:
    """Return the interval of a percentile of KL; "" where there is none."""
    if figure.interval is None:
        return ""
    low, high = figure.interval
    if high == float("inf"):
        return f"[{_short(f'{low:.2g}')}, inf]"
    error = (high - low) / 4.0
    return f"[{', '.join(_short(rounding.round_to_error(end, error)) for end in (low, high))}]"


def _coarse(stderr: float | None) -> float | None:
    """A standard error of which rounding keeps the first digit where it keeps the second."""
    return None if stderr is None else 10.0 * stderr


def _short(text: str) -> str:
    """A number's exponent without its zeros: "3.1e-7"."""
    number, e, power = text.partition("e")
    return f"{number}e{int(power)}" if e else number


def _has_other_form(size: CheckpointSize | None) -> bool:
    return size is not None and size.shown_bytes is not None and bool(size.loaded_as)
