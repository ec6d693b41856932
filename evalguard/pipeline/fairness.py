"""Checks two loaded models before the second one is scored: can they be compared at all?"""

from __future__ import annotations

from evalguard.errors import MisalignedRunsError
from evalguard.scorer import ModelDescription


def check_fair(
    base: ModelDescription, candidate: ModelDescription, *, allow: frozenset[str]
) -> None:
    """Refuse two models whose vocabularies differ, unless other token ids are meant.

    What can only be seen document by document (token ids, truncation) is checked in pairing.

    Raises:
        MisalignedRunsError: with both sizes and what to do.
    """
    known = base.vocabulary_digest and candidate.vocabulary_digest
    if known and base.vocabulary_digest != candidate.vocabulary_digest and "tokens" not in allow:
        raise MisalignedRunsError(
            "the vocabularies of base and candidate differ "
            f"({base.vocabulary_size:,} and {candidate.vocabulary_size:,} entries): they would "
            "read different tokens",
            hint="give both the same tokenizer (model_args: tokenizer), or declare the difference "
            "with --allow-differing tokens",
        )
