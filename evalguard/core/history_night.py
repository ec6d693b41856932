"""Night: what a history keeps of one metric of one comparison."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from evalguard.core.comparison import Outcome
from evalguard.core.drift_unit import DriftUnit, choose_drift_unit, scale_to_unit
from evalguard.core.gate_state import GateState
from evalguard.core.verdict import Margin

MetricKey = tuple[str, str, str]
"""(task, filter, metric)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NightRun:
    """One comparison of a pair of models.

    Attributes:
        number: under which the history knows it, from 1 on; 0 before it is kept.
        created: UTC time as ISO 8601 text.
        exit_code: what the command ended with.
        passed, state: the gate's answer; margin, fail_on: its rule.
        version: of evalguard; environment: digest of the packages and machines of the run.
        folder: the run folder; "" where none was written.
    """

    number: int = 0
    created: str
    base: str
    base_digest: str
    candidate: str
    candidate_digest: str
    exit_code: int
    passed: bool
    state: GateState
    margin: float
    fail_on: str
    version: str
    environment: str
    folder: str = ""

    @property
    def pair(self) -> tuple[str, str]:
        """Names of base and candidate."""
        return self.base, self.candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class NightMetric:
    """One metric of a comparison: the fields of ``Comparison`` that a history keeps.

    Attributes:
        gated: whether the gate judged it.
        lost, won: documents that only the base, only the candidate had right; None for metrics
            that are not 0/1.
        accepted: why the gate let it through although it regressed; "" where it did not.
        margin: its own, in sigma; None in a night kept without it. ``margin_text`` as it was given.
    """

    task: str
    filter: str
    metric: str
    higher_is_better: bool
    n: int
    n_used: int
    base: float | None
    base_stderr: float | None
    candidate: float | None
    candidate_stderr: float | None
    sigma: float | None
    sigma_low: float | None
    sigma_high: float | None
    paired_stderr: float | None
    p_value: float | None
    method: str
    outcome: Outcome
    significant: bool
    certain: bool
    bit_identical: bool
    gated: bool
    lost: int | None = None
    won: int | None = None
    accepted: str = ""
    margin: float | None = None
    margin_text: str = ""

    @property
    def key(self) -> MetricKey:
        """(task, filter, metric)."""
        return self.task, self.filter, self.metric

    @property
    def stderr(self) -> float | None:
        """Paired standard error of sigma; None where there is no number."""
        if self.paired_stderr is None or not self.base_stderr:
            return None
        found = self.paired_stderr / self.base_stderr
        return found if math.isfinite(found) else None

    @property
    def unit(self) -> DriftUnit:
        """What its drift has a size in."""
        return choose_drift_unit(
            base=self.base,
            base_stderr=self.base_stderr,
            sigmas=(self.sigma, self.sigma_low, self.sigma_high),
            margin_text=self.margin_text,
            is_binary=self.lost is not None,
        )

    @property
    def drift(self) -> float | None:
        """Its drift in ``unit``, positive is worse; None where there is no number."""
        return self.drift_in(self.unit)[0]

    @property
    def drift_stderr(self) -> float | None:
        """Paired standard error of ``drift``; None where there is no number."""
        return self.drift_in(self.unit)[1]

    def drift_in(self, unit: DriftUnit) -> tuple[float | None, float | None]:
        """Its drift in a unit, positive is worse, and the paired standard error."""
        if unit == "sigma":
            return self.sigma, self.stderr
        if self.base is None or self.candidate is None:
            return None, None
        scale = scale_to_unit(unit, self.base)
        worse = self.base - self.candidate if self.higher_is_better else self.candidate - self.base
        error = None if self.paired_stderr is None else self.paired_stderr * scale
        return worse * scale, error

    def interval_in(self, unit: DriftUnit) -> tuple[float | None, float | None]:
        """The ends of its drift's interval in a unit: a history keeps that of sigma alone."""
        return (self.sigma_low, self.sigma_high) if unit == "sigma" else (None, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Night:
    """One metric of one run."""

    run: NightRun
    metric: NightMetric

    @property
    def margin(self) -> float:
        """Tolerated sigma: the metric's own, else the gate's."""
        return self.run.margin if self.metric.margin is None else self.metric.margin

    @property
    def margin_text(self) -> str:
        """The margin as it was given, else in sigma."""
        return self.metric.margin_text or f"{self.margin:g} sigma"

    def margin_in(self, unit: DriftUnit) -> float:
        """The margin in a unit; of one in sigma what it comes to with this night's base."""
        metric = self.metric
        if unit == "sigma":
            return self.margin
        given = Margin.parse(self.margin_text)
        if given.unit == "sigma":
            return self.margin * (metric.base_stderr or 0.0) * scale_to_unit(unit, metric.base)
        of_base = abs(metric.base or 0.0) if given.unit == "relative" else 1.0
        return given.value * of_base * scale_to_unit(unit, metric.base)


def common_unit(nights: Sequence[Night]) -> DriftUnit:
    """One unit for nights of a metric: sigma, unless there is a night where it has no size."""
    return next((one.metric.unit for one in nights if one.metric.unit != "sigma"), "sigma")


def prunable(
    runs: Sequence[NightRun], *, since: str = "", nights: int | None = None
) -> tuple[NightRun, ...]:
    """Return the runs that neither rule keeps, in their order.

    Args:
        runs: in order of time.
        since: runs from this time on are kept; UTC, ISO 8601; "": the rule keeps none.
        nights: the latest runs of every pair that are kept; None: the rule keeps none.
    """
    latest: set[int] = set()
    for pair in dict.fromkeys(run.pair for run in runs):
        of_pair = [run.number for run in runs if run.pair == pair]
        latest.update(of_pair[-nights:] if nights else ())
    return tuple(
        run for run in runs if run.number not in latest and not (since and run.created >= since)
    )
