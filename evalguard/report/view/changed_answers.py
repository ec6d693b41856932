"""Flips and churn: how the answers of both models differ, for people."""

from __future__ import annotations

from evalguard.core.comparison import Comparison
from evalguard.core.reports.compare_report import CompareReport
from evalguard.report.words import rounding
from evalguard.report.words.metric_labels import (
    full_label,
)
from evalguard.report.words.shown_subtasks import select_shown

_MOST_SHOWN = 6


def changed_answer_lines(report: CompareReport) -> list[str]:
    """Return a sentence per metric whose answers both runs show, unless they are all the same."""
    differing = [c for c in report.comparisons if changed_answers_text(c)]
    in_table, _ = select_shown(report.comparisons)
    told = [c for c in in_table if c in differing][:_MOST_SHOWN]
    lines = [f"Answers, {full_label(c)}: {changed_answers_text(c)}." for c in told]
    more = len(differing) - len(told)
    return [*lines, f"Answers of {more} more metrics: see --json."] if more > 0 else lines


def changed_answers_text(comparison: Comparison) -> str:
    """Return flips, churn and the share of equal answers; "" if unknown, or if all are alike."""
    if comparison.same_answer in (None, 1.0):
        return ""
    low, high = comparison.same_answer_interval or (0.0, 1.0)
    quarter = 100.0 * (high - low) / 4.0
    share, least, most = (
        rounding.round_to_error(100.0 * number, quarter)
        for number in (comparison.same_answer or 0.0, low, high)
    )
    same = f"the same in {share}% of documents [{least}%, {most}%]"
    if comparison.flips is None:
        return same
    lost, won = (rounding.format_count(number) for number in comparison.flips)
    flips = f"{lost} lost, {won} won"
    if comparison.churn is not None:
        flips += f", {rounding.format_count(comparison.churn)} wrong in another way"
    return f"{flips}; {same}"
