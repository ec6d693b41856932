"""Checks two loaded models before the second one is scored: can they be compared at all?"""

from __future__ import annotations

from collections.abc import Sequence

from evalguard.errors import MisalignedRunsError
from evalguard.scorer import ModelDescription, Request

TokenIds = tuple[int, ...]

_SHOWN_IDS = 8
_HINT = (
    "give both the same tokenizer (model_args: tokenizer); if the difference is under test, "
    "declare it: --allow-differing tokens, or differs: [tokens] on the pair"
)


def check_vocabularies(base: ModelDescription, candidate: ModelDescription) -> None:
    """Refuse two models whose vocabularies differ.

    Raises:
        MisalignedRunsError: with both sizes and what to do.
    """
    known = base.vocabulary_digest and candidate.vocabulary_digest
    if not known or base.vocabulary_digest == candidate.vocabulary_digest:
        return
    sizes = f"{base.vocabulary_size:,} and {candidate.vocabulary_size:,} entries"
    if base.vocabulary_size == candidate.vocabulary_size:
        sizes = f"{base.vocabulary_size:,} entries each, and not the same ones"
    raise MisalignedRunsError(
        f"the vocabularies of base and candidate differ ({sizes}): they would read different "
        "tokens",
        hint=_HINT,
    )


def check_encodings(
    requests: Sequence[Request], base: Sequence[TokenIds], candidate: Sequence[TokenIds]
) -> None:
    """Refuse two models that read the same requests as different token ids.

    A sample of requests shows in a second what pairing would show after both models were scored;
    pairing still looks at every document.

    Args:
        requests: what was encoded; ``base`` and ``candidate`` are aligned to them, () is unknown.

    Raises:
        MisalignedRunsError: with the number of requests and the first difference.
    """
    differing = [
        (request, ours, theirs)
        for request, ours, theirs in zip(requests, base, candidate, strict=True)
        if ours and theirs and ours != theirs
    ]
    if not differing:
        return
    request, ours, theirs = differing[0]
    raise MisalignedRunsError(
        f"base and candidate encode {len(differing)} of {len(requests)} requests differently "
        f"(first: {request.task}, doc_id {request.doc_id}: token ids {_shown(ours)} and "
        f"{_shown(theirs)})",
        hint=_HINT,
    )


def _shown(ids: TokenIds) -> str:
    return " ".join(map(str, ids[:_SHOWN_IDS])) + (" ..." if len(ids) > _SHOWN_IDS else "")
