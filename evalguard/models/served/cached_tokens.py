"""How many tokens of prompts a server took from its prefix cache, as far as it says."""

from __future__ import annotations

import re
from typing import Any

from evalguard.models.served.exchange import ask_server

_PATIENCE = 5.0  # seconds, for a page of counters
# vLLM's counter at /metrics, in tokens, one line per engine; before 0.9 with "gpu_" in its name.
_HITS = re.compile(
    r"^vllm:(?:gpu_)?prefix_cache_hits(?:_total)?(?:\{[^}]*\})?\s+([0-9.eE+]+)\s*$", re.MULTILINE
)


def read_cached_tokens(answer: Any) -> int | None:
    """Tokens that an answer says were cached; None where it does not say.

    OpenAI's ``usage.prompt_tokens_details.cached_tokens`` (vLLM fills it with
    ``--enable-prompt-tokens-details``, where it is not 0), SGLang's ``meta_info.cached_tokens``,
    one of each prompt.
    """
    found = [_told(one) for one in (answer if isinstance(answer, list) else [answer])]
    known = [one for one in found if one is not None]
    return sum(known) if known else None


def _told(answer: Any) -> int | None:
    for path in (("usage", "prompt_tokens_details"), ("meta_info",)):
        place = answer
        for name in path:
            place = place.get(name) if isinstance(place, dict) else None
        told = place.get("cached_tokens") if isinstance(place, dict) else None
        if isinstance(told, int) and not isinstance(told, bool) and told >= 0:
            return told
    return None


def read_hit_counter(lm: Any) -> int | None:
    """Tokens that a vLLM server has taken from its cache since it started; None: another server."""
    url = str(lm.base_url or "")
    root = url.partition("/v1/")[0]
    if root == url or not url.startswith(("http://", "https://")):
        return None
    try:
        answer = ask_server(lm, f"{root}/metrics", seconds=_PATIENCE)
    except Exception:  # noqa: BLE001 - a page that need not be there
        return None
    hits = _HITS.findall(answer.text) if answer.ok else []
    return int(sum(map(float, hits))) if hits else None
