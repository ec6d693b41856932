"""What a server tells of itself."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from evalguard.core.redaction import redact_value, redacted_text
from evalguard.errors import UsageError
from evalguard.models.served.answer_checks import method_module
from evalguard.models.served.context_length import LENGTH_KEYS
from evalguard.models.served.exchange import ask_server

if TYPE_CHECKING:
    from evalguard.core.settings import Value

_PATIENCE = 5.0  # seconds, for a page that only describes the server
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
        UsageError: the server lists several, or none.
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
        found = json.loads(answer.text) if answer.ok else None
    except (ValueError, RecursionError):
        found = None
    names = [str(one["id"]) for one in _entries(found) if one.get("id")]
    if len(names) != 1:
        listed = f"lists {len(names)}: {', '.join(names[:8])}" if names else "lists none"
        raise UsageError(
            f"no model is named, and {redacted_text(page)} {listed}",
            hint="name it: --base-model-args model=NAME, --cand-model-args model=NAME",
        )
    lm.model = names[0]


def _entries(found: Any) -> list[dict[str, Any]]:
    listed = found.get("data") if isinstance(found, dict) else None
    return [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []


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
            found = json.loads(answer.text) if answer.ok else None
        except (ClientConnectorError, ServerDisconnectedError, ConnectionResetError):
            return
        except Exception:  # noqa: BLE001 - a page that cannot be read says nothing
            continue
        if not isinstance(found, dict):
            continue
        told = _choose(found, keys) if keys else _model_entry(found, model)
        if told:
            yield page.removeprefix(root), told


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
    named = [one for one in entries if one.get("id") == model]
    entry = (named or (entries if len(entries) == 1 else [{}]))[0]
    # Of an adapter, vLLM and SGLang tell lengths with the model that it belongs to.
    parent = next((one for one in entries if one.get("id") == entry.get("parent")), {})
    lengths = _choose(parent, LENGTH_KEYS["/models"])
    return {**lengths, **_choose(entry, _MODEL_KEYS)}
