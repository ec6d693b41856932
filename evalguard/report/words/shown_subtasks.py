"""Which subtasks of a group a terminal shows, and what a report is about beside them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from evalguard.core.comparison import Comparison, Outcome
from evalguard.core.reports.compare_report import CompareReport
from evalguard.report.words.plain_text import printable

# Of more subtasks only those that drifted are shown.
_MOST_SHOWN = 20
_QUIET_OUTCOMES: tuple[Outcome, ...] = ("unchanged", "undecided")


def ungated_subtasks(report: CompareReport) -> frozenset[str]:
    """Names of tasks and groups below a group's aggregate that the gate does not judge."""
    gated = {task for task, _, _ in report.gate.gated}
    below = {name for c in report.comparisons for name in (*c.subtasks, *c.subgroups)}
    return frozenset(below - gated)


def judged_comparisons(report: CompareReport) -> tuple[Comparison, ...]:
    """What a report is about: what the gate judges; all but subtasks where it judges nothing."""
    gated, below = set(report.gate.gated), ungated_subtasks(report)
    judged = tuple(c for c in report.comparisons if c.key in gated)
    return judged or tuple(c for c in report.comparisons if c.task not in below)


def select_shown(comparisons: Sequence[Comparison]) -> tuple[list[Comparison], list[str]]:
    """Return the comparisons that a table shows, and a line about those left out of each group."""
    quiet: dict[str, list[Comparison]] = {}
    for group in _large_groups(comparisons):
        hidden = {name for others in quiet.values() for name in (c.task for c in others)}
        quiet[group.task] = [
            c
            for c in comparisons
            if c.task in group.subtasks and c.outcome in _QUIET_OUTCOMES and c.task not in hidden
        ]
    left_out = [c for some in quiet.values() for c in some]
    return [c for c in comparisons if c not in left_out], [
        _hidden_line(group, some) for group, some in quiet.items() if some
    ]


def _large_groups(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """One comparison of each group with many subtasks, outermost groups first."""
    groups = {c.task: c for c in comparisons if len(c.subtasks) > _MOST_SHOWN}
    return sorted(groups.values(), key=lambda group: -len(group.subtasks))


def _hidden_line(group: str, left_out: Sequence[Comparison]) -> str:
    counts = Counter(c.outcome for c in left_out)
    several = len({(c.metric, c.filter) for c in left_out}) > 1
    what = " and ".join(
        f"{counts[outcome]} {outcome}" for outcome in _QUIET_OUTCOMES if counts[outcome]
    )
    noun = "metrics of subtasks" if several else "subtasks"
    hidden = f"{printable(group)}: {what} {noun} are not shown"
    return f"{hidden}; the JSON document has all, with caveats."
