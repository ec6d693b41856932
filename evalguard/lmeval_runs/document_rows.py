"""Rows of a stored run's documents: what was asked and answered, as a run folder keeps it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from evalguard.lmeval_runs.samples import Sample
from evalguard.settings import Value

Answer = tuple[float | None, bool | None, str | None]
_NOTHING: Answer = (None, None, None)


def document_rows(
    by_filter: Mapping[str, Sequence[Sample]],
) -> tuple[Mapping[str, Value], ...]:
    """Return one row per document, in ascending doc_id, with the columns of a scored model's.

    What a run does not show is None. Of ``arguments``, JSON texts, a context that is the prompt
    is null: a run writes it once for each continuation. There is no log-probability of a token.
    """
    found: dict[int, dict[str, Sample]] = {}
    for filter_name, samples in by_filter.items():
        for sample in samples:
            found.setdefault(sample.doc_id, {})[filter_name] = sample
    return tuple(_row(found[doc_id]) for doc_id in sorted(found))


def _row(of_filters: Mapping[str, Sample]) -> Mapping[str, Value]:
    first = next(iter(of_filters.values()))
    answers = [_answer(*one) for one in _requests(first)]
    return {
        "doc_id": first.doc_id,
        "doc": json.dumps(first.doc, ensure_ascii=False),
        "prompt": first.prompt,
        "target": first.target,
        "doc_hash": first.doc_hash,
        "prompt_hash": first.prompt_hash,
        "target_hash": first.target_hash,
        "arguments": [json.dumps(asked, ensure_ascii=False) for asked in first.requests],
        "loglikelihood": [answer[0] for answer in answers],
        "is_greedy": [answer[1] for answer in answers],
        "text": [answer[2] for answer in answers],
        "token_logprobs": [None] * len(answers),
        "scores": json.dumps({name: dict(one.items) for name, one in of_filters.items()}),
    }


def _requests(sample: Sample) -> list[tuple[Any, Any]]:
    """What was asked and answered, request by request; None for what is not shown."""
    count = max(len(sample.requests), len(sample.responses))
    return [
        (
            sample.requests[n] if n < len(sample.requests) else None,
            sample.responses[n] if n < len(sample.responses) else None,
        )
        for n in range(count)
    ]


def _answer(asked: Any, response: Any) -> Answer:
    """The first of a request's answers; lm-eval writes numbers as text or as they are."""
    first = response[0] if isinstance(response, list) and response else response
    if isinstance(first, list) and len(first) == 2:
        return _number(first[0]), str(first[1]) == "True", None
    if asked is not None and len(asked) == 1:  # a whole text: its log-likelihood alone
        return _number(first), None, None
    return (None, None, first) if isinstance(first, str) else _NOTHING


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None
