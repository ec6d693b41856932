"""A measured noise floor as a page for a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rich.text import Text

from evalguard.core.noise_floor import MetricFloor, Shift
from evalguard.core.reports.compare_report import RunIdentity
from evalguard.core.reports.floor_report import FloorReport
from evalguard.core.settings import Value
from evalguard.report.compare_terminal import model_lines
from evalguard.report.floor_distributions import KL_LEGEND, kl_lines
from evalguard.report.table import Table
from evalguard.report.terminal_page import (
    NARROWEST,
    more_lines,
    prose_width,
    render_page,
    wrap_prose,
)
from evalguard.report.view.side_view import side_view
from evalguard.report.words import rounding
from evalguard.report.words.floor_texts import floor_metric_name, floor_sentence
from evalguard.report.words.metric_labels import format_percent
from evalguard.report.words.plain_text import fit_text, printable, wrap_text

_MOST_ROWS, _MOST_MISSING = 10, 3
_LONGEST_REASON = 200  # characters of what may be a library's error
_SIGMA_LEGEND = (
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
        return render_page(_first_screen(report, width), width, color=color)
    blocks = [
        wrap_prose(floor_sentence(report), width, style="bold"),
        [
            *_model_lines(report.model, width),
            *wrap_prose(_usual_run_text(report), width, style="dim"),
        ],
        _metric_lines(report, width),
        _distribution_lines(report, width),
        _remark_lines(report, width),
        wrap_prose(_stored_text(report), width, style="dim"),
    ]
    return render_page(blocks, width, color=color)


def _first_screen(report: FloorReport, width: int) -> list[list[Text]]:
    floors = sorted(report.floors, key=lambda floor: -floor.sigma)
    shown = floors[:_MOST_ROWS]
    header = ["", f"largest sigma [{format_percent(report.confidence)} interval]", "under"]
    rows = [_largest_row(report, floor) for floor in shown]
    table = Table(headings=header, rows=rows).lines(width) if rows else []
    if len(floors) > len(shown):
        more = f"and {len(floors) - len(shown)} more, none with a larger drift"
        table.append(Text(fit_text(more, width), style="dim"))
    missing, notes = list(_missing(report)), len(report.notes)
    told = missing[:_MOST_MISSING]
    if len(missing) > len(told):
        told.append(f"Not measured or compared, too: {len(missing) - len(told)} more")
    held = f"{notes} note{'' if notes == 1 else 's'}" if notes else ""
    step = "Next: compare with this base; the report says how far above this floor a drift is."
    return [
        wrap_prose(floor_sentence(report), width, style="bold"),
        table,
        [
            *(line for text in told for line in _wrapped(text, width)),
            *wrap_prose(_stored_text(report), width),
            *(wrap_prose(step, width, style="bold") if report.kept else []),
            *more_lines("", held, width),
        ],
    ]


def _wrapped(text: str, width: int) -> list[Text]:
    return [Text(line) for line in wrap_text(text, prose_width(width), rest="  ")]


def _largest_row(report: FloorReport, floor: MetricFloor) -> list[str]:
    """A metric, its largest drift, and the variation that shows it."""
    if floor.bit_identical:
        return [floor_metric_name(floor), f"0 {_identical_text(floor)}", "every variation"]
    shift = next(s for s in report.shifts if s.key == floor.key and s.variation == floor.variation)
    return [floor_metric_name(floor), _metric_cells(shift)[1], printable(floor.variation)]


def _identical_text(of: MetricFloor | Shift) -> str:
    if of.other_answers:
        return f"same scores, {rounding.format_count(of.other_answers)} answers differ"
    return "bit-identical"


def _model_lines(model: RunIdentity, width: int) -> list[Text]:
    return model_lines(f"unchanged  {printable(model.name)}", side_view(model), width)


def _usual_run_text(report: FloorReport) -> str:
    names = {
        "batch_size": "batch size",
        "token_budget": "token budget",
        "shares_prefixes": "shared prefixes",
        "softmax_dtype": "softmax",
        "cache_dtype": "keys and values in",
        "weight_types": "weights in",
    }
    parts = [
        names.get(factor, factor) + ("" if value is True else f" {_text(value)}")
        for factor, value in report.computation.items()
        if value not in (None, False)
    ]
    return f"The usual run: {printable(', '.join(parts))}." if parts else ""


def _text(value: Value) -> str:
    return " and ".join(map(str, value)) if isinstance(value, list) else str(value)


def _metric_lines(report: FloorReport, width: int) -> list[Text]:
    """One row per variation and metric; metrics that nothing moves have one line."""
    header = ["", f"sigma [{format_percent(report.confidence)} interval]", "sd", "max", "flips"]
    head, *lines = Table(headings=header, rows=list(map(_metric_cells, report.shifts))).lines(width)
    rows, found = dict(zip(report.shifts, lines, strict=True)), [head]
    for floor in report.floors:
        found.append(_metric_heading(floor, width))
        shifts = [shift for shift in report.shifts if shift.key == floor.key]
        if floor.bit_identical:
            names = ", ".join(printable(shift.variation) for shift in shifts)
            text = f"{_identical_text(floor)}: {names}"
            found += [Text(line) for line in wrap_text(text, width, first="  ", rest="    ")]
        else:
            found += [rows[shift] for shift in shifts]
    return [*found, *wrap_prose(_SIGMA_LEGEND, width, style="dim")]


def _distribution_lines(report: FloorReport, width: int) -> list[Text]:
    lines = kl_lines(report, width)
    return [*lines, *wrap_prose(KL_LEGEND, width, style="dim")] if lines else []


def _metric_heading(floor: MetricFloor, width: int) -> Text:
    tail = f" · {rounding.format_count(floor.n)} documents"
    name = fit_text(floor_metric_name(floor), max(width - len(tail), 0))
    return Text.assemble((name, "bold"), (fit_text(tail, width), "dim"))


def _metric_cells(shift: Shift) -> list[str]:
    name = f"  {printable(shift.variation)}"
    if shift.bit_identical:
        return [name, f"0 {_identical_text(shift)}", "", "", ""]
    value, low, high = rounding.format_sigma_interval(
        shift.sigma, shift.sigma_interval, margin=math.inf
    )
    flips = "" if shift.flips is None else f"{shift.flips[0]}/{shift.flips[1]}"
    sd = "" if shift.document_sd is None else f"{shift.document_sd:.2g}"
    largest = ""
    if shift.largest_difference is not None:
        largest = f"{shift.largest_difference:.2g} ({shift.largest_document})"
    return [name, f"{value} [{low}, {high}]", sd, largest, flips]


def _remark_lines(report: FloorReport, width: int) -> list[Text]:
    return [
        Text(line, style="dim")
        for item in (*_missing(report), *(f"Note: {printable(note)}" for note in report.notes))
        for line in wrap_text(item, prose_width(width), rest="  ")
    ]


def _missing(report: FloorReport) -> Iterator[str]:
    for left in report.unmeasured:
        where = printable(f"{left.task} {left.metric}".strip())
        on = f" on {where}" if where else ""
        reason = fit_text(printable(left.reason), _LONGEST_REASON)  # whole in the JSON document
        yield f"Not measured: {printable(left.name)}{on}: {reason}"
    for missing in report.not_compared:
        name = printable(f"{missing.task} {missing.metric}".strip())
        yield f"Not compared: {name}: {printable(missing.reason)}"


def _stored_text(report: FloorReport) -> str:
    if not report.kept:
        return ""
    files = "1 file" if len(report.kept) == 1 else f"{len(report.kept)} files"
    return f"Kept for comparisons with this base in this environment ({files})."
