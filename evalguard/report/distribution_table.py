"""The table of next-token distributions, laid out for the width there is."""

from __future__ import annotations

from collections.abc import Sequence

from evalguard.report.table import Table
from evalguard.report.view.distribution_view import DistributionView
from evalguard.report.view.report_view import ReportView
from evalguard.report.words.plain_text import wrap_text

_NARROWEST_TASK = 12


def distribution_lines(view: ReportView, width: int, prose: int) -> list[str]:
    """Return the table's lines, none wider than ``width``, and sentences within ``prose``."""
    measured = [one for one in view.distributions if one.known]
    lines = _distribution_table(measured, width) if measured else []
    sentences = [sentence for one in view.distributions for sentence in one.sentences]
    for sentence in (view.distributions_legend, *sentences):
        lines += wrap_text(sentence, prose) if sentence else []
    return lines


def _distribution_table(distributions: Sequence[DistributionView], width: int) -> list[str]:
    rows = [
        [f"  {one.task}", one.positions, one.kl, one.kl_p99, one.kl_max, one.dp_rms, one.same_top1]
        for one in distributions
    ]
    table = Table(
        headings=["Distributions", "positions", "KL mean", "99%", "max", "Δp rms", "top-1"],
        rows=rows,
        right=range(1, 7),
        leaving=(1, 4, 5, 3, 6),  # least important first
        giving_way=0,
        least=_NARROWEST_TASK + 2,
    )
    return [line.plain for line in table.lines(width)]
