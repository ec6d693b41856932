"""Metrics that regressed and that a waiver lets through, in words."""

from __future__ import annotations

from evalguard.core.gate import GateResult
from evalguard.core.waivers import Waiver
from evalguard.report.words.plain_text import printable


def accepted_lines(gate: GateResult) -> list[str]:
    """A line for each, for a person."""
    return [
        f"accepted: {printable(one.key[0])} {printable(one.key[2])}, {_waiver_terms(one.waiver)}"
        for one in gate.accepted
    ]


def accepted_clause(gate: GateResult, key: tuple[str, str, str]) -> str:
    """What a sentence about a metric adds; "" where it is not accepted."""
    waiver = next((one.waiver for one in gate.accepted if one.key == key), None)
    return "" if waiver is None else f"; that is accepted {_waiver_terms(waiver)}"


def _waiver_terms(waiver: Waiver) -> str:
    until = printable(waiver.until)
    return f"up to {waiver.up_to:g} sigma until {until}: {printable(waiver.reason)}"
