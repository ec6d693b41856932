"""How many tokens a generation request asks for, under whichever of lm-eval's names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LENGTH_NAMES = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")


def generated_length(options: Mapping[str, Any], default: int) -> int:
    """Return the largest number of tokens to generate."""
    given = [options[name] for name in LENGTH_NAMES if options.get(name) is not None]
    return int(given[0] if given else default)
