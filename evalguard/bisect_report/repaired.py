"""Repaired: the candidate without its culprits, judged; and values that are better still."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from evalguard.bisect_report.guilty_setting import SIGMA
from evalguard.comparison import Outcome
from evalguard.settings import Value

if TYPE_CHECKING:
    from evalguard.gate_reason import GateState
    from evalguard.limits import LimitVerdict


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairedMetric:
    """One metric of the repaired candidate, judged as the candidate's was."""

    task: str
    filter: str
    metric: str
    sigma: float | None
    outcome: Outcome
    gated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Repaired:
    """The candidate with the culprits at reference, compared on all tasks by the same gate.

    Attributes:
        assignment: value of every setting.
        reset: settings that were put back to reference: the culprits, and what cannot be built
            without them.
        metrics, limits: what the gate judged it by.
        passed, state: the gate's answer; None where ``failure`` says why it was not asked.
    """

    assignment: Mapping[str, Value]
    reset: tuple[str, ...]
    passed: bool | None
    state: GateState | None
    metrics: tuple[RepairedMetric, ...] = ()
    limits: tuple[LimitVerdict, ...] = ()
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommended:
    """The assignment nearest to the candidate that passes the gate, measured on all documents.

    ``values`` of the culprits; every other setting keeps its candidate value. ``drift_sigma`` is in
    ``unit``.
    """

    values: Mapping[str, Value]
    drift_sigma: float
    unit: str = SIGMA
