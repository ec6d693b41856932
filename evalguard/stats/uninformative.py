"""Answers that say nothing about a model: none found by the filter, empty, or one for all."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from evalguard.core.findings import Quote, QuotedSide
from evalguard.core.scores import ScoreTable, Uninformative, UninformativeKind

WRITTEN_NULLS = frozenset({"None", "null", "nan", "NaN"})
"""What a null becomes where somebody writes it as text."""


def is_blank(text: str) -> bool:
    """Whether a text shows nothing: white space, marks without width, special tokens.

    >>> is_blank("\\u200b\\n<|im_end|>"), is_blank("-")
    (True, False)
    """
    begun = text.lstrip()
    return not begun[:1].isalnum() and not _UNSHOWN.sub("", begun).strip()


# Zero-width marks, byte order marks, soft hyphens and braille blanks; special tokens as text.
_UNSHOWN = re.compile(
    "[\u00ad\u180e\u200b-\u200f\u2060-\u2064\u2800\u3164\ufeff\ufffd\x00-\x1f]"
    r"|<[|｜][^<>\s]{1,40}[|｜]>|</?(?:s|pad|bos|eos|unk)>|\[(?:PAD|CLS|SEP|UNK)\]"
)
# From this share of the documents on, what is left measures how often an answer has the right
# form, and no longer how often it is right.
WITHOUT_ANSWER = 0.9
# One answer is given to fewer documents by accident, or because their targets are the same.
_ONE_ANSWER, _FEW_DOCUMENTS = 0.95, 8
# An answer that is right in so many of the documents that get it is what the task asks for.
_MOSTLY_RIGHT = 0.9
_SHOWN_TEXTS, _SHOWN_CHARACTERS = 3, 240
_HINTS = {
    "empty": "look at stop strings, chat template and end-of-text token",
    "not_found": "mend the filter, the prompt or the chat template",
    "one_answer": "look at prompts, stop strings and caches of the server",
    "flat": "look at the weights of the last layer",
    "one_option": "look at the task's doc_to_choice",
    "constant": "look at what was written, and at the weights of the last layer",
    "at_chance": "look whether labels, texts and vocabulary are of these documents and this model",
}


def uninformative_answers(
    table: ScoreTable, texts: Sequence[str], missing: Sequence[bool]
) -> Uninformative | None:
    """Say why a task's generated answers tell nothing about the model; None where they do.

    Args:
        table: of one metric; its ``answers`` are those after the filter, where they are known.
        texts: the first text of each of the table's documents.
        missing: whether the filter found nothing in it; () where that is not known.
    """
    if not texts:
        return None
    right = _right(table)
    blank = np.array([is_blank(text) for text in texts], dtype=np.bool_)
    nulls = np.array([text.strip() in WRITTEN_NULLS for text in texts], dtype=np.bool_)
    if right is None or not nulls.any() or right[nulls].mean() < _MOSTLY_RIGHT:
        blank |= nulls
    if blank.mean() >= WITHOUT_ANSWER and not _is_an_answer(blank, right):
        return Uninformative(kind="empty", documents=int(blank.sum()), n=len(texts))
    unfound = np.array(missing, dtype=np.bool_)
    if missing and unfound.mean() >= WITHOUT_ANSWER and not _is_an_answer(unfound, right):
        return _of_documents("not_found", unfound, texts, table)
    answers = [answer.strip() for answer in table.answers or texts]
    answer, most = Counter(answers).most_common(1)[0]
    given = np.array([text == answer for text in answers], dtype=np.bool_)
    few = len(answers) < _FEW_DOCUMENTS or most < _ONE_ANSWER * len(answers)
    if few or (right is not None and right[given].mean() >= _MOSTLY_RIGHT):
        return None
    return _of_documents("one_answer", given, texts, table)


def gives_nothing(answer: object) -> bool:
    """Whether a filter of any kind gave no answer: nothing, an empty text, an empty list."""
    if isinstance(answer, str):
        return not answer.strip()
    return answer is None or (isinstance(answer, (list, tuple)) and not answer)


def _of_documents(
    kind: UninformativeKind, chosen: NDArray[np.bool_], texts: Sequence[str], table: ScoreTable
) -> Uninformative:
    whole = len(texts) == table.n  # else nobody knows whose they are
    shown = tuple(
        Quote(
            what="answer",
            doc_id=int(table.doc_ids[row]) if whole else None,
            text=_clip(texts[row]),
        )
        for row in np.flatnonzero(chosen)[:_SHOWN_TEXTS]
    )
    return Uninformative(kind=kind, documents=int(chosen.sum()), n=len(texts), quotes=shown)


def _right(table: ScoreTable) -> NDArray[np.bool_] | None:
    """Which documents were answered right; None for a metric that is not right or wrong."""
    binary = table.aggregation == "mean" and bool(np.isin(table.values, (0.0, 1.0)).all())
    return table.values == float(table.higher_is_better) if binary else None


def _is_an_answer(without: NDArray[np.bool_], right: NDArray[np.bool_] | None) -> bool:
    """Whether giving no answer is what the task wants ("unanswerable"), and some do answer."""
    return right is not None and not without.all() and right[without].mean() >= _MOSTLY_RIGHT


def with_uninformative(table: ScoreTable, found: Uninformative | None) -> ScoreTable:
    """The table with what makes its answers say nothing, as a fact and as a caveat."""
    if found is None:
        return table
    caveat = describe_uninformative(found, table.filter)
    return replace(table, uninformative=found, caveats=(*table.caveats, caveat))


def describe_uninformative(found: Uninformative, filter_name: str) -> str:
    """Say in a clause what is wrong with a model's answers."""
    if found.kind == "empty":
        return f"the generated answers to {found.share} are empty"
    if found.kind == "not_found":
        name = f"the filter {filter_name}" if filter_name not in ("", "none") else "the task"
        return f"{name} finds no answer in {found.share}"
    if found.kind == "one_answer":
        return f"{found.share} are given the same answer"
    if found.kind == "one_option":
        return f"{found.share} have one option to choose, so that any model answers alike"
    if found.kind == "constant":
        return f"the output of {found.share} is the same, whatever the input"
    if found.kind == "at_chance":
        return f"the answers to {found.share} fit labels or texts no better than by chance"
    return "every token has the same log-probability, so the output does not depend on the input"


def explain_silence(found: Uninformative, table: ScoreTable) -> str:
    """Say what is wrong with a candidate's answers alone, and what to do."""
    summary = describe_uninformative(found, table.filter)
    return f"of the candidate, {summary}{_documents(found.quotes)}; {_advice(found, table)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NothingKnown:
    """Why a metric says nothing about a pair of models.

    ``regression_stands``: only the candidate's answers say nothing, which is a loss where the
    statistics show one, and no pass where they do not. ``quotes``: some of the answers.
    """

    reason: str
    quotes: tuple[Quote, ...] = ()
    regression_stands: bool = False


def nothing_known(base: ScoreTable, candidate: ScoreTable) -> NothingKnown | None:
    """Say why a metric of two models says nothing about them; None where it does."""
    ours, theirs = base.uninformative, candidate.uninformative
    if ours is not None and theirs is not None:
        same = ours.kind == theirs.kind and ours.share == theirs.share
        summary = describe_uninformative(ours, base.filter)
        other_summary = describe_uninformative(theirs, base.filter)
        reason = (
            f"of both models, {summary}"
            if same
            else f"of the base, {summary}; of the other, {other_summary}"
        )
        quotes = quote_side(theirs, "candidate") or quote_side(ours, "base")
        return NothingKnown(
            reason=f"{reason}: there is nothing to compare{_documents(quotes)}; "
            f"{_advice(theirs, base)}",
            quotes=quotes,
        )
    if ours is not None:
        summary = describe_uninformative(ours, base.filter)
        return NothingKnown(
            reason=f"of the base, {summary}: there is nothing that a candidate could lose"
            f"{_documents(ours.quotes)}; {_advice(ours, base)}",
            quotes=quote_side(ours, "base"),
        )
    if theirs is not None:
        summary = describe_uninformative(theirs, base.filter)
        return NothingKnown(
            reason=f"of the candidate, {summary}: its score says nothing about it, and no loss is "
            f"shown{_documents(theirs.quotes)}; {_advice(theirs, base)}",
            regression_stands=True,
            quotes=quote_side(theirs, "candidate"),
        )
    return None


def _advice(found: Uninformative, table: ScoreTable) -> str:
    if found.kind != "not_found":
        return _HINTS[found.kind]
    name = f'"{table.task}/{table.metric},{table.filter}"'
    return f"{_HINTS[found.kind]}, or take it off the gate (advisory: [{name}])"


def quote_side(found: Uninformative, side: QuotedSide) -> tuple[Quote, ...]:
    """Up to three of the answers, as a side's."""
    return tuple(replace(quote, side=side) for quote in found.quotes)


def _documents(quotes: Sequence[Quote]) -> str:
    """Name the documents that are quoted."""
    ids = [str(quote.doc_id) for quote in quotes if quote.doc_id is not None]
    return f" (documents {', '.join(ids)})" if len(ids) > 1 else ""


def _clip(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
