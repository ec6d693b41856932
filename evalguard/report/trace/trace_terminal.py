"""A trace in a terminal: the answer first, suspects, what to do next."""

from __future__ import annotations

from dataclasses import dataclass

from rich.text import Text

from evalguard.core.reports.trace_report import TraceReport
from evalguard.report.table import Table
from evalguard.report.terminal_page import (
    NARROWEST,
    more_lines,
    next_lines,
    prose_width,
    render_page,
    wrap_prose,
)
from evalguard.report.trace.growth_bars import growth_lines
from evalguard.report.trace.trace_details import everything_blocks
from evalguard.report.trace.trace_view import SuspectView, TraceView, build_trace_view
from evalguard.report.trace.trace_words import TraceState
from evalguard.report.words.plain_text import fit_text, wrap_text

STATE_STYLES: dict[TraceState, str] = {
    "located": "bold red",
    "clear": "bold green",
    "unknown": "bold magenta",
}
_SCREEN = 24  # lines
_USUAL_WIDTH = 80  # where it is narrower, rows need more lines
_MOST_SUSPECTS, _MOST_DEPTHS = 6, 10
_LEAST_MODULE = 20  # cells; of a wide terminal a name may take more


def render_trace(
    report: TraceReport, *, width: int, color: bool = False, verbose: bool = False
) -> str:
    """Return ``report`` as text of at most ``width`` cells a line, without a final line break.

    One screen, the answer and what to do next on it; what was asked for in detail follows. With
    ``verbose`` the growth over depth, every measured point, all hyper-parameters and what could not
    be aligned follow. No name can act on the terminal; without ``color`` there is no escape
    character.
    """
    width = max(width, NARROWEST)
    view = build_trace_view(report)
    if not verbose:
        blocks = [*_first_screen(view, width), *_details(view, width)]
        return render_page(blocks, width, color=color)
    rows = len(view.suspects) + len(view.other_layouts)
    everything = _Shown(suspects=rows, depths=_MOST_DEPTHS, caveats=None)
    blocks = [
        _answer(view, width, everything),
        _suspects(view, width, everything),
        growth_lines(view, width, everything.depths),
        *_details(view, width),
        *everything_blocks(view, width),
        _next(view, width, everything),
    ]
    return render_page(blocks, width, color=color)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shown:
    """How much of a trace is shown.

    Attributes:
        suspects: rows; 0: no table, for the answer names the first one.
        depths: rows of the growth over depth; 0: none.
        caveats: the first ones; None: all.
        lines: of a paragraph of the answer; None: all.
    """

    suspects: int = _MOST_SUSPECTS
    depths: int = 0
    legend: bool = True
    numbers: bool = True
    sides: bool = True
    caveats: int | None = 2
    lines: int | None = None


# Of what goes first where it is more than a screen: the growth, further suspects, figures; the
# first caveat (another class of model, say) stays as long as it can.
_SCREENS = (
    _Shown(depths=_MOST_DEPTHS),
    _Shown(depths=_MOST_DEPTHS // 2),
    _Shown(),
    _Shown(suspects=3),
    _Shown(suspects=3, legend=False, caveats=1),
    _Shown(suspects=2, legend=False, caveats=1),
    _Shown(suspects=2, legend=False, caveats=1, sides=False, lines=4),
    _Shown(suspects=0, legend=False, caveats=1, lines=4),
    _Shown(suspects=2, legend=False, caveats=0),
    _Shown(suspects=2, legend=False, caveats=0, sides=False, lines=4),
    _Shown(suspects=0, legend=False, caveats=0, lines=4),
    _Shown(suspects=0, legend=False, caveats=0, sides=False, numbers=False, lines=3),
    _Shown(suspects=0, legend=False, caveats=0, sides=False, numbers=False, lines=2),
)


def _first_screen(view: TraceView, width: int) -> list[list[Text]]:
    """The blocks of one screen, with as much of the table and the growth as there is room for."""
    room = _SCREEN if width >= _USUAL_WIDTH else 2 * _SCREEN
    blocks: list[list[Text]] = []
    for shown in _SCREENS:
        made = [
            _answer(view, width, shown),
            _suspects(view, width, shown),
            growth_lines(view, width, shown.depths),
            _next(view, width, shown),
        ]
        blocks = [block for block in made if block]
        if sum(map(len, blocks)) + len(blocks) - 1 <= room:
            break
    return blocks


def _answer(view: TraceView, width: int, shown: _Shown) -> list[Text]:
    head = f"{view.headline}; exit code {view.exit_code}"
    lines = [Text(line, style="bold") for line in wrap_text(head, width)]
    lines[0].stylize(STATE_STYLES[view.state], 0, len(view.state) + 1)
    paragraphs = [
        view.nonfinite,
        *(f"Likely why: {text}" for text in view.because),
        view.padded,
        view.numbers if shown.numbers else "",
        view.weights,
        "" if view.because else view.configuration,
    ]
    for text in paragraphs:
        lines += _cut(wrap_prose(text, width), shown.lines)
    sides = f"base {view.base.name}, candidate {view.candidate.name}"
    if shown.sides:
        lines += wrap_prose(f"{sides}: {view.documents} ({view.chosen})", width, style="dim")
    return lines


def _cut(lines: list[Text], most: int | None) -> list[Text]:
    if most is None or len(lines) <= most:
        return lines
    last = lines[most - 1].plain
    return [*lines[: most - 1], Text(f"{last[: max(len(last) - 4, 0)]} ...")]


def _suspects(view: TraceView, width: int, of: _Shown) -> list[Text]:
    if not of.suspects:
        return []
    rows = (*view.suspects, *view.other_layouts)
    shown = list(rows[: of.suspects])
    first = next((one for one in view.suspects if one.is_first), None)
    if first is not None and first not in shown:
        shown[-1:] = [first]
    if not shown:
        return []
    swap = any(one.swap for one in shown)
    header = ["", "local", *(["swap-in"] if swap else []), "what differs"]
    styles = ["dim", *("bold" if one.is_first else "" for one in shown)]
    table = Table(
        headings=header, rows=[_suspect_row(one, width, swap=swap) for one in shown],
        leaving=[len(header) - 1], giving_way=0, least=_LEAST_MODULE, wrapping=True,
    )  # fmt: skip
    lines = table.lines(width, styles)
    rest = len(rows) - len(shown)
    if rest:
        lines += wrap_prose(f"and {rest} more", width, style="dim")
    if not of.legend:
        return lines
    legend = view.legend
    if swap:
        legend += (
            f" Swap-in: sigma that goes away on {view.swap_task} with this module from the base."
        )
    return [*lines, *wrap_prose(legend, width, style="dim")]


def _suspect_row(one: SuspectView, width: int, *, swap: bool) -> list[str]:
    name = fit_text(
        f"{'> ' if one.is_first else '  '}{one.module}", max(_LEAST_MODULE, 3 * width // 5)
    )
    sigma = [one.swap or "-"] if swap else []
    return [name, one.local, *sigma, one.cancels or one.difference]


def _details(view: TraceView, width: int) -> list[list[Text]]:
    blocks = []
    for one in view.details:
        lines = [Text(fit_text(f"In detail: {one.point}", width), style="dim")]
        if one.heads:
            heads = ", ".join(f"{head}: {error}" for head, error in one.heads)
            lines += wrap_prose(f"relative L2 by head: {heads}", width)
        if one.tokens:
            header = ["document", "token", "text", "relative L2"]
            lines += Table(headings=header, rows=list(map(list, one.tokens))).lines(width)
        blocks.append(lines)
    return blocks


def _next(view: TraceView, width: int, shown: _Shown) -> list[Text]:
    to = "to " if view.next_command else ""
    lines = next_lines(f"{to}{view.next_step}", view.next_command, width)
    everything = shown.caveats is None
    if view.folder:
        page = "" if everything else ", with trace.html"
        lines += wrap_prose(f"Saved in {view.folder}{page}", width)
    told = view.caveats[: shown.caveats]
    for text in told:
        lines += [
            Text(line) for line in wrap_text(f"Caveat: {text}", prose_width(width), rest="  ")
        ]
    if everything:
        return lines
    rest = len(view.caveats) - len(told)
    held = [f"{rest} more caveat{'s' if rest > 1 else ''}"] if rest and told else []
    held += [f"{rest} caveat{'s' if rest > 1 else ''}"] if rest and not told else []
    held += ["growth over depth"] if not shown.depths and len(view.growth) > 1 else []
    held += [f"{len(view.unaligned)} not aligned"] if view.unaligned else []
    return [*lines, *more_lines(view.folder, "; ".join(held), width)]
