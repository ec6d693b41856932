"""Samples: one row per document, with everything that was asked, answered and scored."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from evalguard.harness.answers import AnsweredDocument
from evalguard.settings import Value


def sample(
    document: AnsweredDocument, items: Mapping[tuple[str, str], Mapping[int, Any]], token_hash: str
) -> Mapping[str, Value]:
    """Return a document's row; every row of a task has the same columns and types.

    Per-request columns (``arguments``, ``loglikelihood``, ``is_greedy``, ``text``,
    ``token_logprobs``) are lists in the order of the requests. ``doc``, each of ``arguments`` and
    ``scores`` (filter -> metric -> lm-eval's item) are JSON texts.
    """
    from lm_eval.utils import handle_non_serializable

    def written(value: Any) -> str:
        return json.dumps(value, default=handle_non_serializable, ensure_ascii=False)

    scores: dict[str, dict[str, Any]] = {}
    for (filter_name, metric), by_document in items.items():
        if document.doc_id in by_document:
            scores.setdefault(filter_name, {})[metric] = by_document[document.doc_id]
    answers = document.responses
    return {
        "doc_id": document.doc_id,
        "doc": written(document.doc),
        "prompt": document.prompt,
        "target": document.target,
        "doc_hash": document.doc_hash,
        "prompt_hash": document.prompt_hash,
        "target_hash": document.target_hash,
        "token_hash": token_hash,
        "arguments": [written(request.arguments) for request in document.requests],
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
