"""The table of tolerances in a terminal."""

from __future__ import annotations

from rich.text import Text

from evalguard.core.tensors.tolerances import TOLERANCES
from evalguard.report.terminal_page import NARROWEST, prose_width, render_page
from evalguard.report.words.plain_text import wrap_text


def render_tolerances(*, width: int, color: bool) -> str:
    """Return the table of tolerances with its reasons."""
    width = max(width, NARROWEST)
    lines: list[Text] = []
    for row in TOLERANCES:
        where = " ".join(part for part in (row.platform, row.operation) if part)
        limit = (
            f"rtol {row.rtol:g}, atol {row.atol:g}" if row.snr is None else f"SNR {row.snr:g} dB"
        )
        lines.append(Text(f"{row.dtype}{', ' if where else ''}{where}: {limit}", style="bold"))
        lines += [
            Text(line) for line in wrap_text(row.reason, prose_width(width), first="  ", rest="  ")
        ]
    return render_page([lines], width, color=color)
