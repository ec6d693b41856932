"""What ``evalguard floor`` returns, shows and writes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.text import Text

from evalguard.core.compare_report import RunIdentity
from evalguard.core.noise_floor import DistributionShift, MetricFloor, Shift, TaskDistributionFloor
from evalguard.core.result import Result
from evalguard.core.settings import Value
from evalguard.floors.floor_report import FloorReport, floor_document
from evalguard.page import rounding
from evalguard.page.safe_text import fit_text, printable, wrap_text
from evalguard.page.table import Table
from evalguard.page.terminal import NARROWEST, more_lines, prose_width, render_page, wrap_prose
from evalguard.report.compare_terminal import model_lines
from evalguard.report.floor_texts import format_drift_size, format_nats
from evalguard.report.metric_labels import format_percent, is_in_sigma, margin_text
from evalguard.report.side_view import side_view

if TYPE_CHECKING:
    import pandas as pd


def floor_metric_name(of: MetricFloor | Shift) -> str:
    """Return "sw_word perplexity", with the filter where it has a name."""
    name = f"{of.task} {of.metric}"
    return printable(name if of.filter in ("", "none") else f"{name} ({of.filter})")


def floor_sentence(report: FloorReport) -> str:
    """Say what a measured floor means, by its largest number."""
    model = printable(report.model.name)
    number = len(report.variations)
    under = f"under all {number} variations" if number > 1 else "under the one variation"
    varied = max(report.floors, key=lambda floor: floor.other_answers or 0)
    if all(floor.bit_identical for floor in report.floors) and varied.other_answers:
        return (
            f"{model} gives every document the same score {under}, and other answers in up to "
            f"{varied.other_answers} of {varied.n} ({floor_metric_name(varied)}): an unchanged "
            "model shows no drift here, and does not repeat its answers."
        )
    if all(floor.bit_identical for floor in report.floors):
        return (
            f"{model} gives every document the same score, to the last bit, {under}: an unchanged "
            "model shows no drift here."
        )
    largest = max(report.floors, key=lambda floor: (floor.sigma, floor.sigma_upper))
    sentence = (
        f"Unchanged, {model} shows a drift of up to {format_drift_size(largest.sigma)} "
        "standard errors "
        f"({floor_metric_name(largest)}, {printable(largest.variation)}; intervals reach "
        f"{format_drift_size(largest.sigma_upper)}): a drift that is no larger says nothing "
        "about a conversion."
    )
    sentence += _kl_clause(report)
    above = [floor for floor in report.floors if floor.sigma > _allowed_margin(floor, report)]
    if above:
        worst = max(
            above, key=lambda floor: floor.sigma / max(_allowed_margin(floor, report), 1e-300)
        )
        what = (
            "That"
            if worst is largest
            else f"{format_drift_size(worst.sigma)} on {floor_metric_name(worst)}"
        )
        sentence += (
            f" {what} is above the margin of {_margin_phrase(worst, report)}: a gate would fail an "
        )
        sentence += "unchanged model."
    return sentence


def _allowed_margin(floor: MetricFloor, report: FloorReport) -> float:
    """The margin of a metric; infinite where a gate would not judge it."""
    if not floor.margin_text:
        return report.margin
    return math.inf if floor.margin is None else floor.margin


def _margin_phrase(floor: MetricFloor, report: FloorReport) -> str:
    allowed = _allowed_margin(floor, report)
    if is_in_sigma(floor.margin_text):
        return margin_text(allowed)
    return f"{printable(floor.margin_text)} ({allowed:.3g} sigma)"


def _kl_clause(report: FloorReport) -> str:
    if not report.distribution_floors:
        return ""
    largest = max(report.distribution_floors, key=lambda floor: floor.kl)
    return (
        f" Its next-token distributions move by a KL of up to {format_nats(largest.kl)} nats a "
        "token "
        f"({printable(largest.task)}, {printable(largest.variation)})."
    )


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
        omission = f"and {len(floors) - len(shown)} more, none with a larger drift"
        table.append(Text(fit_text(omission, width), style="dim"))
    missing, notes = list(_missing(report)), len(report.notes)
    shown_missing = missing[:_MOST_MISSING]
    if len(missing) > len(shown_missing):
        shown_missing.append(
            f"Not measured or compared, too: {len(missing) - len(shown_missing)} more"
        )
    held = f"{notes} note{'' if notes == 1 else 's'}" if notes else ""
    step = "Next: compare with this base; the report says how far above this floor a drift is."
    return [
        wrap_prose(floor_sentence(report), width, style="bold"),
        table,
        [
            *(line for text in shown_missing for line in _wrapped(text, width)),
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
    rows, lines_shown = dict(zip(report.shifts, lines, strict=True)), [head]
    for floor in report.floors:
        lines_shown.append(_metric_heading(floor, width))
        shifts = [shift for shift in report.shifts if shift.key == floor.key]
        if floor.bit_identical:
            names = ", ".join(printable(shift.variation) for shift in shifts)
            text = f"{_identical_text(floor)}: {names}"
            lines_shown += [Text(line) for line in wrap_text(text, width, first="  ", rest="    ")]
        else:
            lines_shown += [rows[shift] for shift in shifts]
    return [*lines_shown, *wrap_prose(_SIGMA_LEGEND, width, style="dim")]


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
    for unmeasured in report.unmeasured:
        where = printable(f"{unmeasured.task} {unmeasured.metric}".strip())
        on = f" on {where}" if where else ""
        reason = fit_text(
            printable(unmeasured.reason), _LONGEST_REASON
        )  # whole in the JSON document
        yield f"Not measured: {printable(unmeasured.name)}{on}: {reason}"
    for missing in report.not_compared:
        name = printable(f"{missing.task} {missing.metric}".strip())
        yield f"Not compared: {name}: {printable(missing.reason)}"


def _stored_text(report: FloorReport) -> str:
    if not report.kept:
        return ""
    files = "1 file" if len(report.kept) == 1 else f"{len(report.kept)} files"
    return f"Kept for comparisons with this base in this environment ({files})."


@dataclass(frozen=True, slots=True)
class FloorResult(Result[FloorReport]):
    """A measured floor: exit code 0, or 3 where a metric has no floor."""

    @property
    def floors(self) -> tuple[MetricFloor, ...]:
        """One floor per (task, filter, metric)."""
        return self.report.floors

    @property
    def shifts(self) -> tuple[Shift, ...]:
        """How far each variation moved each metric."""
        return self.report.shifts

    def to_dict(self) -> dict[str, Value]:
        """Return the JSON contract (schema ``evalguard.floor/1``) as plain data."""
        return floor_document(self.report)

    def to_pandas(self) -> pd.DataFrame:
        """Return one row per variation and metric, one column per field of ``Shift``.

        ``sigma_interval`` becomes ``sigma_low`` and ``sigma_high``.
        """
        import pandas as pd

        rows = []
        for shift in self.shifts:
            row = {f.name: getattr(shift, f.name) for f in dataclasses.fields(shift)}
            low, high = row.pop("sigma_interval")
            rows.append({**row, "sigma_low": low, "sigma_high": high})
        return pd.DataFrame(rows)

    def render(self, *, width: int = 80, color: bool = False, verbose: bool = False) -> str:
        """Return the screen that the command line prints; with ``verbose`` all of the floor."""
        return render_floor(self.report, width=width, color=color, verbose=verbose)
