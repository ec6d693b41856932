"""Flags on the command line."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from evalguard.core.settings import Value


def put_flags(command: Sequence[str], flags: Mapping[str, Value]) -> list[str]:
    """Return a command with flags in place of those that it has under these names, else behind it.

    ``true`` puts the flag alone, ``false`` and ``null`` leave it out, a list becomes several words,
    a mapping JSON. What is replaced is ``--FLAG=VALUE``, or ``--FLAG`` with the word behind it that
    does not begin with a dash: no word for ``true`` and ``false``, which are of switches, and all
    of them for a list. Underscores and dashes in names are one.

    Args:
        flags: name -> value; a name without dashes is a long one.
    """
    words = list(command)
    for name, value in flags.items():
        flag = name if name.startswith("-") else f"--{name}"
        place = _find(words, flag)
        found = [] if value is None or value is False else [flag, *_as_words(value)]
        if place is None:
            words += found
            continue
        most = 0 if isinstance(value, bool) else len(words) if isinstance(value, list) else 1
        end = _end_of(words, place, most)
        own, joined, _ = words[place].partition("=")  # an equal command is an equal server
        if found:
            found = [f"{own}={found[1]}"] if joined and len(found) == 2 else [own, *found[1:]]
        words[place:end] = found
    return words


def _find(words: Sequence[str], flag: str) -> int | None:
    def same(word: str) -> bool:
        return word.partition("=")[0].replace("_", "-") == flag.replace("_", "-")

    return next((place for place, word in enumerate(words) if place and same(word)), None)


def _end_of(words: Sequence[str], place: int, most: int) -> int:
    """Where a flag ends that has at most so many words behind it."""
    end = place + 1
    last = end if "=" in words[place] else min(end + most, len(words))
    while end < last and not re.match(r"-[^\d.]", words[end]):
        end += 1
    return end


def _as_words(value: Value) -> list[str]:
    if value is True:
        return []
    if isinstance(value, list):
        return [str(one) for one in value]
    return [json.dumps(value)] if isinstance(value, dict) else [str(value)]
