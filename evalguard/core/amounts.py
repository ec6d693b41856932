"""Amounts as people write them: sizes such as 20GB, ages such as 30d. Numbers that JSON holds."""

from __future__ import annotations

import math
import re

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
    match = _WRITTEN.fullmatch(text)
    unit = None if match is None else units.get(match[2].lower())
    if match is None or unit is None:
        raise ValueError(f"'{text}' is not {what}")
    return float(match[1]) * unit


def finite_or_none(value: float | None) -> float | None:
    """A number that JSON, and a tracker, can hold; None for any other."""
    return value if value is not None and math.isfinite(value) else None
