"""The floor that a person reads in a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rich.text import Text

from evalguard.compare_report import RunIdentity
from evalguard.floor_report import FloorReport
from evalguard.noise_floor import MetricFloor, Shift
from evalguard.report import rounding
from evalguard.report.columns import column_widths, row_text
from evalguard.report.floor_kl_table import LEGEND as KL_LEGEND
from evalguard.report.floor_kl_table import kl_lines
from evalguard.report.floor_words import floor_sentence, metric_name
from evalguard.report.page import NARROWEST, page, prose, prose_width
from evalguard.report.plain_text import fitted, printable, wrapped
from evalguard.report.terminal import model_lines
from evalguard.report.view.side import side_view
from evalguard.report.wording import percent

_MOST_ROWS, _MOST_MISSING = 10, 3
_LEGEND = (
    "sigma: drift from the usual run, in its standard errors; above 0 is worse. sd: of single "
    "documents' differences (nats for log-likelihoods); max: the largest of them, and its document."
)


def render_floor(report: FloorReport, *, width: int, color: bool, verbose: bool = False) -> str:
    """Return ``report`` as text of at most ``width`` cells a line, without a final line break.

    The answer, each metric's largest drift, and what could not be measured; with ``verbose`` every
    variation, the distributions and the usual run.

    As in a comparison's report, no name or reason can act on the terminal, and there is no escape
    character without ``color``.
    """
    width = max(width, NARROWEST)
    if not verbose:
        return page(_first_screen(report, width), width, color=color)
    blocks = [
        prose(floor_sentence(report), width, style="bold"),
        [*_model(report.model, width), *prose(_usual(report), width, style="dim")],
        _metrics(report, width),
        _distributions(report, width),
        _listed(report, width),
        prose(_kept(report), width, style="dim"),
    ]
    return page(blocks, width, color=color)


def _first_screen(report: FloorReport, width: int) -> list[list[Text]]:
    floors = sorted(report.floors, key=lambda floor: -floor.sigma)
    shown = floors[:_MOST_ROWS]
    header = ["", f"largest sigma [{percent(report.confidence)} interval]", "under"]
    rows = [_largest(report, floor) for floor in shown]
    widths = column_widths([header, *rows], width)
    table = [row_text(header, widths, width, style="dim")] if rows else []
    table += [row_text(row, widths, width) for row in rows]
    if len(floors) > len(shown):
        more = f"and {len(floors) - len(shown)} more, none with a larger drift"
        table.append(Text(fitted(more, width), style="dim"))
    missing = [line for line in _remarks(report) if not line.startswith("Note")]
    notes = len(list(_remarks(report))) - len(missing)
    told = missing[:_MOST_MISSING]
    if len(missing) > len(told):
        told.append(f"Not measured or compared, too: {len(missing) - len(told)} more")
    where = "More: -v" + (f"; {notes} note{'' if notes == 1 else 's'}" if notes else "")
    step = "Next: compare with this base; the report says how far above this floor a drift is."
    return [
        prose(floor_sentence(report), width, style="bold"),
        table,
        [
            *(line for text in told for line in _wrapped(text, width)),
            *prose(_kept(report), width),
            *(prose(step, width, style="bold") if report.kept else []),
            *prose(where, width, style="dim"),
        ],
    ]


def _wrapped(text: str, width: int) -> list[Text]:
    return [Text(line) for line in wrapped(text, prose_width(width), rest="  ")]


def _largest(report: FloorReport, floor: MetricFloor) -> list[str]:
    """A metric, its largest drift, and the variation that shows it."""
    if floor.bit_identical:
        return [metric_name(floor), "0 bit-identical", "every variation"]
    shift = next(s for s in report.shifts if s.key == floor.key and s.variation == floor.variation)
    return [metric_name(floor), _cells(shift)[1], printable(floor.variation)]


def _model(model: RunIdentity, width: int) -> list[Text]:
    return model_lines(f"unchanged  {printable(model.name)}", side_view(model), width)


def _usual(report: FloorReport) -> str:
    names = {
        "batch_size": "batch size",
        "token_budget": "token budget",
        "shares_prefixes": "shared prefixes",
        "softmax_dtype": "softmax",
    }
    parts = [
        names.get(factor, factor) + ("" if value is True else f" {value}")
        for factor, value in report.computation.items()
        if value not in (None, False)
    ]
    return f"The usual run: {printable(', '.join(parts))}." if parts else ""


def _metrics(report: FloorReport, width: int) -> list[Text]:
    """One row per variation and metric; metrics that nothing moves have one line."""
    header = ["", f"sigma [{percent(report.confidence)} interval]", "sd", "max", "flips"]
    rows = {shift: _cells(shift) for shift in report.shifts}
    widths = column_widths([header, *rows.values()], width)
    found = [row_text(header, widths, width, style="dim")]
    for floor in report.floors:
        found.append(_heading(floor, width))
        shifts = [shift for shift in report.shifts if shift.key == floor.key]
        if floor.bit_identical:
            names = ", ".join(printable(shift.variation) for shift in shifts)
            text = f"bit-identical: {names}"
            found += [Text(line) for line in wrapped(text, width, first="  ", rest="    ")]
        else:
            found += [row_text(rows[shift], widths, width) for shift in shifts]
    return [*found, *prose(_LEGEND, width, style="dim")]


def _distributions(report: FloorReport, width: int) -> list[Text]:
    lines = kl_lines(report, width)
    return [*lines, *prose(KL_LEGEND, width, style="dim")] if lines else []


def _heading(floor: MetricFloor, width: int) -> Text:
    tail = f" · {rounding.count(floor.n)} documents"
    name = fitted(metric_name(floor), max(width - len(tail), 0))
    return Text.assemble((name, "bold"), (fitted(tail, width), "dim"))


def _cells(shift: Shift) -> list[str]:
    name = f"  {printable(shift.variation)}"
    if shift.bit_identical:
        return [name, "0 bit-identical", "", "", ""]
    value, low, high = rounding.sigma_with_interval(
        shift.sigma, shift.sigma_interval, margin=math.inf
    )
    flips = "" if shift.flips is None else f"{shift.flips[0]}/{shift.flips[1]}"
    sd = "" if shift.document_sd is None else f"{shift.document_sd:.2g}"
    largest = ""
    if shift.largest_difference is not None:
        largest = f"{shift.largest_difference:.2g} ({shift.largest_document})"
    return [name, f"{value} [{low}, {high}]", sd, largest, flips]


def _listed(report: FloorReport, width: int) -> list[Text]:
    return [
        Text(line, style="dim")
        for item in _remarks(report)
        for line in wrapped(item, prose_width(width), rest="  ")
    ]


def _remarks(report: FloorReport) -> Iterator[str]:
    for left in report.unmeasured:
        where = printable(f"{left.task} {left.metric}".strip())
        on = f" on {where}" if where else ""
        # what libraries add to their first sentence is in the JSON document
        reason = printable(left.reason).partition(". ")[0]
        yield f"Not measured: {printable(left.name)}{on}: {reason}"
    for missing in report.not_compared:
        name = printable(f"{missing.task} {missing.metric}".strip())
        yield f"Not compared: {name}: {printable(missing.reason)}"
    yield from (f"Note: {printable(note)}" for note in report.notes)


def _kept(report: FloorReport) -> str:
    if not report.kept:
        return ""
    files = "1 file" if len(report.kept) == 1 else f"{len(report.kept)} files"
    return f"Kept for comparisons with this base in this environment ({files})."
