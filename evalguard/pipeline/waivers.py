"""Waivers of a pair, put into the gate that judges it."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone

from evalguard.config import Guard
from evalguard.gate import Gate


def with_waivers(gate: Gate, guard: Guard | None, base: str, candidate: str) -> Gate:
    """The gate with what the guard file accepts of this pair today (UTC)."""
    pair = guard.pair(base, candidate) if guard is not None else None
    if pair is None or not pair.accept:
        return gate
    today = datetime.now(timezone.utc).date().isoformat()
    return replace(gate, waivers=pair.accept, today=today)
