"""How many tokens a generation request asks for, under whichever of lm-eval's names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evalguard.core.scorer import LENGTH_NAMES
from evalguard.errors import EvaluationError

# Generated one after the other before they are kept: a few minutes of a large model, or less.
TOKENS_OF_A_PART = 4096


def generated_length(options: Mapping[str, Any], default: int) -> int:
    """Return the largest number of tokens to generate."""
    given = [options[name] for name in LENGTH_NAMES if options.get(name) is not None]
    return int(given[0] if given else default)


def refuse_without_room(longest: int, max_length: int, *, hint: str) -> None:
    """Refuse to generate so many tokens that a prompt would be cut to nothing.

    Raises:
        EvaluationError: ``longest`` tokens leave none of ``max_length`` for a prompt.
    """
    if longest >= max_length:
        raise EvaluationError(
            f"{longest} tokens are to be generated, which leaves no room for a context in the "
            f"model's {max_length}",
            hint=hint,
        )
