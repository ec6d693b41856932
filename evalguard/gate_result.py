"""GateResult: the gate's answer, as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from evalguard.gate_reason import GateState, Key
from evalguard.limits import LimitVerdict
from evalguard.verdict import REAL_LEVEL
from evalguard.waiver import Accepted

FailOn = Literal["real", "margin", "significant", "certain", "any-degradation"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult:
    """The gate's answer.

    Attributes:
        passed: whether the gate lets the candidate through. True for state "undecided" where the
            policy only warns; never True for "failed".
        state: "regressed" if any gated metric or limit is; else "failed" if any gave no number, or
            nothing was compared; else "undecided" if any is; else "passed".
        margin: in standard errors of the base; where it was given in another unit, the smallest
            that it comes to over the gated metrics. ``margin_text`` as it was given: "1pp".
        gated: keys (task, filter, metric) of the gated metrics; ``holm_p_values`` are beside them
            in the same order (None for a failed metric).
        regressed, undecided, failed: the keys that brought each about.
        family_false_alarm: upper bound of the chance that an unchanged candidate fails, because
            at least one gated metric crosses the margin: min(1, sum of the metrics' false-alarm
            probabilities). It holds whatever the dependence between metrics, which share
            documents, and for "significant" and "certain", which ask for more. For "real" it is
            at most Holm's level, ``REAL_LEVEL``, too. For "any-degradation" the Holm level,
            (1 - confidence) / 2, is added. None where no gated metric has a number.
        family_false_alarm_independent: the chance that one crosses the margin if the metrics were
            independent, 1 - prod(1 - p_k); not above the bound.
        family_false_alarm_estimate: the chance itself, estimated by flipping the signs of the
            documents in all gated metrics together. Only for "margin", with two gated metrics or
            more that are all sums over documents; else None, and the bound is what is known.
        reason: one sentence.
        limits: what the absolute limits say, one per limit and task.
        accepted: metrics that regressed and that waivers let through; not in ``regressed``.
    """

    passed: bool
    state: GateState
    margin: float
    fail_on: FailOn
    confidence: float
    gated: tuple[Key, ...]
    regressed: tuple[Key, ...]
    undecided: tuple[Key, ...]
    failed: tuple[Key, ...]
    holm_p_values: tuple[float | None, ...]
    family_false_alarm: float | None
    family_false_alarm_independent: float | None
    reason: str
    limits: tuple[LimitVerdict, ...] = ()
    accepted: tuple[Accepted, ...] = ()
    margin_text: str = ""
    family_false_alarm_estimate: float | None = None

    @property
    def rule(self) -> str:
        """The gate's rule, as half a sentence: "fails above 1 sigma if real (...)"."""
        margin = self.margin_text or f"{self.margin:.12g} sigma"
        return {
            "real": f"fails above {margin} if real (paired test, Holm {100 * REAL_LEVEL:g}%)",
            "margin": f"fails above {margin}",
            "significant": f"fails above {margin} if the interval is above 0",
            "certain": f"fails if the whole interval is above {margin}",
            "any-degradation": f"fails on any real degradation, and above {margin}",
        }[self.fail_on]

    def state_of(self, key: Key) -> GateState:
        """What a gated metric brought about; "passed" where a waiver lets it through."""
        if key in self.regressed:
            return "regressed"
        if key in self.failed:
            return "failed"
        return "undecided" if key in self.undecided else "passed"
