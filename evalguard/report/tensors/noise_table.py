"""A measured noise table in a terminal."""

from __future__ import annotations

from evalguard.core.tensors.noise import NoiseRange, NoiseTable
from evalguard.report.table import Table
from evalguard.report.terminal_page import NARROWEST, render_page, wrap_prose
from evalguard.report.words.plain_text import printable


def render_noise(
    table: NoiseTable, *, width: int, color: bool, figure: float | None = None, family: str = ""
) -> str:
    """Return a measured noise table; with a ``figure`` first what it looks like (``family``)."""
    width = max(width, NARROWEST)
    header = ["", "greatest absolute", "greatest relative", "mismatched"]
    rows = [
        [
            f"{one.name} ({one.family})" if one.family != one.name else one.name,
            "0, bit-identical" if one.exact else _range_text(one.greatest_absolute),
            "" if one.exact else _range_text(one.greatest_relative),
            "" if one.exact else _share_text(one.mismatched_share),
        ]
        for one in table.classes
    ]
    answer = ""
    if figure is not None:
        answer = (
            f"A greatest absolute difference of {figure:g} looks like {family}"
            if family
            else f"A greatest absolute difference of {figure:g} is in none of these ranges"
        )
    about = (
        f"Noise of {table.subject}: {table.repetitions} repetitions, {table.elements:,} elements "
        f"each; least to greatest; mismatched at rtol {table.rtol:g}, atol {table.atol:g}"
    )
    blocks = [
        wrap_prose(answer, width, style="bold"),
        wrap_prose(printable(about), width),
        Table(headings=header, rows=rows).lines(width),
    ]
    return render_page(blocks, width, color=color)


def _range_text(found: NoiseRange) -> str:
    return f"{found.low:.2g} to {found.high:.2g}"


def _share_text(found: NoiseRange) -> str:
    return f"{found.low:.0%} to {found.high:.0%}"
