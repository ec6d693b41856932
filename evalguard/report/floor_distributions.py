"""How an unchanged model's next-token distributions move, for the terminal."""

from __future__ import annotations

from rich.text import Text

from evalguard.core.distribution_floor import DistributionShift, TaskDistributionFloor
from evalguard.core.reports.floor_report import FloorReport
from evalguard.report.table import Table
from evalguard.report.words import rounding
from evalguard.report.words.floor_texts import format_nats
from evalguard.report.words.metric_labels import format_percent
from evalguard.report.words.plain_text import fit_text, printable, wrap_text

KL_LEGEND = (
    "KL: of the next-token distributions from the usual run's, mean nats a token; max: at one "
    "token; top-1: share of tokens where another one is the most probable."
)


def kl_lines(report: FloorReport, width: int) -> list[Text]:
    """One row per variation and task, none wider than ``width``; [] where nothing was measured."""
    if not report.distribution_floors:
        return []
    header = ["", f"KL [{format_percent(report.confidence)} interval]", "max", "top-1"]
    cells = list(map(_kl_cells, report.distribution_shifts))
    head, *of_shifts = Table(headings=header, rows=cells).lines(width)
    rows, lines = dict(zip(report.distribution_shifts, of_shifts, strict=True)), [head]
    for floor in report.distribution_floors:
        lines.append(_kl_heading(floor, width))
        shifts = [shift for shift in rows if shift.task == floor.task]
        if floor.bit_identical:
            names = ", ".join(printable(shift.variation) for shift in shifts)
            text = f"bit-identical: {names}"
            lines += [Text(line) for line in wrap_text(text, width, first="  ", rest="    ")]
        else:
            lines += [rows[shift] for shift in shifts]
    return lines


def _kl_heading(floor: TaskDistributionFloor, width: int) -> Text:
    tail = f" next tokens · {rounding.format_count(floor.positions)} tokens"
    name = fit_text(printable(floor.task), max(width - len(tail), 0))
    return Text.assemble((name, "bold"), (fit_text(tail, width), "dim"))


def _kl_cells(shift: DistributionShift) -> list[str]:
    name = f"  {printable(shift.variation)}"
    if shift.bit_identical:
        return [name, "0 bit-identical", "", ""]
    low, high = shift.kl_interval or (None, None)
    interval = "" if low is None or high is None else f" [{format_nats(low)}, {format_nats(high)}]"
    return [
        name,
        f"{format_nats(shift.kl)}{interval}",
        format_nats(shift.kl_max),
        f"{shift.top1_changed:.2%}",
    ]
