"""The compare report in a terminal: the view, laid out for the width there is."""

from __future__ import annotations

from collections.abc import Iterable

from rich.cells import cell_len
from rich.text import Text

from evalguard.core.reports.compare_report import CompareReport
from evalguard.report.bisection_terminal import bisection_lines, fix_lines
from evalguard.report.distribution_table import distribution_lines
from evalguard.report.metric_table import left_out_states, metric_table, worst_metrics_table
from evalguard.report.terminal_page import (
    NARROWEST,
    command_lines,
    more_lines,
    next_lines,
    prose_width,
    render_page,
    wrap_prose,
)
from evalguard.report.view.report_view import LimitView, ReportView, build_report_view
from evalguard.report.view.screen import others_text
from evalguard.report.view.side_view import SideView
from evalguard.report.words.glossary import SIGMA_UNIT
from evalguard.report.words.metric_labels import STATE_STYLE
from evalguard.report.words.plain_text import (
    fit_text,
    is_wider,
    pack_lines,
    pad_text,
    wrap_keeping_intervals,
    wrap_text,
)

_LEAST_ABOUT, _MOST_ABOUT = 24, 240  # cells
_SCREEN = 24  # lines
_USUAL_WIDTH = 80  # where it is narrower, rows need more lines
_MOST_ROWS, _FEWEST_ROWS = 10, 3
_FEW_TASKS = 3
_MOST_LEFT_OUT = 4


def render_terminal(
    report: CompareReport, *, width: int, color: bool, verbose: bool = False
) -> str:
    """Return ``report`` as text of at most ``width`` cells a line, without a final line break.

    One screen: the verdict, its cause, the worst metrics, the next step, where the rest is. With
    ``verbose`` the rest follows. Nothing that comes from a file or a model (names, reasons,
    caveats) can act on the terminal. With ``color`` the text holds ANSI styles; without, it holds
    no escape character at all.
    """
    width = max(width, NARROWEST)
    view = build_report_view(report)
    blocks = _long_form(view, width) if verbose else _first_screen(view, width)
    return render_page(blocks, width, color=color)


def _first_screen(view: ReportView, width: int) -> list[list[Text]]:
    """The blocks of the first screen; of few tasks, with as many metrics as keep it one screen.

    What else stands elsewhere goes before a metric does: the folder's own line, then the names.
    Where it is still too much, caveats beyond the first are only counted.
    """
    room = _SCREEN if width >= _USUAL_WIDTH else 2 * _SCREEN
    fewest = _FEWEST_ROWS if len(view.tasks) <= _FEW_TASKS else _MOST_ROWS
    sizes = [(rows, saved) for rows in range(_MOST_ROWS, fewest - 1, -1) for saved in (True, False)]
    blocks: list[list[Text]] = []
    for rows, saved in sizes:
        legend = f"sigma: {SIGMA_UNIT}" if view.metrics else ""
        named = sides_line(view.base, view.candidate, width, legend=legend)
        blocks = [
            _verdict(view, width),
            [*named, *_worst(view, width, rows)],
            _next_lines(view, width, saved=saved),
        ]
        height = sum(map(len, blocks)) + len(blocks) - 1
        if height > room and len(named) > 1:  # commands name both models, too
            blocks[1] = blocks[1][1:]
            height -= 1
        if height <= room:
            return blocks
    for caveats in range(len(view.touching) - 1, 0, -1):
        blocks[2] = _next_lines(view, width, saved=False, caveats=caveats)
        if sum(map(len, blocks)) + len(blocks) - 1 <= room:
            break
    return blocks


def _long_form(view: ReportView, width: int) -> list[list[Text]]:
    """The first screen with all metrics, then everything else."""
    return [
        _verdict(view, width),
        _table(view, width),
        _next_lines(view, width, everything=True),
        sides_lines(view.base, view.candidate, width),
        wrap_prose(view.sentence, width),
        [Text(line) for line in distribution_lines(view, width, prose_width(width))],
        _paragraph_lines(view.kl_estimates, width),
        _generations(view, width),
        _tests(view, width),
        _paragraph_lines(view.answers, width),
        _paragraph_lines(view.stopping, width, rest="    "),
        _gate(view, width),
        _paragraph_lines([view.influence], width),
        _caveats(view, width),
        _paragraph_lines(view.left_out, width, rest="  ", style="dim"),
        bisection_lines(view, width),
        fix_lines(view, width),
        _paragraph_lines([view.resources], width, rest="  ", style="dim"),
    ]


def sides_lines(base: SideView, candidate: SideView, width: int) -> list[Text]:
    """Return a line for the base and one for the candidate: name, description, digest."""
    both = (("base", base), ("candidate", candidate))
    name_width = min(max(cell_len(side.name) for _, side in both), width // 3)
    lines = []
    for role, side in both:
        lines += model_lines(f"{role:<9}  {pad_text(side.name, name_width)}", side, width)
    return lines


def model_lines(head: str, side: SideView, width: int) -> list[Text]:
    """Return a model's line: ``head``, and what stands behind it, on further lines if need be."""
    head = fit_text(head, width)
    room = width - cell_len(head) - 2
    parts = fit_text(side.about, _MOST_ABOUT).replace(", ", ",\n").split("\n")
    if not side.about:
        return [Text(head, style="bold")]
    if room < _LEAST_ABOUT:
        return [Text(head, style="bold"), *_dim(pack_lines(parts, width, gap=" ", indent="  "))]
    first, *rest = pack_lines(parts, room, gap=" ")
    beside = " " * (cell_len(head) + 2)
    top = Text.assemble((head, "bold"), (f"  {first}", "dim"))
    return [top, *_dim([beside + line for line in rest])]


def _dim(lines: Iterable[str]) -> list[Text]:
    return [Text(line, style="dim") for line in lines]


def _table(view: ReportView, width: int) -> list[Text]:
    lines = metric_table(view, width=width)
    for text in (*view.hidden, view.legend):
        lines += wrap_prose(text, width, style="dim")
    return lines


def _paragraph_lines(
    texts: Iterable[str], width: int, *, rest: str = "", style: str = ""
) -> list[Text]:
    """Return paragraphs as lines; none for an empty one."""
    return [
        Text(line, style=style)
        for text in texts
        if text
        for line in wrap_text(text, prose_width(width), rest=rest)
    ]


def _verdict(view: ReportView, width: int) -> list[Text]:
    """The verdict and its cause; what a waiver lets through, and limits that are not kept."""
    lines = [Text(line, style="bold") for line in wrap_keeping_intervals(view.first, width)]
    lines[0].stylize(STATE_STYLE[view.state], 0, len(view.state) + 1)
    lines += [Text(line) for line in wrap_text(view.cause, width, rest="  ") if view.cause]
    prices = None if view.bisection is None else view.bisection.prices
    if prices is not None and prices.first:
        lines += [Text(line) for line in wrap_text(prices.first, width, rest="  ")]
    for text in view.findings:
        lines += [Text(line) for line in wrap_text(f"Note: {text}", width, rest="  ")]
    for text in view.accepted:
        lines += [Text(line) for line in wrap_text(text, width, rest="    ")]
    for limit in view.limits:
        if limit.state != "passed" and not limit.is_first:
            lines += _limit(limit, width)
    return lines + _paragraph_lines([view.floor], width)


def _limit(limit: LimitView, width: int) -> list[Text]:
    broken = wrap_text(limit.line, width, rest="    ")
    return [Text(line, style=STATE_STYLE[limit.state]) for line in broken]


def _gate(view: ReportView, width: int) -> list[Text]:
    """The gate as a paragraph: how many metrics came to what, and its chance of a false alarm."""
    lines = wrap_prose(view.verdict, width)
    for limit in view.limits:
        lines += _limit(limit, width)
    return lines


def sides_line(base: SideView, candidate: SideView, width: int, *, legend: str = "") -> list[Text]:
    """Return one line that names both models, and what they are where both are the same.

    Args:
        legend: of the table below, on the same line where there is room.
    """
    names = f"base {base.name}, candidate {candidate.name}"
    same = base.description == candidate.description
    about = f"{names}: {base.description}" if same and base.description else names
    both = (f"{text}; {legend}" for text in (about, names))
    line = next((text for text in both if legend and not is_wider(text, width)), "")
    if line:
        return [Text(line, style="dim")]
    text = next((text for text in (about, names) if not is_wider(text, width)), "")
    return [Text(text, style="dim") for text in (text, legend) if text]


def _worst(view: ReportView, width: int, rows: int) -> list[Text]:
    if not view.metrics:  # why is all that there is to say
        told = view.left_out[:_MOST_LEFT_OUT]
        more = len(view.left_out) - len(told)
        rest = [f"and {more} more not compared"] if more else []
        return _paragraph_lines([*told, *rest], width, rest="  ")
    lines = worst_metrics_table(view, width=width, most=rows, said=view.stated)
    others = others_text(left_out_states(view, most=rows), accepted=bool(view.accepted))
    below = [others, view.spread, view.answers_change]
    return [*lines, *_paragraph_lines(below, width, rest="  ", style="dim")]


def _next_lines(
    view: ReportView,
    width: int,
    *,
    everything: bool = False,
    saved: bool = True,
    caveats: int | None = None,
) -> list[Text]:
    """What to do next, and where the rest is.

    Args:
        saved: the folder on a line of its own.
        caveats: that bear on the verdict, at most so many; None: all.
    """
    lines = next_lines(view.next_step, view.next_command, width)
    lines += trace_lines(view.trace_command, width)
    if view.run_folder and saved:
        page = "" if everything else ", with report.html"
        lines += _paragraph_lines([f"Saved in {view.run_folder}{page}"], width, rest="  ")
    for tracked in view.tracked:
        lines += _paragraph_lines([tracked.text], width, rest="  ") + command_lines(
            tracked.command, width
        )
    if everything:
        return lines
    touching = view.touching[:caveats]
    number, here = len(view.caveats), len(touching)
    held = [f"{number} caveat{'' if number == 1 else 's'}"] if number else []
    if here:
        held[0] += f", {'all' if here == number else here} here"
    if view.left_out and view.metrics:
        held.append(f"{len(view.left_out)} not compared")
    lines += more_lines(view.run_folder, "; ".join(held), width)
    for caveat in touching:
        lines += [Text(line) for line in wrap_text(caveat.line, width, first="  ", rest="    ")]
    return lines


def trace_lines(command: str, width: int) -> list[Text]:
    """Return the command that looks inside the model, on one line where there is room."""
    if not command:
        return []
    head = "Where in the model: "
    if not is_wider(head + command, width):
        return [Text.assemble((head, "bold"), (command, "cyan"))]
    return [Text(fit_text(head.rstrip(), width), style="bold"), *command_lines(command, width)]


def _generations(view: ReportView, width: int) -> list[Text]:
    """Each task's generated answers as a paragraph, then what to know of them."""
    told = [one.line for one in view.generations]
    remarks = [f"{one.task}: {text}" for one in view.generations for text in one.remarks]
    return _paragraph_lines([*told, *remarks, view.generations_legend], width, rest="  ")


def _tests(view: ReportView, width: int) -> list[Text]:
    """The deciding test of each metric, and those beside it."""
    told = []
    for metric in view.metrics:
        beside = [f"{name} p {p}{f' ({note})' if note else ''}" for name, p, note in metric.tests]
        if metric.shown and beside:
            head = f"Tests, {metric.full_label}: {metric.method} p {metric.p}"
            told.append("; ".join([head, *beside]))
    return _paragraph_lines(told, width, rest="  ")


def _caveats(view: ReportView, width: int) -> list[Text]:
    lines = [Text("Caveats", style="dim")] if view.caveats else []
    for caveat in view.caveats:
        head = f"{caveat.number:>2}. "
        broken = wrap_text(caveat.line, prose_width(width), first=head, rest=" " * len(head))
        lines += [Text(line, style="dim") for line in broken]
    return lines
