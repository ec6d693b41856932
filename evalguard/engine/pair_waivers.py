"""Waivers of a pair, put into the gate that judges it."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone

from evalguard.config.guard import Guard
from evalguard.config.options import CompareOptions
from evalguard.core.gate import Gate


def with_start_date(options: CompareOptions) -> CompareOptions:
    """The options with the day (UTC) that decides about waivers, however long it all takes."""
    return options if options.today else replace(options, today=_today())


def with_waivers(gate: Gate, guard: Guard | None, base: str, candidate: str, *, today: str) -> Gate:
    """The gate with what the guard file accepts of this pair.

    Args:
        today: the day that counts, YYYY-MM-DD; "": today (UTC).
    """
    pair = guard.pair(base, candidate) if guard is not None else None
    if pair is None or not pair.accept:
        return gate
    return replace(gate, waivers=pair.accept, today=today or _today())


def _today() -> str:
    return datetime.now(timezone.utc).date().isoformat()
