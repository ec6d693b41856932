"""What a model answered, document by document: an option, or a text after the filter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from evalguard.chosen_option import chosen_option
from evalguard.harness.answers import AnsweredDocument, Answers


def given_answers(
    answers: Answers, documents: Sequence[AnsweredDocument], filter_name: str, metric: str
) -> tuple[str, ...]:
    """What the documents were answered, as one metric sees it; () where any is unknown."""
    filtered = answers.filtered[filter_name]
    found = [_answer(document, filtered[document.doc_id], metric) for document in documents]
    known = tuple(answer for answer in found if answer is not None)
    return known if len(known) == len(found) else ()


def _answer(document: AnsweredDocument, filtered: Sequence[Any], metric: str) -> str | None:
    if document.asked.requests[0].kind == "generate_until":
        return filtered[0] if isinstance(filtered[0], str) else None
    if not document.asked.options:
        return None
    loglikelihoods = [loglikelihood for loglikelihood, _ in filtered]
    chosen = chosen_option(metric, loglikelihoods, document.asked.options)
    return None if chosen is None else str(chosen)
