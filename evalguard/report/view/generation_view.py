"""GenerationView: the generated answers of both models to a task, as a table of texts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from evalguard.core.distribution_comparison import Figure
from evalguard.core.reports.compare_report import CompareReport
from evalguard.core.reports.generations import FirstDifferences, GenerationComparison, PairedFigure
from evalguard.report.table import Table
from evalguard.report.words import rounding
from evalguard.report.words.plain_text import printable

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
        said = "; ".join(str(row) for row in self.rows)
        return f"Generated answers, {self.task} ({self.size}): {said}."


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
    for found in one.filters:
        yield _row(f"no answer{_named(found.filter)}", found.missing, percent=True)
    for told in one.figures:
        # first differences have rows of their own
        if not told.name.startswith(("first_", "same_")) and (
            told.figure.base.value or told.figure.candidate.value
        ):
            yield _row(told.name, told.figure, percent=True)
    for score in one.repeated:
        label = f"{printable(score.metric)} {score.name}{_named(score.filter)}"
        yield _row(label, score.score, percent=False)
    same = figure_text(one.same_text, percent=True)
    yield GenerationRow(label="same text", base=same, candidate="", difference="")
    for told in one.figures:
        if told.name in _SAME:
            share = figure_text(told.figure.candidate, percent=True)
            yield GenerationRow(label=_SAME[told.name], base=share, candidate="", difference="")
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
    beyond = [one for one in (found.examples if found else ()) if one.near_tie is False]
    for one in beyond[:_EXAMPLES]:
        margin = one.base_margin
        at_least = "" if one.base_margin_exact else "at least "
        how = f", which the base preferred by {at_least}{margin:.2g} nats" if margin else ""
        texts = [repr(text[:_SHOWN]) for text in (one.base_text, one.candidate_text)]
        yield printable(
            f"document {one.doc_id} first differs at token {one.position}{how}: after "
            f"{one.before[-_SHOWN:]!r} {texts[0]}, the candidate {texts[1]}"
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
