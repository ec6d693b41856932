"""Samples: one row per document, with everything that was asked, answered and scored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from evalguard.core.generated_tokens import sample_columns
from evalguard.core.reports.generations import GeneratedDocument
from evalguard.core.settings import Value
from evalguard.harness.answers import (
    AnsweredDocument,
    TaskAnswers,
)
from evalguard.harness.asked_document import written
from evalguard.harness.single_answers import single_scores

if TYPE_CHECKING:
    from lm_eval.api.task import Task


Items = Mapping[tuple[str, str], Mapping[int, Any]]


def sample(
    document: AnsweredDocument, items: Items, given: Items, *, cut: bool
) -> dict[str, Value]:
    """Return a document's row; every row of a task has the same columns and types.

    Per-request columns (``arguments``, ``loglikelihood``, ``is_greedy``, ``text``,
    ``token_logprobs``) are lists in the order of the requests. ``doc``, each of ``arguments``,
    ``scores`` (filter -> metric -> lm-eval's item) and ``answers`` are JSON texts.

    Args:
        items: lm-eval's item of every document, by (filter, metric).
        given: what was answered, likewise, where it is known.
        cut: whether the document's token ids depend on the model's context length.
    """
    asked, answers = document.asked, document.responses
    return {
        "doc_id": asked.doc_id,
        "doc": asked.written,
        "prompt": asked.prompt,
        "target": asked.target,
        "doc_hash": asked.doc_hash,
        "prompt_hash": asked.prompt_hash,
        "target_hash": asked.target_hash,
        "token_hash": document.token_hash,
        "arguments": list(asked.arguments),
        "loglikelihood": [answer.loglikelihood for answer in answers],
        "is_greedy": [answer.is_greedy for answer in answers],
        "text": [answer.text for answer in answers],
        "token_logprobs": [
            None if answer.token_logprobs is None else answer.token_logprobs.tolist()
            for answer in answers
        ],
        "truncated": any(answer.truncated for answer in answers),
        "cut": cut,
        "scores": written(_of(document.doc_id, items)),
        "answers": written(_of(document.doc_id, given)),
    }


def generated_answers(
    task: Task, answers: TaskAnswers, document: AnsweredDocument
) -> dict[str, Value]:
    """More columns: what is known of a document's single answers, and their tokens.

    ``generated`` is "" if none is generated. The columns of tokens are there where the tokens of
    any answer to the task are known.
    """
    if not answers.alone:
        return {"generated": ""}
    known = GeneratedDocument(
        ended=tuple(answer.ended for answer in document.responses),
        missing={
            name: tuple(of.missing[document.doc_id])
            for name, of in answers.alone.items()
            if document.doc_id in of.missing
        },
        scores=single_scores(task, answers.alone, document.doc_id),
        messages=tuple(answer.message for answer in document.responses),
    )
    tokens = [answer.generated for answer in document.responses]
    return {
        "generated": known.written,
        **(sample_columns(tokens) if answers.shows_tokens else {}),
    }


def _of(doc_id: int, items: Items) -> dict[str, dict[str, Any]]:
    """What a document has, filter -> metric -> item."""
    found: dict[str, dict[str, Any]] = {}
    for (filter_name, metric), by_document in items.items():
        if doc_id in by_document:
            found.setdefault(filter_name, {})[metric] = by_document[doc_id]
    return found
