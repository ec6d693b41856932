"""How an unchanged model's next-token distributions move, for the terminal."""

from __future__ import annotations

from rich.text import Text

from evalguard.distribution_floor import DistributionShift, TaskDistributionFloor
from evalguard.floor_report import FloorReport
from evalguard.report import rounding
from evalguard.report.columns import column_widths, row_text
from evalguard.report.floor_words import nats
from evalguard.report.plain_text import fitted, printable, wrapped
from evalguard.report.wording import percent

LEGEND = (
    "KL: of the next-token distributions from the usual run's, mean nats a token; max: at one "
    "token; top-1: share of tokens where another one is the most probable."
)


def kl_lines(report: FloorReport, width: int) -> list[Text]:
    """One row per variation and task, none wider than ``width``; [] where nothing was measured."""
    if not report.distribution_floors:
        return []
    header = ["", f"KL [{percent(report.confidence)} interval]", "max", "top-1"]
    rows = {shift: _cells(shift) for shift in report.distribution_shifts}
    widths = column_widths([header, *rows.values()], width)
    lines = [row_text(header, widths, width, style="dim")]
    for floor in report.distribution_floors:
        lines.append(_heading(floor, width))
        shifts = [shift for shift in rows if shift.task == floor.task]
        if floor.bit_identical:
            names = ", ".join(printable(shift.variation) for shift in shifts)
            text = f"bit-identical: {names}"
            lines += [Text(line) for line in wrapped(text, width, first="  ", rest="    ")]
        else:
            lines += [row_text(rows[shift], widths, width) for shift in shifts]
    return lines


def _heading(floor: TaskDistributionFloor, width: int) -> Text:
    tail = f" next tokens · {rounding.count(floor.positions)} tokens"
    name = fitted(printable(floor.task), max(width - len(tail), 0))
    return Text.assemble((name, "bold"), (fitted(tail, width), "dim"))


def _cells(shift: DistributionShift) -> list[str]:
    name = f"  {printable(shift.variation)}"
    if shift.bit_identical:
        return [name, "0 bit-identical", "", ""]
    low, high = shift.kl_interval or (None, None)
    interval = "" if low is None or high is None else f" [{nats(low)}, {nats(high)}]"
    return [name, f"{nats(shift.kl)}{interval}", nats(shift.kl_max), f"{shift.top1_changed:.2%}"]
