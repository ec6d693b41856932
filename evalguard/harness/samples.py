"""Samples: one row per document, with everything that was asked, answered and scored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evalguard.harness.answers import AnsweredDocument
from evalguard.harness.asked_document import written
from evalguard.settings import Value


def sample(
    document: AnsweredDocument, items: Mapping[tuple[str, str], Mapping[int, Any]]
) -> Mapping[str, Value]:
    """Return a document's row; every row of a task has the same columns and types.

    Per-request columns (``arguments``, ``loglikelihood``, ``is_greedy``, ``text``,
    ``token_logprobs``) are lists in the order of the requests. ``doc``, each of ``arguments`` and
    ``scores`` (filter -> metric -> lm-eval's item) are JSON texts.
    """
    scores: dict[str, dict[str, Any]] = {}
    for (filter_name, metric), by_document in items.items():
        if document.doc_id in by_document:
            scores.setdefault(filter_name, {})[metric] = by_document[document.doc_id]
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
        "scores": written(scores),
    }
