"""Figures of generated answers: measured on one answer, on a pair of them, and on all documents.

Each is a number of one answer, or of two models' answers to one document. Where nobody can say it,
it is unknown (None): a text without an ending that anybody told is not one that was not cut.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from evalguard.answers.first_difference import find_first_difference
from evalguard.answers.languages import is_other_script
from evalguard.core.chat import find_thinking, split_thinking
from evalguard.core.distribution_comparison import Figure
from evalguard.core.expected_answers import (
    ExpectedAnswer,
    ToolCall,
    calls_of_message,
    canonical_calls,
    message_fields,
)
from evalguard.core.figures import FIGURES, FigureShare, why_unknown
from evalguard.core.generation_comparison import FirstDifference, GeneratedDocument, PairedFigure
from evalguard.core.loops import find_loop, find_token_loop
from evalguard.core.moments import exact_sum, mean_moments
from evalguard.core.pairing import PairedScores, pick_rows
from evalguard.core.scorer import Ending
from evalguard.core.scores import ScoreTable
from evalguard.core.shown_tokens import GeneratedTokens
from evalguard.core.structure import StructureVerdict, judge_structure, written_calls
from evalguard.stats.clusters import cluster_sums
from evalguard.stats.drift import estimate_drift
from evalguard.stats.effective_sample import Share
from evalguard.stats.uninformative import describe_uninformative


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenAnswer:
    """One answer, and what is known beside its text.

    Attributes:
        ended: why the text ended; "" where nobody says.
        message: what a chat server answered beside it (``Response.message``); "" where nothing.
        tokens: that were generated; None where they are not shown.
        n_tokens: how many there are; None where that is not known.
        thinking_open: whether its prompt ends in a thinking part that the text has to close.
        greedy: each token was to be the most probable one by the model's own numbers.
    """

    text: str
    ended: Ending = ""
    message: str = ""
    tokens: GeneratedTokens | None = None
    n_tokens: int | None = None
    thinking_open: bool = False
    greedy: bool = False


def measure_figure(
    name: str, answer: WrittenAnswer, expected: ExpectedAnswer | None = None
) -> float | None:
    """A figure of one answer; None where it is not known.

    Figures of filters are what the filter says, and known elsewhere.

    Args:
        expected: structure that the answer has to have; None: nobody says.

    Raises:
        KeyError: there is no such unpaired figure.
    """
    return _UNPAIRED[name](answer, _NOTHING if expected is None else expected)


def measure_paired_figure(
    name: str,
    base: WrittenAnswer,
    candidate: WrittenAnswer,
    expected: ExpectedAnswer | None = None,
) -> float | None:
    """A figure of the candidate's answer beside the base's; None where it is not known.

    Args:
        expected: structure that both have to have; None: nobody says.

    Raises:
        KeyError: there is no such paired figure.
    """
    return _PAIRED[name](base, candidate, _NOTHING if expected is None else expected)


# text      what was said, refusals among it
# calls     which tools are called, with which arguments
# thinking  what was thought before
# ending    why it ended
# form      arguments of calls came as a text of one side, as an object of the other
AnswerPart = Literal["text", "calls", "thinking", "ending", "form"]


def find_differing_parts(
    base: WrittenAnswer, candidate: WrittenAnswer, expected: ExpectedAnswer | None = None
) -> frozenset[AnswerPart]:
    """The parts in which the candidate's answer is not the base's; what nobody says differs not."""
    expectation = _NOTHING if expected is None else expected
    calls = _calls(base, expectation), _calls(candidate, expectation)
    ours, theirs = _said(base), _said(candidate)
    differing: dict[AnswerPart, bool] = {
        "text": ours[0] != theirs[0],
        "calls": None not in calls
        and canonical_calls(calls[0] or ()) != canonical_calls(calls[1] or ()),
        "thinking": ours[1] != theirs[1],
        "ending": _endings_differ(base, candidate),
        "form": _forms(calls[0]) != _forms(calls[1]) and bool(calls[0]) and bool(calls[1]),
    }
    return frozenset(part for part, differs in differing.items() if differs)


def calls_tools(answer: WrittenAnswer, expected: ExpectedAnswer | None = None) -> bool:
    """Whether an answer calls a tool, as far as that is known."""
    return bool(_calls(answer, _NOTHING if expected is None else expected))


_NOTHING = ExpectedAnswer()


def _tokens(answer: WrittenAnswer, _: ExpectedAnswer) -> float | None:
    if answer.n_tokens is not None:
        return float(answer.n_tokens)
    return None if answer.tokens is None else float(len(answer.tokens))


def _cut(answer: WrittenAnswer, _: ExpectedAnswer) -> float | None:
    return float(answer.ended == "length") if answer.ended else None


def _empty(answer: WrittenAnswer, _: ExpectedAnswer) -> float | None:
    return float(not answer.text.strip() and not calls_of_message(answer.message))


def _refused(answer: WrittenAnswer, _: ExpectedAnswer) -> float | None:
    """Unknown of a model that has no server to say so."""
    fields = message_fields(answer.message)
    if fields.keys().isdisjoint({"refusal", "finish_reason"}):
        return None
    return float(bool(fields.get("refusal")) or fields.get("finish_reason") == "content_filter")


def _loops(answer: WrittenAnswer, _: ExpectedAnswer) -> float | None:
    """Of what was written last: calls of tools, the text, or thoughts that no text follows."""
    calls = calls_of_message(answer.message) or ()
    thought = message_fields(answer.message).get("reasoning_content")
    written = calls[-1].arguments if calls else answer.text
    if not written.strip() and isinstance(thought, str) and thought:
        written = thought
    loop = find_loop(written, answer.ended)
    if loop is None and not written.strip() and answer.tokens is not None:
        loop = find_token_loop(answer.tokens.ids.tolist(), answer.ended)
    return float(loop is not None)


def _unclosed_thinking(answer: WrittenAnswer, _: ExpectedAnswer) -> float | None:
    """A server that sends thoughts apart has closed them, unless nothing came after them."""
    if message_fields(answer.message).get("reasoning_content"):
        return float(answer.ended == "length" and _empty(answer, _) == 1.0)
    part = find_thinking(answer.text, is_open=answer.thinking_open)
    return None if part is None else float(not part.is_closed)


def _structure(name: str) -> Callable[[WrittenAnswer, ExpectedAnswer], float | None]:
    def measure(answer: WrittenAnswer, expected: ExpectedAnswer) -> float | None:
        if expected is _NOTHING:
            return None
        verdict = judge_structure(name, answer.text, answer.message, expected)
        return None if verdict is None else verdict.share

    return measure


def _tool_call(answer: WrittenAnswer, expected: ExpectedAnswer) -> float | None:
    if expected is _NOTHING or "tool_call" not in expected.figures:
        return None
    calls = written_calls(answer.text, answer.message, expected)
    return None if calls is None else float(bool(calls))


def _other_script(base: WrittenAnswer, candidate: WrittenAnswer, _: Any) -> float | None:
    is_other = is_other_script(base.text, candidate.text)
    return None if is_other is None else float(is_other)


def _of_filters(answer: WrittenAnswer, _: ExpectedAnswer) -> float | None:  # noqa: ARG001
    return None


def _calls(answer: WrittenAnswer, expected: ExpectedAnswer) -> tuple[ToolCall, ...] | None:
    return written_calls(answer.text, answer.message, expected)


def _forms(calls: tuple[ToolCall, ...] | None) -> frozenset[bool]:
    return frozenset(call.as_text for call in calls or ())


def _said(answer: WrittenAnswer) -> tuple[str, str]:
    """An answer's text and its thinking, whether a server has parted them or not."""
    fields = message_fields(answer.message)
    thought, refusal = fields.get("reasoning_content"), fields.get("refusal")
    text, thinking = answer.text, str(thought or "").strip()
    if not thinking:
        thinking, text = split_thinking(text, is_open=answer.thinking_open)
    return f"{text}{refusal or ''}", thinking


# Reasons that mean the same, in the words of several servers.
_ENDINGS: Mapping[str, str] = {
    **dict.fromkeys(("eos", "eos_token", "end_turn", "stop_sequence"), "stop"),
    "function_call": "tool_calls",
    "max_tokens": "length",
}


def _endings_differ(base: WrittenAnswer, candidate: WrittenAnswer) -> bool:
    """Whether both say why they ended, and say something else."""
    ours, theirs = (
        message_fields(answer.message).get("finish_reason") for answer in (base, candidate)
    )
    if not (isinstance(ours, str) and isinstance(theirs, str)):
        ours, theirs = base.ended, candidate.ended
    return bool(ours and theirs) and _ENDINGS.get(ours, ours) != _ENDINGS.get(theirs, theirs)


def _same_answer(
    base: WrittenAnswer, candidate: WrittenAnswer, expected: ExpectedAnswer
) -> float | None:
    """Unknown of one whose known parts are the same, and of whose calls nothing is known."""
    if find_differing_parts(base, candidate, expected):
        return 0.0
    known = None not in (_calls(base, expected), _calls(candidate, expected))
    return 1.0 if known else None


def _same_call(
    base: WrittenAnswer, candidate: WrittenAnswer, expected: ExpectedAnswer
) -> float | None:
    """Of two answers without any call it is 1: a call that nobody asked for would differ."""
    if None in (_calls(base, expected), _calls(candidate, expected)):
        return None
    return float("calls" not in find_differing_parts(base, candidate, expected))


def _first_differing(base: WrittenAnswer, candidate: WrittenAnswer) -> FirstDifference | None:
    return find_first_difference(
        base.text,
        candidate.text,
        base.tokens,
        candidate.tokens,
        greedy=base.greedy and candidate.greedy,
        ended=(base.ended, candidate.ended),
    )


def _first_difference(base: WrittenAnswer, candidate: WrittenAnswer, _: Any) -> float | None:
    """Of texts that are the same there is none."""
    difference = _first_differing(base, candidate)
    return None if difference is None or difference.position is None else float(difference.position)


def _beyond_ties(base: WrittenAnswer, candidate: WrittenAnswer, _: Any) -> float | None:
    difference = _first_differing(base, candidate)
    if difference is None:
        return 0.0
    return None if difference.near_tie is None else float(not difference.near_tie)


_UNPAIRED: dict[str, Callable[[WrittenAnswer, ExpectedAnswer], float | None]] = {
    "tokens": _tokens,
    "cut": _cut,
    "empty": _empty,
    "no_answer": _of_filters,
    "loops": _loops,
    "unclosed_thinking": _unclosed_thinking,
    "refused": _refused,
    "valid_json": _structure("valid_json"),
    "valid_schema": _structure("valid_schema"),
    "valid_pattern": _structure("valid_pattern"),
    "valid_tool_call": _structure("valid_tool_call"),
    "tool_call": _tool_call,
}
_PAIRED: dict[str, Callable[[WrittenAnswer, WrittenAnswer, ExpectedAnswer], float | None]] = {
    "other_script": _other_script,
    "first_difference": _first_difference,
    "first_difference_beyond_ties": _beyond_ties,
    "same_answer": _same_answer,
    "same_call": _same_call,
}


def figure_share(table: ScoreTable, *, confidence: float) -> FigureShare:
    """The share of a model's answers that a figure of shares counts, a document counting once.

    Its interval is the exact binomial one of the effective number of documents or clusters
    (``stats.effective_sample``); a document with several answers counts by their mean.
    """
    known = pick_rows(table, np.flatnonzero(np.isfinite(table.values)))
    unknown = table.n - known.n
    figure, units, why = Figure(), 0, ""
    if table.uninformative is not None:
        why = f"{describe_uninformative(table.uninformative, table.filter)}, so it says nothing"
    elif not known.n:
        why = why_unknown(table.metric)
    else:
        labels = known.clusters or tuple(map(str, known.doc_ids.tolist()))
        sums = cluster_sums(known.values, None, labels)
        share, units = Share(hits=sums.values, positions=sums.weights), sums.count
        figure = Figure(value=share.value, interval=share.interval(confidence=confidence))
    return FigureShare(
        task=table.task,
        filter=table.filter,
        metric=table.metric,
        figure=figure,
        n=known.n,
        unknown=unknown,
        units=units,
        clustered=bool(known.clusters),
        confidence=confidence,
        unknown_why=why,
    )


Array = NDArray[np.float64]


def pass_at_k(n: int, c: int, k: int) -> float:
    """Chance that at least one of k answers is right, from n answers of which c are.

    1 - C(n - c, k) / C(n, k): the share of the subsets of k answers that hold a right one. It is
    unbiased, for any k up to n, where answers are independent draws (M. Chen et al., Evaluating
    Large Language Models Trained on Code, 2021); 1 - (1 - c / n)^k is not. Exact as a ratio of
    whole numbers, rounded once.

    Raises:
        ValueError: unless 0 <= c <= n and 1 <= k <= n.
    """
    if not (0 <= c <= n and 1 <= k <= n):
        raise ValueError(f"pass@{k} of {n} answers, {c} of them right, does not exist")
    every = math.comb(n, k)
    return (every - math.comb(n - c, k)) / every


def powers_up_to(n: int) -> list[int]:
    """Values of k for pass@k: 2, 4, 8, ... below n, and n; [] for fewer than two answers."""
    return [*(2**power for power in range(1, n.bit_length()) if 2**power < n), n] if n > 1 else []


def compare_figures(
    base: Sequence[float] | Array,
    candidate: Sequence[float] | Array,
    *,
    confidence: float,
    labels: Sequence[str] = (),
) -> PairedFigure:
    """Compare a figure that each document has of both models, one value of each.

    Documents are what is sampled: what a document has of several answers is averaged before. The
    difference goes by the rules of any metric's drift (``stats.drift``): t, exact signs of few
    documents, McNemar's flips of zeros and ones, clusters resampled whole.

    Args:
        base, candidate: finite, shape (n,), of the same documents in the same order.
        labels: of clusters, n of them; () where each document stands alone.
    """
    ours, theirs = (np.asarray(side, dtype=np.float64) for side in (base, candidate))
    n = ours.shape[0]
    if n < 2:
        values = [float(side[0]) if n else None for side in (ours, theirs)]
        apart = values[1] - values[0] if values[0] is not None and values[1] is not None else None
        first, second = (Figure(value=value) for value in values)
        return PairedFigure(
            base=first, candidate=second, difference=Figure(value=apart), n=n, method="none"
        )
    paired = PairedScores(base=_table(ours, labels), candidate=_table(theirs, labels))
    drift = estimate_drift(paired, confidence=confidence).estimate
    moments = [mean_moments(side) for side in (ours, theirs)]
    return PairedFigure(
        base=Figure(value=moments[0].point, stderr=moments[0].stderr),
        candidate=Figure(value=moments[1].point, stderr=moments[1].stderr),
        difference=Figure(
            value=0.0 - drift.point,  # a drift is positive where the figure falls
            stderr=drift.stderr,
            interval=(0.0 - drift.high, 0.0 - drift.low),
        ),
        n=n,
        method=drift.method,
    )


def mean(values: Sequence[float]) -> float:
    """Mean of a document's answers."""
    if len(values) == 1:
        return float(values[0])
    return exact_sum(np.asarray(values, dtype=np.float64)) / len(values)


def _table(values: Array, labels: Sequence[str]) -> ScoreTable:
    n = values.shape[0]
    return ScoreTable(
        task="", filter="", metric="", aggregation="mean", higher_is_better=True,
        doc_ids=np.arange(n, dtype=np.int64), values=values, doc_hashes=("",) * n,
        prompt_hashes=("",) * n, target_hashes=("",) * n, clusters=tuple(labels),
    )  # fmt: skip


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
        return tuple(float(absent) for absent in missing or ())


def figure_value(name: str, of: DocumentAnswers) -> float | None:
    """A figure of a document: the mean over its answers; None where that of any is not known."""
    return _value(name, of.written, of.expected)


def figure_of_each(name: str, of: DocumentAnswers) -> tuple[float, ...]:
    """A figure of each of a document's answers; () where that of any is not known."""
    return _all_known([measure_figure(name, answer, of.expected) for answer in of.written])


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
    pairs: list[tuple[float | None, float | None]] = []
    for name in names:
        if FIGURES[name].paired:
            value = _paired_value(name, ours, theirs, base.expected)
            pairs.append((None if value is None else FIGURES[name].of_base, value))
        else:
            value = _value(name, ours, base.expected)
            their_value = value if are_equal else _value(name, theirs, candidate.expected)
            pairs.append((value, their_value))
    return pairs


def has_calls(of: DocumentAnswers) -> bool:
    """Whether any answer to a document calls a tool, as far as that is known."""
    of_message = of.known is not None and any(of.known.messages)
    if not of_message and (of.expected is None or not of.expected.as_text):
        return False  # of most tasks, and there are hundreds of thousands
    return any(calls_tools(answer, of.expected) for answer in of.written)


def differing_parts(base: DocumentAnswers, candidate: DocumentAnswers) -> frozenset[AnswerPart]:
    """The parts in which any of the candidate's answers to a document is not the base's."""
    if base == candidate:
        return frozenset()
    pairs = zip(base.written, candidate.written, strict=False)
    parts = (find_differing_parts(ours, theirs, base.expected) for ours, theirs in pairs)
    return frozenset().union(*parts)


def structure_verdicts(name: str, of: DocumentAnswers) -> tuple[StructureVerdict, ...]:
    """What a figure of structure says of each answer to a document; () where nobody says."""
    if of.expected is None:
        return ()
    verdicts = (
        judge_structure(name, answer.text, answer.message, of.expected) for answer in of.written
    )
    return tuple(verdict for verdict in verdicts if verdict is not None)


def verdict_of_each(verdicts: Sequence[StructureVerdict]) -> tuple[float, ...]:
    """The figure of each answer with these verdicts, as ``figure_of_each``."""
    return _all_known([verdict.share for verdict in verdicts])


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
    return _mean_of([measure_figure(name, answer, expected) for answer in answers])


def _paired_value(
    name: str,
    base: Sequence[WrittenAnswer],
    candidate: Sequence[WrittenAnswer],
    expected: ExpectedAnswer | None,
) -> float | None:
    if len(base) != len(candidate):
        return None
    values = [
        measure_paired_figure(name, ours, theirs, expected)
        for ours, theirs in zip(base, candidate, strict=True)
    ]
    if name == "first_difference":
        return _mean_of([value for value in values if value is not None])
    return _mean_of(values)


def _mean_of(values: Sequence[float | None]) -> float | None:
    known = _all_known(values)
    return mean(known) if known else None


def _all_known(values: Sequence[float | None]) -> tuple[float, ...]:
    known = tuple(value for value in values if value is not None)
    return known if len(known) == len(values) else ()
