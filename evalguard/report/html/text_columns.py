"""Texts of some documents in columns, which compress better than rows do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def columns_of_texts(documents: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """Return documents, each [prompt, target, requests] of ``DocumentTexts.written``, in columns.

    Every column has one value per document: texts, and lists over its requests. A continuation that
    is the target is None. Numbers of the candidate's tokens are differences from the base's.
    """
    asked = [requests for _, _, requests in documents]
    return {
        "prompt": [prompt for prompt, _, _ in documents],
        "target": [target for _, target, _ in documents],
        "continuation": [
            [None if one[0] == target else one[0] for one in requests]
            for _, target, requests in documents
        ],
        "base": [[one[1] for one in requests] for requests in asked],
        "candidate": [[one[2] for one in requests] for requests in asked],
        "names": [
            [None if one[3] is None else one[3][0] for one in requests] for requests in asked
        ],
        "heat": [[_token_columns(one[3]) for one in requests] for requests in asked],
    }


def _token_columns(tokens: Any) -> list[Any] | None:
    if tokens is None:
        return None
    _, base, candidate, kl = tokens
    if len(base) != len(candidate):
        return [base, candidate, kl, 0]
    change = [
        None if one is None or other is None else other - one
        for one, other in zip(base, candidate, strict=True)
    ]
    known = all(
        (one is None) == (other is None) for one, other in zip(base, candidate, strict=True)
    )
    return [base, change, kl, 1] if known else [base, candidate, kl, 0]
