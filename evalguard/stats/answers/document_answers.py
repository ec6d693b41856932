"""DocumentAnswers: one model's answers to one document, and the figures of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evalguard.core.answer_figures import (
    FIGURES,
    AnswerPart,
    WrittenAnswer,
    calls_tools,
    find_differing_parts,
    measure_figure,
    measure_paired_figure,
)
from evalguard.core.expected_answers import ExpectedAnswer
from evalguard.core.generated_tokens import GeneratedTokens
from evalguard.core.reports.generations import GeneratedDocument
from evalguard.stats.answers.repeats import mean
from evalguard.stats.answers.structure import StructureVerdict, judge_structure

OF_CALLS = "same_call"
"""The figure that says something only where an answer calls a tool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentAnswers:
    """One model's answers to one document: their texts, and what is known beside them.

    Attributes:
        tokens: of each text; () where nobody shows them.
        expected: structure that each has to have; None: nobody says.
        thinking_open: the prompt ends in a thinking part, which each has to close.
        drawn: at a temperature above 0; False where nobody says.
        greedy: each token was to be the most probable one by the model's own numbers: without a
            temperature, penalties, a grammar or whatever else chooses. False where nobody says.
        ends_in_stop: a text ended in one of the task's stop sequences, which is left out here.
    """

    texts: Sequence[str]
    known: GeneratedDocument | None = None
    tokens: Sequence[GeneratedTokens | None] = ()
    expected: ExpectedAnswer | None = None
    thinking_open: bool = False
    drawn: bool = False
    greedy: bool = False
    ends_in_stop: bool = False

    @property
    def repeats(self) -> int:
        """Answers to each of its requests; texts, where nothing says that there are several."""
        if self.known is not None:
            for missing in self.known.missing.values():
                return len(missing)
        return len(self.texts)

    @property
    def written(self) -> tuple[WrittenAnswer, ...]:
        """Each answer with what is known of it."""
        n = len(self.texts)
        ended = self.known.ended if self.known is not None else ()
        messages = self.known.messages if self.known is not None else ()
        tokens = self.tokens
        return tuple(
            WrittenAnswer(
                text=text,
                ended=ended[at] if len(ended) == n else "",
                message=messages[at] if len(messages) == n else "",
                tokens=own,
                n_tokens=None if own is None else len(own),
                greedy=self.greedy,
                thinking_open=self.thinking_open,
            )
            for at, text in enumerate(self.texts)
            for own in (tokens[at] if len(tokens) == n else None,)
        )

    def missing_in(self, filter_name: str) -> tuple[float, ...]:
        """Of each answer 1 where a filter finds nothing, else 0; () where it is not known."""
        missing = self.known.missing.get(filter_name) if self.known is not None else None
        return tuple(float(one) for one in missing or ())


def figure_value(name: str, of: DocumentAnswers) -> float | None:
    """A figure of a document: the mean over its answers; None where that of any is not known."""
    return _value(name, of.written, of.expected)


def figure_of_each(name: str, of: DocumentAnswers) -> tuple[float, ...]:
    """A figure of each of a document's answers; () where that of any is not known."""
    return _all_known([measure_figure(name, one, of.expected) for one in of.written])


def figure_pairs(
    names: Sequence[str], base: DocumentAnswers, candidate: DocumentAnswers
) -> list[tuple[float | None, float | None]]:
    """Figures of both models' answers to a document; of a paired one the base beside itself.

    As ``figure_value`` and ``paired_figure_value``; answers are taken apart once for all of them,
    and equal ones measured once.
    """
    are_equal = base == candidate
    ours = base.written
    theirs = ours if are_equal else candidate.written
    found: list[tuple[float | None, float | None]] = []
    for name in names:
        if FIGURES[name].paired:
            value = _paired_value(name, ours, theirs, base.expected)
            found.append((None if value is None else FIGURES[name].of_base, value))
        else:
            value = _value(name, ours, base.expected)
            other = value if are_equal else _value(name, theirs, candidate.expected)
            found.append((value, other))
    return found


def has_calls(of: DocumentAnswers) -> bool:
    """Whether any answer to a document calls a tool, as far as that is known."""
    of_message = of.known is not None and any(of.known.messages)
    if not of_message and (of.expected is None or not of.expected.as_text):
        return False  # of most tasks, and there are hundreds of thousands
    return any(calls_tools(one, of.expected) for one in of.written)


def differing_parts(base: DocumentAnswers, candidate: DocumentAnswers) -> frozenset[AnswerPart]:
    """The parts in which any of the candidate's answers to a document is not the base's."""
    if base == candidate:
        return frozenset()
    pairs = zip(base.written, candidate.written, strict=False)
    parts = (find_differing_parts(one, other, base.expected) for one, other in pairs)
    return frozenset().union(*parts)


def structure_verdicts(name: str, of: DocumentAnswers) -> tuple[StructureVerdict, ...]:
    """What a figure of structure says of each answer to a document; () where nobody says."""
    if of.expected is None:
        return ()
    found = (judge_structure(name, one.text, one.message, of.expected) for one in of.written)
    return tuple(one for one in found if one is not None)


def verdict_of_each(verdicts: Sequence[StructureVerdict]) -> tuple[float, ...]:
    """The figure of each answer with these verdicts, as ``figure_of_each``."""
    return _all_known([one.share for one in verdicts])


def paired_figure_value(
    name: str, base: DocumentAnswers, candidate: DocumentAnswers
) -> float | None:
    """A figure of two models' answers to a document, in the order in which they were asked.

    A figure that only some answers have (where they first differ) is the mean over these; of a
    share, every answer has to be known.
    """
    return _paired_value(name, base.written, candidate.written, base.expected)


def _value(
    name: str, answers: Sequence[WrittenAnswer], expected: ExpectedAnswer | None
) -> float | None:
    if len(answers) == 1:  # of most tasks, and there are hundreds of thousands
        return measure_figure(name, answers[0], expected)
    return _mean_of([measure_figure(name, one, expected) for one in answers])


def _paired_value(
    name: str,
    base: Sequence[WrittenAnswer],
    candidate: Sequence[WrittenAnswer],
    expected: ExpectedAnswer | None,
) -> float | None:
    if len(base) != len(candidate):
        return None
    values = [
        measure_paired_figure(name, one, other, expected)
        for one, other in zip(base, candidate, strict=True)
    ]
    if name == "first_difference":
        return _mean_of([one for one in values if one is not None])
    return _mean_of(values)


def _mean_of(values: Sequence[float | None]) -> float | None:
    known = _all_known(values)
    return mean(known) if known else None


def _all_known(values: Sequence[float | None]) -> tuple[float, ...]:
    known = tuple(value for value in values if value is not None)
    return known if len(known) == len(values) else ()
