"""What ``evalguard trace -v`` adds: hyper-parameters, every measured point, what is not aligned."""

from __future__ import annotations

from rich.text import Text

from evalguard.report.table import Table
from evalguard.report.terminal_page import (
    prose_width,
    wrap_prose,
)
from evalguard.report.trace.trace_view import TraceView
from evalguard.report.words.plain_text import wrap_text

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
    told = [one for one in view.hyperparameters if one.verdict != "equal"]
    header = ["", "base", "candidate", "", "where"]
    rows = [[one.name, one.base, one.candidate, one.verdict, one.where] for one in told]
    if not rows:
        return wrap_prose(view.configuration, width)
    lines = Table(headings=header, rows=rows, leaving=(), giving_way=4).lines(width)
    return [*lines, *wrap_prose(f"{view.equal} more are equal", width, style="dim")]


def _layers(view: TraceView, width: int) -> list[Text]:
    header = ["", "x floor", "local L2", "floor", "x acc.", "accum. L2", "cosine", "max abs"]
    rows = [
        [
            one.point, one.local_ratio, one.local, one.floor, one.accumulated_ratio,
            one.accumulated, one.cosine, one.max_abs,
        ]
        for one in view.layers[:_MOST_LAYERS]
    ]  # fmt: skip
    if not rows:
        return []
    styles = ["dim", *("red" if one.beyond else "" for one in view.layers[: len(rows)])]
    table = Table(
        headings=header, rows=rows, leaving=range(7, 3, -1), giving_way=0, least=_LEAST_POINT
    )
    lines = table.lines(width, styles)
    more = len(view.layers) - len(rows)
    return [*lines, *(wrap_prose(f"and {more} more: --json", width) if more else [])]


def _unaligned(view: TraceView, width: int) -> list[Text]:
    lines: list[Text] = []
    for side, name, reason in view.unaligned[:_MOST_UNALIGNED]:
        text = f"Not aligned: {name} ({side}): {reason}"
        lines += [Text(line) for line in wrap_text(text, prose_width(width), rest="  ")]
    more = len(view.unaligned) - _MOST_UNALIGNED
    if more > 0:
        lines += wrap_prose(f"and {more} more that are not aligned: --json", width)
    if view.never_run:
        lines += wrap_prose(f"Never run: {', '.join(view.never_run)}", width)
    return lines
