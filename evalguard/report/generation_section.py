"""The section about generated answers, and what is off with them."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from evalguard.core.compare_report import CompareReport
from evalguard.core.distribution_comparison import Figure
from evalguard.core.figures import FIGURES
from evalguard.core.generation_comparison import (
    FigureComparison,
    FirstDifferences,
    GenerationComparison,
    PairedFigure,
)
from evalguard.page import rounding
from evalguard.page.safe_text import printable
from evalguard.page.table import Table

GENERATION_LEGEND = (
    "difference: candidate - base, paired over documents; no answer: the filter gave its fallback, "
    "or the text is empty; mean@k, pass@k: from all answers to a document. What is gated of it "
    "stands among the metrics and limits (--gate-metric loops)."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRow:
    """One figure of a task's answers: "-" where there is no number."""

    label: str
    base: str
    candidate: str
    difference: str

    def __str__(self) -> str:
        change = f" to {self.candidate}" if self.candidate else ""
        by = f", {self.difference}" if self.difference else ""
        return f"{self.label} {self.base}{change}{by}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationView:
    """One task: ``size`` is "1,319 documents, 4 answers each"."""

    task: str
    size: str
    rows: tuple[GenerationRow, ...]
    remarks: tuple[str, ...]

    @property
    def line(self) -> str:
        """All of it as one paragraph."""
        text = "; ".join(str(row) for row in self.rows)
        return f"Generated answers, {self.task} ({self.size}): {text}."


def generation_views(report: CompareReport) -> tuple[GenerationView, ...]:
    """Return every task's generated answers as texts."""
    return tuple(map(_view, report.generations))


def _view(one: GenerationComparison) -> GenerationView:
    documents = f"{rounding.format_count(one.n)} document{'' if one.n == 1 else 's'}"
    each = f", {one.repeats} answers each" if one.repeats > 1 else ""
    clusters = f", {one.clusters:,} clusters" if one.clusters is not None else ""
    return GenerationView(
        task=printable(one.task),
        size=f"{documents}{clusters}{each}",
        rows=tuple(_rows(one)),
        remarks=(*map(printable, one.caveats), *_examples(one.first_difference)),
    )


def _rows(one: GenerationComparison) -> Iterator[GenerationRow]:
    yield _row("length in characters", one.length, percent=False)
    if one.cut is not None:
        yield _row("cut at the token limit", one.cut, percent=True)
    for filter_ in one.filters:
        yield _row(f"no answer{_named(filter_.filter)}", filter_.missing, percent=True)
    for comparison in one.figures:
        # first differences have rows of their own
        if not comparison.name.startswith(("first_", "same_")) and (
            comparison.figure.base.value or comparison.figure.candidate.value
        ):
            yield _row(comparison.name, comparison.figure, percent=True)
    for score in one.repeated:
        label = f"{printable(score.metric)} {score.name}{_named(score.filter)}"
        yield _row(label, score.score, percent=False)
    same = figure_text(one.same_text, percent=True)
    yield GenerationRow(label="same text", base=same, candidate="", difference="")
    for comparison in one.figures:
        if comparison.name in _SAME:
            share = figure_text(comparison.figure.candidate, percent=True)
            yield GenerationRow(
                label=_SAME[comparison.name], base=share, candidate="", difference=""
            )
    yield from _difference_rows(one.first_difference)
    if one.base_equal is not None and one.candidate_equal is not None:
        base, candidate = (f"{100.0 * v:.3g}%" for v in (one.base_equal, one.candidate_equal))
        yield GenerationRow(
            label="all answers to a document equal", base=base, candidate=candidate, difference=""
        )


_SAME = {"same_answer": "same answer in all parts", "same_call": "same tool calls"}


def _difference_rows(found: FirstDifferences | None) -> Iterator[GenerationRow]:
    """Where answers first differ; nothing where none does, or no tokens are known."""
    if found is None or not found.differ:
        return
    if found.position is not None:
        yield GenerationRow(
            label="first other token (from 0)", base=f"{found.position:.3g}", candidate="",
            difference="",
        )  # fmt: skip
    if found.beyond_ties is not None:
        yield _row("differ beyond near ties", found.beyond_ties, percent=True)


_EXAMPLES = 3
_SHOWN = 30  # characters


def _examples(found: FirstDifferences | None) -> Iterator[str]:
    """The surest of the answers that differ beyond near ties, each as a sentence."""
    beyond = [example for example in (found.examples if found else ()) if example.near_tie is False]
    for example in beyond[:_EXAMPLES]:
        margin = example.base_margin
        at_least = "" if example.base_margin_exact else "at least "
        how = f", which the base preferred by {at_least}{margin:.2g} nats" if margin else ""
        texts = [repr(text[:_SHOWN]) for text in (example.base_text, example.candidate_text)]
        yield printable(
            f"document {example.doc_id} first differs at token {example.position}{how}: after "
            f"{example.before[-_SHOWN:]!r} {texts[0]}, the candidate {texts[1]}"
        )


def _row(label: str, figure: PairedFigure, *, percent: bool) -> GenerationRow:
    difference = _signed(figure.difference, percent=percent)
    interval = figure.difference.interval
    if interval is not None and difference not in ("0", "-"):
        low, high = (_signed(Figure(value=end), figure, percent=percent) for end in interval)
        difference = f"{difference} [{low}, {high}]{' points' if percent else ''}"
    return GenerationRow(
        label=label,
        base=figure_text(figure.base, percent=percent),
        candidate=figure_text(figure.candidate, percent=percent),
        difference=difference,
    )


def _named(filter_: str) -> str:
    return "" if filter_ in ("", "none") else f" ({printable(filter_)})"


def figure_text(figure: Figure, *, percent: bool) -> str:
    """Return a figure with the digits that its standard error supports; "-" where there is none."""
    if figure.value is None:
        return "-"
    scale = 100.0 if percent else 1.0
    stderr = None if figure.stderr is None else scale * figure.stderr
    return rounding.round_to_error(scale * figure.value, stderr) + ("%" if percent else "")


def _signed(figure: Figure, of: PairedFigure | None = None, *, percent: bool) -> str:
    """A difference with its sign: of shares in points, rounded by the paired error."""
    value, stderr = figure.value, (of.difference if of is not None else figure).stderr
    if value is None or math.isnan(value):
        return "-"
    if value == 0.0:
        return "0"
    scale = 100.0 if percent else 1.0
    text = rounding.round_to_error(scale * value, None if stderr is None else scale * stderr)
    return text if text.startswith("-") else f"+{text}"


def generation_table(views: Sequence[GenerationView]) -> Table:
    """Return one table over all tasks."""
    return Table(
        headings=["task", "answers", "base", "candidate", "difference"],
        rows=[
            [view.task, row.label, row.base, row.candidate, row.difference]
            for view in views
            for row in view.rows
        ],
        right=(2, 3, 4),
    )


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
    reported = {(f.task, f.filter) for f in report.findings if f.kind in kinds}
    off = [
        (generation, changes)
        for generation in report.generations
        if (changes := list(_changes(generation, reported)))
    ]
    if not off:
        return ""
    shown = [
        f"{printable(generation.task)}: {', '.join(changes)}"
        for generation, changes in off[:_MOST_TASKS]
    ]
    remaining = len(off) - len(shown)
    line = f"Answers of {'; '.join(shown)}" + (
        f"; and {remaining} more tasks" if remaining > 0 else ""
    )
    names = dict.fromkeys(name for generation, _ in off for name in _ungated(generation, report))
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
        remaining = len(moved) - 1
        suffix = f" and {remaining} more filter{'' if remaining == 1 else 's'}" if remaining else ""
        name = f"{printable(most.filter)}{suffix}"
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
    figures = [
        (comparison.name, comparison.figure)
        for comparison in one.figures
        if comparison.name in _WORDS and (comparison.figure.moved or _is_new(comparison))
    ]
    if one.cut is not None and one.cut.moved:
        figures.append(("cut", one.cut))
    return sorted(figures, key=lambda named: -abs(named[1].difference.value or 0.0))


def _is_new(told: FigureComparison) -> bool:
    more_is_worse = FIGURES[told.name].worse == "more"
    return more_is_worse and told.figure.base.value == 0.0 and told.candidate_only >= _FEWEST_NEW


def _length_change(length: PairedFigure) -> Iterator[str]:
    base, candidate = length.base.value, length.candidate.value
    if not length.moved or not base or candidate is None:
        return
    change = candidate / base - 1.0
    if abs(change) >= _LEAST_CHANGE:
        yield f"{100.0 * abs(change):.0f}% {'longer' if change > 0.0 else 'shorter'}"


def _share_change(what: str, figure: PairedFigure) -> str:
    base, candidate = (
        figure_text(value, percent=True) for value in (figure.base, figure.candidate)
    )
    return f"{candidate} {what} (base {base})"


def _equal_change(base: float, candidate: float) -> Iterator[str]:
    """Where one side repeats itself and the other one does not."""
    if abs(candidate - base) >= 0.5:
        yield (
            f"the same text in all answers to {100.0 * candidate:.0f}% of the documents "
            f"(base {100.0 * base:.0f}%)"
        )
