"""Flips and churn: how the answers of both models differ, for people."""

from __future__ import annotations

from evalguard.compare_report import CompareReport
from evalguard.comparison import Comparison
from evalguard.report import rounding
from evalguard.report.subtasks import shown
from evalguard.report.wording import full_label

_MOST_SHOWN = 6


def answer_lines(report: CompareReport) -> list[str]:
    """Return a sentence per metric whose answers both runs show, unless they are all the same."""
    differing = [c for c in report.comparisons if answer_text(c)]
    in_table, _ = shown(report.comparisons)
    told = [c for c in in_table if c in differing][:_MOST_SHOWN]
    lines = [f"Answers, {full_label(c)}: {answer_text(c)}." for c in told]
    more = len(differing) - len(told)
    return [*lines, f"Answers of {more} more metrics: see --json."] if more > 0 else lines


def answer_text(comparison: Comparison) -> str:
    """Return flips, churn and the share of equal answers; "" if unknown, or if all are alike."""
    if comparison.same_answer in (None, 1.0):
        return ""
    low, high = comparison.same_answer_interval or (0.0, 1.0)
    quarter = 100.0 * (high - low) / 4.0
    share, least, most = (
        rounding.rounded(100.0 * number, quarter)
        for number in (comparison.same_answer or 0.0, low, high)
    )
    same = f"the same in {share}% of documents [{least}%, {most}%]"
    if comparison.flips is None:
        return same
    lost, won = (rounding.count(number) for number in comparison.flips)
    flips = f"{lost} lost, {won} won"
    if comparison.churn is not None:
        flips += f", {rounding.count(comparison.churn)} wrong in another way"
    return f"{flips}; {same}"
