"""Options as words of a command line: what is typed to ask for what Python was asked for."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields
from typing import Any

from evalguard.core.redaction import redacted_command
from evalguard.core.settings import Value
from evalguard.engine.options import CompareOptions

# Spelt otherwise than the field; each word of "no" is typed where the field is false.
_SPELLED = {"cand_set": "--set", "base_set": "--base-set", "gate_limits": "--gate-metric"}
_NEGATED = {
    "use_cache": "--no-cache",
    "sequential": "--no-sequential",
}
_PAIRS = frozenset(_SPELLED)
_CONSTANTS = ("True", "False", "None")  # read as JSON's true, false and null by --set


def option_words(options: CompareOptions, names: Collection[str]) -> list[str]:
    """Return the words that ask ``evalguard compare`` for these options.

    Args:
        names: fields that count; those that stand at their default need no words.
    """
    default = CompareOptions()
    return [
        word
        for field in fields(CompareOptions)
        if field.name in names
        and (value := getattr(options, field.name)) != getattr(default, field.name)
        for word in _option_words(field.name, value)
    ]


# A comparison that is typed to see one that was asked for from Python, or by a night, again: what
# does not change its numbers is left to whoever types it.
_NOT_REPEATED = frozenset(
    {
        "command", "quiet", "write", "output", "output_format", "output_path", "git_bisect",
        "today", "history", "use_history", "track", "track_documents", "worker", "timeout",
        "memory", "cache_max_size",
    }
)  # fmt: skip
# What nobody can type: a key of the guard file, and a word of Python.
_NOT_TYPED = (
    "system_instruction", "fewshot_as_multiturn", "broken_documents", "token_budget",
    "share_prefixes", "sequential_alpha", "rolling_bos", "reference_top_k",
)  # fmt: skip
_REPEATED = frozenset(
    field.name
    for field in fields(CompareOptions)
    if field.name not in _NOT_REPEATED and not field.name.startswith("bisect")
)


def typed_comparison(base: str, candidate: str, options: CompareOptions) -> str:
    """Return a command that asks for a comparison; "" where none can be typed."""
    default = CompareOptions()
    if any(getattr(options, name) != getattr(default, name) for name in _NOT_TYPED):
        return ""
    if isinstance(options.apply_chat_template, str):
        return ""  # a template by its name cannot be typed
    asked = option_words(options, _REPEATED)
    return redacted_command(["evalguard", "compare", "--base", base, "--cand", candidate, *asked])


def typed_text(value: Value) -> str:
    """A value as ``--set NAME=VALUE`` reads it back, type and all."""
    plain = isinstance(value, str) and value not in _CONSTANTS and not _is_json(value)
    return str(value) if plain else json.dumps(value)


def _option_words(name: str, value: Any) -> Iterator[str]:
    option = _SPELLED.get(name, f"--{name.replace('_', '-')}")
    if value is False:
        yield from filter(None, [_NEGATED.get(name)])
    elif value is True:
        yield option
    elif name in _PAIRS:
        for one, text in value.items():
            alone = text is None and name == "gate_limits"
            yield from (option, one if alone else f"{one}={typed_text(text)}")
    elif name == "tasks":
        yield from (option, ",".join(value))
    elif isinstance(value, (tuple, frozenset)):
        for one in sorted(value) if isinstance(value, frozenset) else value:
            yield from (option, str(one))
    else:
        yield from (option, _word_text(value))


def _word_text(value: Any) -> str:
    if isinstance(value, Mapping):
        return json.dumps(dict(value))
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
