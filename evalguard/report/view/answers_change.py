"""What is off with generated answers, for the first screen."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from evalguard.core.reports.compare_report import CompareReport
from evalguard.core.reports.generations import GenerationComparison, PairedFigure
from evalguard.report.view.generation_view import figure_text
from evalguard.report.words.plain_text import printable

# A length is said on the first screen from this change on; any real change of a share is.
_LEAST_CHANGE = 0.1
_MOST_TASKS = 2


def generations_line(report: CompareReport) -> str:
    """Say in a line where answers became shorter, longer, cut or not found; "" if nowhere."""
    found = {(f.task, f.filter) for f in report.findings if f.kind == "no_answer_found"}
    off = [(one, told) for one in report.generations if (told := list(_changes(one, found)))]
    if not off:
        return ""
    shown = [f"{printable(one.task)}: {', '.join(told)}" for one, told in off[:_MOST_TASKS]]
    more = len(off) - len(shown)
    return f"Answers of {'; '.join(shown)}" + (f"; and {more} more tasks" if more > 0 else "")


def _changes(one: GenerationComparison, found: Collection[tuple[str, str]]) -> Iterator[str]:
    """What changed; of filters that a finding tells of, their answers not found are left out."""
    yield from _length_change(one.length)
    if one.cut is not None and one.cut.moved:
        yield _share_change("cut at the token limit", one.cut)
    moved = [of for of in one.filters if of.missing.moved and (one.task, of.filter) not in found]
    for most in sorted(moved, key=lambda of: -abs(of.missing.difference.value or 0.0))[:1]:
        others = len(moved) - 1
        more = f" and {others} more filter{'' if others == 1 else 's'}" if others else ""
        name = f"{printable(most.filter)}{more}"
        yield _share_change(
            f"without an answer{'' if name == 'none' else f' ({name})'}", most.missing
        )
    if one.candidate_equal is not None and one.base_equal is not None:
        yield from _equal_change(one.base_equal, one.candidate_equal)


def _length_change(length: PairedFigure) -> Iterator[str]:
    base, candidate = length.base.value, length.candidate.value
    if not length.moved or not base or candidate is None:
        return
    change = candidate / base - 1.0
    if abs(change) >= _LEAST_CHANGE:
        yield f"{100.0 * abs(change):.0f}% {'longer' if change > 0.0 else 'shorter'}"


def _share_change(what: str, figure: PairedFigure) -> str:
    base, candidate = (figure_text(one, percent=True) for one in (figure.base, figure.candidate))
    return f"{candidate} {what} (base {base})"


def _equal_change(base: float, candidate: float) -> Iterator[str]:
    """Where one side repeats itself and the other one does not."""
    if abs(candidate - base) >= 0.5:
        yield (
            f"the same text in all answers to {100.0 * candidate:.0f}% of the documents "
            f"(base {100.0 * base:.0f}%)"
        )
