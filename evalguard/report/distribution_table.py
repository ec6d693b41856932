"""The table of next-token distributions, laid out for the width there is."""

from __future__ import annotations

from dataclasses import replace

from rich.cells import cell_len

from evalguard.page.safe_text import wrap_text
from evalguard.report.compare_view import ReportView
from evalguard.report.distribution_section import distribution_table


def distribution_lines(view: ReportView, width: int, prose: int) -> list[str]:
    """Return the table's lines, none wider than ``width``, and sentences within ``prose``."""
    lines = _table_lines(view, width)
    sentences = [
        sentence for distribution in view.distributions for sentence in distribution.sentences
    ]
    for sentence in (view.distributions_legend, *sentences):
        lines += wrap_text(sentence, prose) if sentence else []
    for distribution in view.distributions:
        if distribution.llama_cpp:
            lines += ["", *wrap_text(f"As llama.cpp prints {distribution.task}:", prose)]
            for line in distribution.llama_cpp:  # its own columns, where they fit
                lines += [line] if cell_len(line) <= width else wrap_text(line, width)
    return lines


def _table_lines(view: ReportView, width: int) -> list[str]:
    table = distribution_table(view.distributions)
    if not table.rows:
        return []
    headings = ["Distributions", *table.headings[1:]]
    rows = [[f"  {task}", *figures] for task, *figures in table.rows]
    return [line.plain for line in replace(table, headings=headings, rows=rows).lines(width)]
