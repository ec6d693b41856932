"""Amounts as people write them: sizes such as 20GB, ages such as 30d.

It says that a document is as it was written. It proves no author: whoever changes a document can
compute it anew.

shlex puts a word together character by character, each time anew: a name of a megabyte, which a
stored result may hold, would take hours.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from typing import Any

_WRITTEN = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)")
_PREFIXES = "kMGTP"
_BYTES = {"b": 1}
_BYTES |= {f"{p}b".lower(): 1000 ** (n + 1) for n, p in enumerate(_PREFIXES)}
_BYTES |= {f"{p}ib".lower(): 1024 ** (n + 1) for n, p in enumerate(_PREFIXES)}
_BYTES |= {p.lower(): 1000 ** (n + 1) for n, p in enumerate(_PREFIXES)}
_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def parse_size(text: str) -> int:
    """Return bytes: "20GB" is 20 * 1000**3, "20GiB" 20 * 1024**3, "0" 0.

    Raises:
        ValueError: for anything else, also for another number without a unit: who writes 20 and
            means GB would lose all that is kept.
    """
    if text == "0":
        return 0
    return math.floor(_parsed(text, _BYTES, "a size such as 20GB or 500MB"))


def parse_age(text: str) -> float:
    """Return seconds: of "30d", "12h", "90min", "2w".

    Raises:
        ValueError: for anything else, also for a number without a unit.
    """
    return _parsed(text, _SECONDS, "an age such as 30d, 12h or 2w")


def size_text(size: int) -> str:
    """Return bytes for a person: "1.4 GB"."""
    if size < 1000:
        return f"{size} B"
    for number, prefix in enumerate(_PREFIXES, start=1):
        amount = size / 1000**number
        if amount < 999.5 or prefix == _PREFIXES[-1]:
            return f"{amount:.1f} {prefix}B" if amount < 9.95 else f"{amount:,.0f} {prefix}B"
    raise AssertionError("the last prefix takes every size")


def _parsed(text: str, units: dict[str, int], what: str) -> float:
    found = _WRITTEN.fullmatch(text)
    unit = None if found is None else units.get(found[2].lower())
    if found is None or unit is None:
        raise ValueError(f"'{text}' is not {what}")
    return float(found[1]) * unit


CHECKSUM_KEY = "checksum"
ALGORITHM = "sha256"


def with_checksum(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document with the checksum of all the rest of it, as its last key.

    Args:
        document: plain, finite JSON values.
    """
    rest = {key: value for key, value in document.items() if key != CHECKSUM_KEY}
    return {**rest, CHECKSUM_KEY: {"algorithm": ALGORITHM, "value": checksum(rest)}}


def checksum_fault(document: Mapping[str, Any]) -> str:
    """Say what is wrong with a document's checksum; "" where it is right, or there is none.

    Raises:
        RecursionError: the document is nested too deeply.
    """
    if CHECKSUM_KEY not in document:
        return ""
    told = document[CHECKSUM_KEY]
    algorithm = told.get("algorithm") if isinstance(told, Mapping) else None
    value = told.get("value") if isinstance(told, Mapping) else None
    if not isinstance(algorithm, str) or not isinstance(value, str):
        return "its checksum is none"
    if algorithm != ALGORITHM:
        return f"its checksum is made by {algorithm[:40]!r}, and this evalguard knows {ALGORITHM}"
    found = checksum(document)
    if value != found:
        return f"its checksum is {value[:16]!r}..., and that of what is there is {found[:16]!r}..."
    return ""


def checksum(document: Mapping[str, Any]) -> str:
    """Return the SHA-256, in hexadecimal digits, of a document without its checksum.

    Of its canonical text: keys in the order of their code points, no blanks, everything beyond
    ASCII escaped, a number that is whole as an integer. Indents and the order of keys do not count,
    nor whether a program wrote 1.0 or 1.
    """
    rest = {key: _canonical(value) for key, value in document.items() if key != CHECKSUM_KEY}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def _canonical(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {key: _canonical(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_canonical(item) for item in value]
    return value


_PIECE = re.compile(
    r"""(?P<blank>[ \t\r\n]+)|(?P<plain>[^ \t\r\n'"\\]+)|'(?P<single>[^']*)'"""
    r"""|"(?P<double>(?:[^"\\]|\\.)*)"|\\(?P<escaped>.)|(?P<open>.)""",
    re.DOTALL,
)
_ESCAPED = re.compile(r'\\(["\\])')


def shell_words(command: str) -> list[str]:
    """Return the words of a command, without their quotes.

    >>> shell_words("evalguard compare --base 'my model'")
    ['evalguard', 'compare', '--base', 'my model']

    Raises:
        ValueError: a quote is not closed, or nothing follows a backslash.
    """
    words: list[list[str]] = []
    inside = False
    for piece in _PIECE.finditer(command):
        kind, text = piece.lastgroup, piece[piece.lastgroup or 0]
        if kind == "open":
            raise ValueError(f"nothing closes {text} in the command")
        if kind != "blank":
            if not inside:
                words.append([])
            words[-1].append(_ESCAPED.sub(r"\1", text) if kind == "double" else text)
        inside = kind != "blank"
    return ["".join(pieces) for pieces in words]
