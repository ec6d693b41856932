"""What a server tells of itself: name, context length, its cache.

lm-eval's clients cut prompts themselves, to a ``max_length`` that is 2,048 where nobody gives one,
and a prompt that ``max_gen_toks`` leaves no room for to nothing, or to a piece of itself. Which
tokenizer a server is asked with is settled before, in ``engine/sources.py``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from evalguard.core.redaction import redact_value, redacted_text
from evalguard.core.settings import Value
from evalguard.errors import UsageError
from evalguard.models.scored_tokens import generated_length, refuse_without_room
from evalguard.models.served.answer_checks import method_module
from evalguard.models.served.exchange import ask_server

_PATIENCE = 5.0  # seconds, for a page that only describes the server, or counts
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
    counts = [_told(entry) for entry in (answer if isinstance(answer, list) else [answer])]
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _told(answer: Any) -> int | None:
    for path in (("usage", "prompt_tokens_details"), ("meta_info",)):
        node = answer
        for name in path:
            node = node.get(name) if isinstance(node, dict) else None
        count = node.get("cached_tokens") if isinstance(node, dict) else None
        if isinstance(count, int) and not isinstance(count, bool) and count >= 0:
            return count
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
    lengths = [
        page[key]
        for name, keys in LENGTH_KEYS.items()
        for key in keys
        if isinstance(page := facts.get(name), Mapping) and key in page
    ]
    return min((length for length in lengths if type(length) is int and length > 1), default=None)


def settle_context_length(
    lm: Any, facts: Mapping[str, Value], model_args: Mapping[str, Value]
) -> tuple[str, ...]:
    """Let a client cut prompts to what its server reads; what is to be said of it, at most once.

    A smaller ``max_length`` that the user gives stays. lm-eval's client keeps one place for a
    generated token: its own ``max_length`` is that of prompts.
    """
    length = read_context_length(facts)
    given = model_args.get("max_length")
    lm.context_known = length is not None or given is not None  # a probe keeps to what is known
    if length is None:
        assumed = given is None and cuts_prompts(lm)
        return (
            (
                "the server does not say how many tokens it reads at once: prompts are cut to "
                f"lm-eval's {lm.max_length + 1:,}; write model_args: {{max_length: N}}",
            )
            if assumed
            else ()
        )
    larger = given is not None and lm.max_length + 1 > length
    if given is None or larger:
        lm.max_length = length - 1
    return (
        (f"model_args.max_length is {given}, and the server reads {length:,}: {length:,} count",)
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


_ENDPOINTS = ("/chat/completions", "/completions", "/generate", "/messages")
# Of the entry of a model; vLLM and llama.cpp put the time of the question into others.
_MODEL_KEYS = ("id", "root", "parent", "owned_by", "meta", *LENGTH_KEYS["/models"])
# Pages of vLLM, llama.cpp, SGLang and TGI, with what stays the same from one question to the next.
_PAGES: Mapping[str, tuple[str, ...]] = {
    "/version": ("version",),
    "/props": ("build_info", "model_path", "model_alias", *LENGTH_KEYS["/props"]),
    "/get_model_info": ("model_path", "tokenizer_path", "weight_version"),
    "/get_server_info": LENGTH_KEYS["/get_server_info"],
    "/info": ("model_id", "model_sha", "model_dtype", "version", "sha", *LENGTH_KEYS["/info"]),
}


def read_server_facts(lm: Any) -> dict[str, Value]:
    """Ask a server what it is: its entry in the list of models, version, build, weights.

    Returns:
        {} where it tells nothing: no such pages, or nobody there, which asking will say.
    """
    url = str(lm.base_url or "")
    if not url.startswith(("http://", "https://")):
        return {}
    return dict(_read_pages(lm, url, str(lm.model)))


def settle_model_name(lm: Any) -> None:
    """Give a client the name of the one model that its server lists, where nobody gave one.

    Only servers in OpenAI's form are asked by such a name.

    Raises:
        UsageError: the server lists several, or none, or has no such list.
        Exception: it does not answer.
    """
    url = str(lm.base_url or "")
    if lm.model or not url.startswith(("http://", "https://")):
        return
    if method_module(lm, "_create_payload") != "openai_completions":
        return
    page = f"{_prefix(url)}/models"
    answer = ask_server(lm, page, seconds=_PATIENCE)
    try:
        listing = json.loads(answer.text) if answer.ok else None
    except (ValueError, RecursionError):
        listing = None
    names = [str(entry["id"]) for entry in _entries(listing) if entry.get("id")]
    if not isinstance(listing, dict) or not isinstance(listing.get("data"), list):
        raise UsageError(
            f"no model is named, and {redacted_text(page)} is no list of models (HTTP "
            f"{answer.status})",
            hint="set OPENAI_API_KEY in the environment, or header: in model_args"
            if answer.status in (401, 403)
            else "base_url must lead to an OpenAI-compatible server (http://HOST:PORT/v1); of one "
            "that lists no models name it: --base-model-args model=NAME, --cand-model-args "
            "model=NAME",
        )
    if len(names) != 1:
        listed = f"lists {len(names)}: {', '.join(names[:8])}" if names else "lists none"
        raise UsageError(
            f"no model is named, and {redacted_text(page)} {listed}",
            hint="name it: --base-model-args model=NAME, --cand-model-args model=NAME",
        )
    lm.model = names[0]


def _entries(found: Any) -> list[dict[str, Any]]:
    listed = found.get("data") if isinstance(found, dict) else None
    return (
        [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
    )


def _prefix(url: str) -> str:
    return next((url.removesuffix(end) for end in _ENDPOINTS if url.endswith(end)), url)


def _read_pages(lm: Any, url: str, model: str) -> Iterator[tuple[str, Value]]:
    from aiohttp import ClientConnectorError, ServerDisconnectedError

    prefix = _prefix(url)
    root = prefix.removesuffix("/v1")
    # SGLang's own endpoint stands beside /v1, and not in it.
    lists: dict[str, tuple[str, ...]] = {f"{prefix}/models": (), f"{root}/v1/models": ()}
    pages = lists | {f"{root}{page}": keys for page, keys in _PAGES.items()}
    for page, keys in pages.items():
        try:
            answer = ask_server(lm, page, seconds=_PATIENCE)
            document = json.loads(answer.text) if answer.ok else None
        except (ClientConnectorError, ServerDisconnectedError, ConnectionResetError):
            return
        except Exception:  # noqa: BLE001 - a page that cannot be read says nothing
            continue
        if not isinstance(document, dict):
            continue
        facts = _choose(document, keys) if keys else _model_entry(document, model)
        if facts:
            yield page.removeprefix(root), facts


def _choose(found: Mapping[str, Any], keys: tuple[str, ...]) -> dict[str, Value]:
    """Values by their keys; "a.b" is b of a."""
    values = {}
    for key in keys:
        value: Any = found
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if isinstance(value, (str, int, float, dict)) and value != {}:
            values[key] = redact_value(value, key)
    return values


def _model_entry(found: Mapping[str, Any], model: str) -> dict[str, Value]:
    entries = _entries(found)
    named = [candidate for candidate in entries if candidate.get("id") == model]
    entry = (named or (entries if len(entries) == 1 else [{}]))[0]
    # Of an adapter, vLLM and SGLang tell lengths with the model that it belongs to.
    parent = next(
        (candidate for candidate in entries if candidate.get("id") == entry.get("parent")), {}
    )
    lengths = _choose(parent, LENGTH_KEYS["/models"])
    return {**lengths, **_choose(entry, _MODEL_KEYS)}
