"""Metrics that regressed and that a waiver lets through."""

from __future__ import annotations

from typing import Any

from evalguard.gate_result import GateResult
from evalguard.report.plain_text import printable
from evalguard.waiver import Accepted, Waiver


def accepted_document(one: Accepted) -> dict[str, Any]:
    """One of them in the JSON document."""
    task, filter_name, metric = one.key
    return {
        "task": task,
        "filter": filter_name,
        "metric": metric,
        "up_to": one.waiver.up_to,
        "until": one.waiver.until,
        "reason": one.waiver.reason,
        "where": one.waiver.where,
    }


def accepted_lines(gate: GateResult) -> list[str]:
    """A line for each, for a person."""
    return [
        f"accepted: {printable(one.key[0])} {printable(one.key[2])}, {_terms(one.waiver)}"
        for one in gate.accepted
    ]


def accepted_clause(gate: GateResult, key: tuple[str, str, str]) -> str:
    """What a sentence about a metric adds; "" where it is not accepted."""
    waiver = next((one.waiver for one in gate.accepted if one.key == key), None)
    return "" if waiver is None else f"; that is accepted {_terms(waiver)}"


def _terms(waiver: Waiver) -> str:
    until = printable(waiver.until)
    return f"up to {waiver.up_to:g} sigma until {until}: {printable(waiver.reason)}"
