"""Why the distributions of two models cannot be compared."""

from __future__ import annotations

from evalguard.scorer import Request


def other_tokens(request: Request, base: int, candidate: int) -> str:
    """Two models that score other tokens of the same request; so many of them each."""
    other = "in other windows" if base == candidate else f"({base} and {candidate} of them)"
    return (
        f"base and candidate score other tokens {other}, first in document {request.doc_id}, so "
        "that no position of one belongs to a position of the other"
    )


def other_widths(base: int, candidate: int) -> str:
    """Two models that give so many probabilities at a position."""
    return f"the base gives {base:,} probabilities at every position, the candidate {candidate:,}"
