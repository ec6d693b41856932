"""Which of a bisection's settings were at their candidate value, one cell each."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from markupsafe import Markup

from evalguard.report.html.chart_frame import draw_picture
from evalguard.report.html.markup import make_tag

_HEIGHT, _WIDEST, _CELL = 14.0, 220.0, 14.0


def draw_settings_strip(
    settings: Sequence[str], candidate: Collection[str], guilty: Collection[str]
) -> Markup:
    """A cell per setting in its order: filled at the candidate value, marked where guilty."""
    cell = min(_CELL, _WIDEST / max(len(settings), 1))
    gap = 2.0 if cell > 6.0 else 0.0
    cells = [
        make_tag(
            "rect",
            make_tag("title", name),
            class_=_cell_class(name, candidate, guilty),
            x=number * cell + gap / 2,
            y=1.0,
            width=cell - gap,
            height=_HEIGHT - 2.0,
        )
        for number, name in enumerate(settings)
    ]
    at = len([name for name in settings if name in candidate])
    said = f"{at} of {len(settings)} settings at their candidate value"
    return draw_picture(cell * len(settings), _HEIGHT, said, *cells, kind="strip")


def _cell_class(name: str, candidate: Collection[str], guilty: Collection[str]) -> str:
    at = "at-candidate" if name in candidate else "at-reference"
    return f"{at} guilty" if name in guilty else at
