"""A trace for people: the terminal, its page, and its section in a comparison's page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isinf, log10

from markupsafe import Markup
from rich.text import Text

from evalguard.page.charts import AxisScale, draw_line, draw_picture, draw_text
from evalguard.page.html_page import html_page, make_tag
from evalguard.page.safe_text import fit_text, wrap_text
from evalguard.page.table import Table
from evalguard.page.terminal import (
    NARROWEST,
    more_lines,
    next_lines,
    prose_width,
    render_page,
    wrap_prose,
)
from evalguard.tracing.trace_report import TraceReport
from evalguard.tracing.trace_view import DepthPoint, SuspectView, TraceView, build_trace_view
from evalguard.tracing.trace_words import TraceState, format_ratio

TRACE_SCRIPTS = ("sortable.js", "beyond.js")
_HEIGHT, _NARROWEST, _WIDEST, _STEP = 260.0, 560.0, 1100.0, 26.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 56.0, 16.0, 24.0, 70.0
_MOST_POWERS = 6.0
_LONGEST_LABEL = 14
_MOST_LABELS = 30
_ENDLESS = 1e15  # an infinite ratio is drawn here


def render_trace_page(report: TraceReport) -> str:
    """Return the page of a trace."""
    view = build_trace_view(report)
    return html_page(
        "tracing/trace.html", scripts=TRACE_SCRIPTS, trace=view, growth=draw_growth(view)
    )


def draw_growth(view: TraceView) -> Markup:
    """Draw both ratios over depth on a logarithmic axis; empty where there is too little.

    Dots: the largest local ratio of each layer, red above the threshold. A line: the accumulated
    ratio behind it. A dashed line: the threshold.
    """
    points = view.growth
    if len(points) < 2:
        return Markup()
    width = min(max(_NARROWEST, _LEFT + _RIGHT + _STEP * len(points)), _WIDEST)
    across = AxisScale(low=0.0, high=float(len(points) - 1), start=_LEFT + 8, stop=width - _RIGHT)
    powers = [
        _power(ratio)
        for point in points
        for ratio in (point.local, point.accumulated, view.threshold)
        if ratio is not None
    ]
    up = AxisScale.over([*powers, 0.0], _HEIGHT - _BOTTOM, _TOP)
    parts = [*_draw_frame(up, width), *_draw_labels(points, across)]
    if view.threshold is not None:
        y = up.at(_power(view.threshold))
        parts.append(make_tag("line", class_="margin", x1=_LEFT, x2=width, y1=y, y2=y))
    line = [
        (across.at(at), up.at(_power(point.accumulated)))
        for at, point in enumerate(points)
        if point.accumulated is not None
    ]
    if len(line) > 1:
        parts.append(draw_line(line, "accumulated"))
    for at, point in enumerate(points):
        if point.local is not None:
            parts.append(
                _draw_dot(point, across.at(at), up.at(_power(point.local)), view.threshold)
            )
    description = f"Error over the floor at {len(points)} places in order of depth. {view.lead}"
    return draw_picture(width, _HEIGHT, description, *parts, kind="growth")


def _power(ratio: float | None) -> float:
    if ratio is None or ratio <= 0.0:
        return -1.0
    return log10(_ENDLESS if ratio == inf else max(ratio, 0.1))


def _draw_dot(one: DepthPoint, x: float, y: float, threshold: float | None) -> Markup:
    beyond = one.local is not None and threshold is not None and one.local > threshold
    title = make_tag(
        "title",
        f"{one.label}: local {format_ratio(one.local)}, accumulated "
        f"{format_ratio(one.accumulated)} the floor",
    )
    kind = "point beyond first" if one.first else "point beyond" if beyond else "point"
    return make_tag("circle", title, class_=kind, cx=x, cy=y, r=6.0 if one.first else 4.0)


def _draw_frame(up: AxisScale, width: float) -> list[Markup]:
    step = max(1, round((up.high - up.low) / _MOST_POWERS))
    parts = []
    for power in range(int(up.low) - 1, int(up.high) + 1):
        if not up.low <= power <= up.high or power % step:
            continue
        y = up.at(float(power))
        parts.append(make_tag("line", class_="grid", x1=_LEFT, x2=width, y1=y, y2=y))
        parts.append(draw_text(_LEFT - 6, y + 4, _power_text(power), anchor="end"))
    bottom = _HEIGHT - _BOTTOM
    parts.append(make_tag("line", class_="axis", x1=_LEFT, x2=width, y1=bottom, y2=bottom))
    parts.append(draw_text(4.0, _TOP - 10, "error over the floor", kind="name"))
    return parts


def _power_text(power: int) -> str:
    return f"{10.0**power:g}x" if -2 <= power <= 4 else f"1e{power}x"


def _draw_labels(points: tuple[DepthPoint, ...], across: AxisScale) -> list[Markup]:
    """Names below the axis, turned; every few where they would crowd."""
    step = max(1, -(-len(points) // _MOST_LABELS))
    parts = []
    for at, point in enumerate(points):
        if at % step and not point.first:
            continue
        x, y = across.at(at), _HEIGHT - _BOTTOM + 12
        text = point.label if len(point.label) <= _LONGEST_LABEL else f"{point.label[:12]}…"
        parts.append(
            make_tag(
                "text", text, class_="tick", x=x, y=y, text_anchor="end",
                transform=f"rotate(-40 {x:.1f} {y:.1f})",
            )
        )  # fmt: skip
    return parts


def growth_lines(view: TraceView, width: int, most: int) -> list[Text]:
    """Return a row of a table for each depth, at most about ``most``; none for fewer than two."""
    points = _merge_depths(view.growth, most) if most else []
    if len(points) < 2:
        return []
    label = min(max(len(point.label) for point in points) + 2, width // 3)
    room = max(width - label - 22, 4)
    top = max(_bar_power(point.accumulated) for point in points)
    scale = room / max(top, 1.0)  # a whole bar is ten times the floor or more
    title = "Growth over depth: error over the floor, bars in powers of ten"
    lines = wrap_prose(title, width, style="dim")
    rows = []
    for point in points:
        bar = "#" * round(_bar_power(point.accumulated) * scale)
        name = fit_text(f"{'> ' if point.first else '  '}{point.label}", label)
        rows.append([name, format_ratio(point.local), f"{format_ratio(point.accumulated):<9}{bar}"])
    styles = ["dim", *("bold" if point.first else "" for point in points)]
    table = Table(headings=["", f"{'local':<8}", "accumulated"], rows=rows, leaving=())
    return [*lines, *table.lines(width, styles)]


def _bar_power(ratio: float | None) -> float:
    """Powers of ten above the floor; an infinite one as a large one."""
    if ratio is None or ratio <= 1.0:
        return 0.0
    return 15.0 if isinf(ratio) else log10(ratio)


def _merge_depths(points: Sequence[DepthPoint], most: int) -> list[DepthPoint]:
    """Join neighbouring layers until there are about so many rows; the first suspect's stays."""
    if len(points) <= most:
        return list(points)
    plain = [point for point in points if _is_plain_layer(point)]
    step = -(-len(plain) // max(most - (len(points) - len(plain)), 1))
    merged: list[DepthPoint] = []
    group: list[DepthPoint] = []
    for point in points:
        if group and (not _is_plain_layer(point) or len(group) == step):
            merged.append(_joined(group))
            group = []
        if _is_plain_layer(point):
            group.append(point)
        else:
            merged.append(point)
    return [*merged, *([_joined(group)] if group else [])]


def _is_plain_layer(one: DepthPoint) -> bool:
    return one.layer is not None and not one.first


def _joined(group: Sequence[DepthPoint]) -> DepthPoint:
    if len(group) == 1:
        return group[0]
    local = [point.local for point in group if point.local is not None]
    far = [point.accumulated for point in group if point.accumulated is not None]
    return DepthPoint(
        label=f"layers {group[0].layer}-{group[-1].layer}", local=max(local, default=None),
        accumulated=max(far, default=None), first=False,
    )  # fmt: skip


_MOST_LAYERS, _MOST_UNALIGNED = 400, 8
_LEAST_POINT = 16


def everything_blocks(view: TraceView, width: int) -> list[list[Text]]:
    """Return the blocks, of which some may be empty."""
    return [
        _hyperparameters(view, width),
        _layers(view, width),
        _unaligned(view, width),
        [line for name, value in view.twin for line in wrap_prose(f"{name}: {value}", width)],
    ]


def _hyperparameters(view: TraceView, width: int) -> list[Text]:
    differing = [parameter for parameter in view.hyperparameters if parameter.verdict != "equal"]
    header = ["", "base", "candidate", "", "where"]
    rows = [
        [parameter.name, parameter.base, parameter.candidate, parameter.verdict, parameter.where]
        for parameter in differing
    ]
    if not rows:
        return wrap_prose(view.configuration, width)
    lines = Table(headings=header, rows=rows, leaving=(), giving_way=4).lines(width)
    return [*lines, *wrap_prose(f"{view.equal} more are equal", width, style="dim")]


def _layers(view: TraceView, width: int) -> list[Text]:
    header = ["", "x floor", "local L2", "floor", "x acc.", "accum. L2", "cosine", "max abs"]
    rows = [
        [
            layer.point, layer.local_ratio, layer.local, layer.floor, layer.accumulated_ratio,
            layer.accumulated, layer.cosine, layer.max_abs,
        ]
        for layer in view.layers[:_MOST_LAYERS]
    ]  # fmt: skip
    if not rows:
        return []
    styles = ["dim", *("red" if layer.beyond else "" for layer in view.layers[: len(rows)])]
    table = Table(
        headings=header, rows=rows, leaving=range(7, 3, -1), giving_way=0, least=_LEAST_POINT
    )
    lines = table.lines(width, styles)
    omitted = len(view.layers) - len(rows)
    return [*lines, *(wrap_prose(f"and {omitted} more: --json", width) if omitted else [])]


def _unaligned(view: TraceView, width: int) -> list[Text]:
    lines: list[Text] = []
    for side, name, reason in view.unaligned[:_MOST_UNALIGNED]:
        text = f"Not aligned: {name} ({side}): {reason}"
        lines += [Text(line) for line in wrap_text(text, prose_width(width), rest="  ")]
    omitted = len(view.unaligned) - _MOST_UNALIGNED
    if omitted > 0:
        lines += wrap_prose(f"and {omitted} more that are not aligned: --json", width)
    if view.never_run:
        lines += wrap_prose(f"Never run: {', '.join(view.never_run)}", width)
    return lines


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
    end = " ... (-v)"
    return [*lines[: most - 1], Text(f"{last[: max(len(last) - len(end), 0)]}{end}")]


def _suspects(view: TraceView, width: int, of: _Shown) -> list[Text]:
    if not of.suspects:
        return []
    rows = (*view.suspects, *view.other_layouts)
    shown = list(rows[: of.suspects])
    first = next((suspect for suspect in view.suspects if suspect.is_first), None)
    if first is not None and first not in shown:
        shown[-1:] = [first]
    if not shown:
        return []
    swap = any(suspect.swap for suspect in shown)
    header = ["", "local", *(["swap-in"] if swap else []), "what differs"]
    styles = ["dim", *("bold" if suspect.is_first else "" for suspect in shown)]
    table = Table(
        headings=header, rows=[_suspect_row(suspect, width, swap=swap) for suspect in shown],
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
    for detail in view.details:
        lines = [Text(fit_text(f"In detail: {detail.point}", width), style="dim")]
        if detail.heads:
            heads = ", ".join(f"{head}: {error}" for head, error in detail.heads)
            lines += wrap_prose(f"relative L2 by head: {heads}", width)
        if detail.tokens:
            header = ["document", "token", "text", "relative L2"]
            lines += Table(headings=header, rows=list(map(list, detail.tokens))).lines(width)
        blocks.append(lines)
    return blocks


def _next(view: TraceView, width: int, shown: _Shown) -> list[Text]:
    to = "to " if view.next_command else ""
    lines = next_lines(f"{to}{view.next_step}", view.next_command, width)
    everything = shown.caveats is None
    if view.folder:
        page = "" if everything else ", with trace.html"
        lines += wrap_prose(f"Saved in {view.folder}{page}", width)
    caveats = view.caveats[: shown.caveats]
    for text in caveats:
        lines += [
            Text(line) for line in wrap_text(f"Caveat: {text}", prose_width(width), rest="  ")
        ]
    if everything:
        return lines
    rest = len(view.caveats) - len(caveats)
    held = [f"{rest} more caveat{'s' if rest > 1 else ''}"] if rest and caveats else []
    held += [f"{rest} caveat{'s' if rest > 1 else ''}"] if rest and not caveats else []
    held += ["growth over depth"] if not shown.depths and len(view.growth) > 1 else []
    held += [f"{len(view.unaligned)} not aligned"] if view.unaligned else []
    return [*lines, *more_lines(view.folder, "; ".join(held), width)]
