"""Samples: one row per document, with everything that was asked, answered and scored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evalguard.harness.answers import AnsweredDocument
from evalguard.harness.asked_document import written
from evalguard.settings import Value

Items = Mapping[tuple[str, str], Mapping[int, Any]]


def sample(
    document: AnsweredDocument, items: Items, given: Items, *, cut: bool
) -> Mapping[str, Value]:
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


def _of(doc_id: int, items: Items) -> dict[str, dict[str, Any]]:
    """What a document has, filter -> metric -> item."""
    found: dict[str, dict[str, Any]] = {}
    for (filter_name, metric), by_document in items.items():
        if doc_id in by_document:
            found.setdefault(filter_name, {})[metric] = by_document[doc_id]
    return found
