"""How a loaded model cuts its batches, and by which path it comes to its scores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evalguard.core.settings import Value


def read_batching(lm: Any) -> dict[str, Value]:
    """Return batch_size, token_budget, scorer and shares_prefixes, read back from an lm-eval model.

    None for what it does not show, or has not.
    """
    size = getattr(lm, "batch_size", None)
    told: dict[str, Value] = {
        "batch_size": size if isinstance(size, (int, str)) else None,
        "token_budget": None,
        "scorer": None,
        "shares_prefixes": None,
    }
    if not hasattr(lm, "score_pairs"):
        return told
    if not lm.own_path:
        return {**told, "scorer": "harness", "shares_prefixes": False}
    by_tokens = lm.sequences is None
    return {
        "batch_size": lm.sequences,
        "token_budget": lm.token_budget if by_tokens else None,
        "scorer": "fast" if lm.only_scored_positions else "full logits",
        "shares_prefixes": lm.sharing is not None,
    }
