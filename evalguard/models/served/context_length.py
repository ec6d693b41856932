"""How many tokens a server reads at once, and whether what is to be asked leaves room for a prompt.

lm-eval's clients cut prompts themselves, to a ``max_length`` that is 2,048 where nobody gives one,
and a prompt that ``max_gen_toks`` leaves no room for to nothing, or to a piece of itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from evalguard.core.settings import Value
from evalguard.models.hf.generated_length import generated_length, refuse_without_room

# What the pages of ``read_server_facts`` say of it: vLLM and SGLang (/v1/models), hosted services
# (there too, by other names), llama.cpp (of one slot), SGLang (its flag), TGI (prompt and answer).
_ENTRY_KEYS = ("max_model_len", "context_length", "context_window", "max_context_length")
LENGTH_KEYS: Mapping[str, tuple[str, ...]] = {
    "/models": _ENTRY_KEYS,
    "/v1/models": _ENTRY_KEYS,
    "/props": ("default_generation_settings.n_ctx",),
    "/get_server_info": ("context_length",),
    "/info": ("max_total_tokens",),
}
_HINT = "fewer: --max-gen-toks N; or raise model_args.max_length if the server reads more"


def read_context_length(facts: Mapping[str, Value]) -> int | None:
    """Tokens of a prompt and its answer together that a server says it reads; None: it does not.

    Args:
        facts: of ``read_server_facts``.
    """
    found = [
        page[key]
        for name, keys in LENGTH_KEYS.items()
        for key in keys
        if isinstance(page := facts.get(name), Mapping) and key in page
    ]
    return min((one for one in found if type(one) is int and one > 1), default=None)


def settle_context_length(
    lm: Any, facts: Mapping[str, Value], model_args: Mapping[str, Value]
) -> tuple[str, ...]:
    """Let a client cut prompts to what its server reads; what is to be said of it, at most once.

    A smaller ``max_length`` that the user gives stays. lm-eval's client keeps one place for a
    generated token: its own ``max_length`` is that of prompts.
    """
    told = read_context_length(facts)
    given = model_args.get("max_length")
    lm.context_known = told is not None or given is not None  # a probe keeps to what is known
    if told is None:
        assumed = given is None and cuts_prompts(lm)
        return (
            (
                "the server does not say how many tokens it reads at once: prompts are cut to "
                f"lm-eval's {lm.max_length + 1:,}; write model_args: {{max_length: N}}",
            )
            if assumed
            else ()
        )
    larger = given is not None and lm.max_length + 1 > told
    if given is None or larger:
        lm.max_length = told - 1
    return (
        (f"model_args.max_length is {given}, and the server reads {told:,}: {told:,} count",)
        if larger
        else ()
    )


def cuts_prompts(lm: Any) -> bool:
    """Whether a client cuts what it sends; one that sends texts or conversations does not."""
    return getattr(lm, "tokenizer", None) is not None


def check_room(lm: Any, arguments: Iterable[tuple[Any, ...]], *, told: int | None = None) -> None:
    """Refuse to generate so many tokens that no room is left for a prompt.

    Args:
        arguments: lm-eval's, of requests to generate; others are left alone.
        told: what the server says that it reads, which holds for texts and conversations too.

    Raises:
        EvaluationError: with both numbers, as for a model in this process.
    """
    if not getattr(lm, "tokenized_requests", True) and told is None:
        return
    default = lm._max_gen_toks
    for asked in arguments:
        options = asked[1] if len(asked) > 1 and isinstance(asked[1], Mapping) else None
        if options is not None:
            # lm-eval cuts by the first name alone, and sends the others too.
            longest = max(
                generated_length(options, default), int(options.get("max_gen_toks") or default)
            )
            refuse_without_room(longest, lm.max_length, hint=_HINT)
