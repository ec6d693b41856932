"""Options as words of a command line: what is typed to ask for what Python was asked for."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields
from typing import Any

from evalguard.pipeline.options import CompareOptions
from evalguard.settings import Value

# Spelt otherwise than the field; each word of "no" is typed where the field is false.
_SPELT = {"cand_set": "--set", "base_set": "--base-set", "gate_limits": "--gate-metric"}
_NO = {
    "use_cache": "--no-cache",
    "use_history": "--no-history",
    "share_prefixes": "--no-share-prefixes",
    "sequential": "--no-sequential",
}
_PAIRS = frozenset(_SPELT)
_KEYWORDS = ("True", "False", "None")  # read as JSON's true, false and null by --set


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
        for word in _words(field.name, value)
    ]


def typed_text(value: Value) -> str:
    """A value as ``--set NAME=VALUE`` reads it back, type and all."""
    plain = isinstance(value, str) and value not in _KEYWORDS and not _is_json(value)
    return str(value) if plain else json.dumps(value)


def _words(name: str, value: Any) -> Iterator[str]:
    option = _SPELT.get(name, f"--{name.replace('_', '-')}")
    if value is False:
        yield from filter(None, [_NO.get(name)])
    elif value is True:
        yield option
    elif name in _PAIRS:
        for one, text in value.items():
            yield from (option, f"{one}={typed_text(text)}")
    elif name == "tasks":
        yield from (option, ",".join(value))
    elif isinstance(value, (tuple, frozenset)):
        for one in sorted(value) if isinstance(value, frozenset) else value:
            yield from (option, str(one))
    else:
        yield from (option, _text(value))


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return json.dumps(dict(value))
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
