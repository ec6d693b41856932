"""Options as words of a command line: what is typed to ask for what Python was asked for."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from evalguard.config.declared_options import DeclaredOption, declared_options
from evalguard.config.options import CompareOptions
from evalguard.core.redaction import redacted_command
from evalguard.core.settings import Value

_CONSTANTS = ("True", "False", "None")  # read as JSON's true, false and null by --set


def option_words(options: CompareOptions, names: Collection[str]) -> list[str]:
    """Return the words that ask ``evalguard compare`` for these options.

    Args:
        names: fields that count; those that stand at their default need no words.
    """
    return [
        word
        for name, declared in declared_options(type(options)).items()
        if name in names and (value := getattr(options, name)) != declared.default
        for word in _option_words(declared, value)
    ]


def typed_comparison(base: str, candidate: str, options: CompareOptions) -> str:
    """Return a command that asks for a comparison; "" where none can be typed.

    What does not change its numbers is left to whoever types it: it shows once more what was asked
    for from Python, or by a night.
    """
    asked = {
        name: declared
        for name, declared in declared_options(type(options)).items()
        if declared.option.repeated and getattr(options, name) != declared.default
    }
    if not all(declared.option.help for declared in asked.values()):
        return ""  # a key of the guard file
    if isinstance(options.apply_chat_template, str):
        return ""  # a template by its name cannot be typed
    words = option_words(options, asked)
    return redacted_command(["evalguard", "compare", "--base", base, "--cand", candidate, *words])


def typed_text(value: Value) -> str:
    """A value as ``--set NAME=VALUE`` reads it back, type and all."""
    plain = isinstance(value, str) and value not in _CONSTANTS and not _is_json(value)
    return str(value) if plain else json.dumps(value)


def _option_words(declared: DeclaredOption, value: Any) -> Iterator[str]:
    option, kind = declared.flag, declared.option.kind
    if value is False:
        yield from filter(None, [declared.flag_when_off])
    elif value is True:
        yield option
    elif kind in ("settings", "gate_metrics"):
        for name, text in value.items():
            alone = text is None and kind == "gate_metrics"
            yield from (option, name if alone else f"{name}={typed_text(text)}")
    elif kind == "names":
        yield from (option, ",".join(value))
    elif isinstance(value, (tuple, frozenset)):
        for item in sorted(value) if isinstance(value, frozenset) else value:
            yield from (option, str(item))
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
