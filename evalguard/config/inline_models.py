"""Models given on the command line: a path or hub id, and lm-eval's ``key=value`` arguments."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from evalguard.config.local_paths import is_written_as_path, resolve_model_args, resolve_path
from evalguard.core.settings import Value, Variant
from evalguard.errors import UsageError

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_TYPED = re.compile(r"([A-Za-z][\w-]*):(?!//|\d+(/|$))(.+)", re.DOTALL)
_HINT = 'write dtype=float32,revision=main or {"dtype": "float32", "revision": "main"}'
_ADDRESS_HINT = "a server is http://HOST:PORT/v1"
_INT = re.compile(r"[-+]?[0-9]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_WORDS: Mapping[str, Value] = {"true": True, "false": False, "none": None, "null": None}


def inline_variant(
    spec: str,
    *,
    model: str,
    model_args: Mapping[str, Value],
    cwd: Path,
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
    chat: bool = False,
) -> Variant:
    """Return the variant of a path, a hub id or a server's address, under a short name.

    An address without a model type (``hf``) is asked for completions, or, for ``chat``, put
    conversations; where it names the endpoint, that decides.

    The user typed it, so ``trust_remote_code`` may stand among ``model_args``, as in lm-eval, and
    ``allow_pickle``, as a guard file calls it.

    Raises:
        UsageError: if the spec is neither a path, a hub id nor an address, or the arguments
            contradict it.
    """
    args = dict(model_args)
    trusted = _pop_flag(args, "trust_remote_code") or trust_remote_code
    allow_pickle = _pop_flag(args, "allow_pickle") or allow_pickle
    if "pretrained" in args:
        raise UsageError(
            f"'{spec}' and pretrained={args['pretrained']} name the model twice",
            hint="leave pretrained out of the model args",
        )
    if is_address(spec):
        if "base_url" in args:
            raise UsageError(
                f"'{spec}' and base_url={args['base_url']} name the server twice",
                hint="leave base_url out of the model args",
            )
        name, model, named = _resolve_address(spec, model, chat=chat)
    else:
        name, pretrained = _resolve_spec(spec, cwd)
        named = {"pretrained": pretrained}
    return Variant(
        name=name,
        model=model,
        model_args={**named, **resolve_model_args(args, cwd)},
        trust_remote_code=trusted,
        allow_pickle=allow_pickle,
        allow_code=True,
    )


def split_model_type(spec: str, cwd: Path) -> tuple[str, str]:
    """Return the model type and the model of ``TYPE:MODEL``; the type is "" where none is given.

    >>> split_model_type("vllm:./llama", Path("/"))
    ('vllm', './llama')
    >>> split_model_type("http://host:8000/v1", Path("/"))
    ('', 'http://host:8000/v1')
    """
    match = _TYPED.fullmatch(spec)
    if match is None or os.path.lexists(resolve_path(spec, cwd)):
        return "", spec
    return match[1], match[3]


def _pop_flag(args: dict[str, Value], name: str) -> bool:
    """Take a switch out of model arguments.

    Raises:
        UsageError: it is neither true nor false.
    """
    value = args.pop(name, False)
    if not isinstance(value, bool):
        raise UsageError(f"{name} is true or false, not '{value}'")
    return value


def is_address(spec: str) -> bool:
    """Whether a text is the address of a server."""
    return spec.startswith(("http://", "https://"))


# What stands behind an address that leads to a server, and not to what is asked there.
_ENDPOINTS = {
    "local-chat-completions": "/chat/completions",
    "openai-chat-completions": "/chat/completions",
    "local-completions": "/completions",
    "openai-completions": "/completions",
}


def _resolve_address(spec: str, model: str, *, chat: bool) -> tuple[str, str, dict[str, Value]]:
    """Name, model type and arguments of the server at an address."""
    try:
        parts = urlsplit(spec)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise UsageError(f"'{spec}' is no address: {error}", hint=_ADDRESS_HINT) from error
    if not host:
        raise UsageError(f"'{spec}' names no server", hint=_ADDRESS_HINT)
    url = spec.rstrip("/")
    if model == "hf":
        where = "openai" if host == "api.openai.com" else "local"
        named = next((end for end in _ENDPOINTS.values() if url.endswith(end)), "")
        chat = named == "/chat/completions" if named else chat or where == "openai"
        model = f"{where}-{'chat-' if chat else ''}completions"
    end = _ENDPOINTS.get(model, "")
    if not url.endswith(end):
        url += end if parts.path.strip("/") else f"/v1{end}"
    name = parts.netloc.rpartition("@")[2] + parts.path.rstrip("/").removesuffix(end)
    return name.removesuffix("/v1"), model, {"base_url": url}


def _resolve_spec(spec: str, cwd: Path) -> tuple[str, str]:
    if not spec.strip():
        raise UsageError("the name of a model is empty")
    path = resolve_path(spec, cwd)
    if os.path.exists(path):
        return path.name or spec, str(path)
    if is_written_as_path(spec):
        raise UsageError(f"no model folder at {path}")
    if not _HUB_ID.fullmatch(spec):
        raise UsageError(
            f"'{spec}' is neither a model folder (nothing at {path}) nor a hub id",
            hint=_ADDRESS_HINT if re.fullmatch(r"[\w.-]+:\d+(/\S*)?", spec) else "",
        )
    return spec, spec


def parse_model_args(text: str, *, where: str = "model arguments") -> dict[str, Value]:
    """Return model_args from lm-eval's ``a=1,b=true`` or a JSON object, with typed values.

    ``where`` is the option that errors name. true, false, none, whole numbers and numbers are
    recognised; quotes keep text as text. A value that holds a comma needs the JSON form.

    Raises:
        UsageError: for an argument without "=", without a name or value, or given twice, and for
            JSON that is not an object of finite values.
    """
    stripped = text.strip()
    return _from_json(stripped, where) if stripped.startswith("{") else _from_pairs(stripped, where)


def _unique(pairs: list[tuple[str, Value]], where: str) -> dict[str, Value]:
    values: dict[str, Value] = {}
    for name, value in pairs:
        if name in values:
            raise UsageError(f"{where}: '{name}' is given twice")
        values[name] = value
    return values


def _from_pairs(text: str, where: str) -> dict[str, Value]:
    pairs: list[tuple[str, Value]] = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, equals, value = (side.strip() for side in part.partition("="))
        if not (name and equals and value):
            raise UsageError(f"{where}: '{part}' is not NAME=VALUE", hint=_HINT)
        pairs.append((name, _typed(value, where)))
    return _unique(pairs, where)


def _typed(text: str, where: str) -> Value:
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if _INT.fullmatch(text) and len(text) < 100:
        return int(text)
    return _finite(text, where) if _FLOAT.fullmatch(text) else text


def _finite(text: str, where: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise UsageError(f"{where}: {text} is not a finite number")
    return number


def _from_json(text: str, where: str) -> dict[str, Value]:
    def number(digits: str) -> float:
        return _finite(digits, where)

    def unique(pairs: list[tuple[str, Value]]) -> dict[str, Value]:
        return _unique(pairs, where)

    try:
        value: dict[str, Value] = json.loads(
            text, object_pairs_hook=unique, parse_float=number, parse_constant=number
        )
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where}: not JSON: {error}", hint=_HINT) from error
    return value
