"""What is off with generated answers, for the first screen."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from evalguard.core.answer_figures import FIGURES
from evalguard.core.reports.compare_report import CompareReport
from evalguard.core.reports.generations import (
    FigureComparison,
    GenerationComparison,
    PairedFigure,
)
from evalguard.report.view.generation_view import figure_text
from evalguard.report.words import rounding
from evalguard.report.words.plain_text import printable

# A length is said on the first screen from this change on; any real change of a share is.
_LEAST_CHANGE = 0.1
_MOST_TASKS = 2
_MOST_FIGURES, _MOST_NAMED, _FEWEST_NEW = 3, 2, 3
# As a share of the answers is said. Which differ from the base's beyond near ties is no change by
# itself: of a quantised model nearly all do.
_WORDS = {
    "cut": "cut at the token limit",
    "empty": "empty",
    "loops": "looping",
    "unclosed_thinking": "in a thinking part without an end",
    "refused": "refused",
    "other_script": "in another script",
    "valid_json": "valid JSON",
    "valid_schema": "valid by their schema",
    "valid_pattern": "of their pattern",
    "valid_tool_call": "with valid tool calls",
    "tool_call": "with a tool call",
}


def generations_line(report: CompareReport) -> str:
    """Say in a line how answers changed, and what gates that; "" if they did not.

    So are answers of which none of the base's and at least three of the candidate's are bad.
    """
    kinds = ("no_answer_found", "answers_differ")
    found = {(f.task, f.filter) for f in report.findings if f.kind in kinds}
    off = [(one, told) for one in report.generations if (told := list(_changes(one, found)))]
    if not off:
        return ""
    shown = [f"{printable(one.task)}: {', '.join(told)}" for one, told in off[:_MOST_TASKS]]
    more = len(off) - len(shown)
    line = f"Answers of {'; '.join(shown)}" + (f"; and {more} more tasks" if more > 0 else "")
    names = dict.fromkeys(name for one, _ in off for name in _ungated(one, report))
    asks = " ".join(f"--gate-metric {name}" for name in [*names][:_MOST_NAMED])
    return f"{line} (to gate it: {asks})" if asks else line


def _ungated(one: GenerationComparison, report: CompareReport) -> Iterator[str]:
    """Figures that became worse, the worst first, and that the gate does not ask for."""
    gated = {metric for task, _, metric in report.gate.gated if task == one.task}
    gated |= {limit.metric for limit in report.gate.limits if limit.task == one.task}
    for name, figure in _worse(one):
        if name not in gated and FIGURES[name].worse == "more":
            yield name if figure.base.value else f"{name}=0"


def _changes(one: GenerationComparison, found: Collection[tuple[str, str]]) -> Iterator[str]:
    """What changed; what a finding tells of a filter, or of a whole task, is left out."""
    if (one.task, "") not in found:
        yield from _same_answers(one)
    yield from _length_change(one.length)
    for name, figure in _worse(one)[:_MOST_FIGURES]:
        yield _share_change(_WORDS[name], figure)
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


def _same_answers(one: GenerationComparison) -> Iterator[str]:
    """How many answers, and calls of tools, are the base's; nothing of answers that are drawn."""
    whole = one.whole
    if whole is None or whole.drawn or whole.same == one.n:
        return
    same, n = (rounding.format_count(count) for count in (whole.same, one.n))
    yield f"{same} of {n} are the base's"
    if whole.same_calls < whole.calling:
        calls, calling = map(rounding.format_count, (whole.same_calls, whole.calling))
        yield f"{calls} of {calling} calls are"


def _worse(one: GenerationComparison) -> list[tuple[str, PairedFigure]]:
    """Figures that moved, the largest change first."""
    found = [
        (told.name, told.figure)
        for told in one.figures
        if told.name in _WORDS and (told.figure.moved or _is_new(told))
    ]
    if one.cut is not None and one.cut.moved:
        found.append(("cut", one.cut))
    return sorted(found, key=lambda named: -abs(named[1].difference.value or 0.0))


def _is_new(told: FigureComparison) -> bool:
    more = FIGURES[told.name].worse == "more"
    return more and told.figure.base.value == 0.0 and told.candidate_only >= _FEWEST_NEW


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
