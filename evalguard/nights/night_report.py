"""NightReport: what a night of comparisons came to, as plain data for the reports."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from evalguard.core.amounts import finite_or_none
from evalguard.core.compare_report import CompareReport
from evalguard.core.comparison import Comparison, Outcome
from evalguard.core.findings import DOUBTS, Finding
from evalguard.core.gate_state import GateState, Key
from evalguard.core.redaction import redacted_text
from evalguard.core.verdict import DriftUnit, choose_drift_unit, scale_to_unit
from evalguard.errors import EXIT_FAILED, EvalguardError

SCHEMA = "evalguard.nightly/1"
GRAVEST_FIRST: tuple[GateState, ...] = ("regressed", "failed", "undecided", "passed")
ALPHA, LOOKS = 0.05, 365
"""Change points: the chance that a pair has any false one in so many nights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NightlyMetric:
    """A gated metric of a pair.

    Attributes:
        sigma, low, high: drift with its interval; None where there is no number.
        unit: what its drift has a size in: "sigma", or of a base that does not scatter "pp", "%".
        drift: in unit, where that is not sigma.
        drift_low: lower end of its interval, in unit.
        drift_high: upper end of it.
        state: what it brought about at the gate.
        accepted: until when and why a waiver lets it through; "" where none does.
    """

    task: str
    filter: str
    metric: str
    sigma: float | None
    low: float | None
    high: float | None
    n: int
    outcome: Outcome
    state: GateState
    accepted: str = ""
    unit: DriftUnit = "sigma"
    drift: float | None = None
    drift_low: float | None = None
    drift_high: float | None = None

    @property
    def key(self) -> Key:
        """(task, filter, metric)."""
        return self.task, self.filter, self.metric


@dataclass(frozen=True, slots=True, kw_only=True)
class PairNight:
    """What one pair came to.

    Attributes:
        state: of its gate; "failed" also where it gave no report at all.
        exit_code: that of its comparison; 3 where it gave no report.
        reason: the gate's, or what went wrong; ``hint`` then says what to do.
        margin: of the gate; 0 without a report.
        created: when it had its verdict; "" without one.
        metrics: those that the gate judged.
        culprits: settings that its bisection names; ``bisection``: what came of it, "" for none.
        waivers: what is to be said of its waivers: expired, ends soon, exceeded, not needed.
        expired: those of them that expired.
        findings: what every reader of it must see; what is to be said of waivers is not repeated.
        notes: of its report.
        problems: what of it could not be written.
        not_kept: why its run is not in the history; "" where it is, or there is none.
        base_digest: of everything that can change the base's scores; "" without a report.
        run_folder: None where none was written.
        hint: what to do where it has no verdict.
    """

    base: str
    candidate: str
    state: GateState
    exit_code: int
    reason: str
    hint: str = ""
    margin: float = 0.0
    created: str = ""
    metrics: tuple[NightlyMetric, ...] = ()
    culprits: tuple[str, ...] = ()
    bisection: str = ""
    waivers: tuple[str, ...] = ()
    expired: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    not_kept: str = ""
    base_digest: str = ""
    run_folder: str | None = None

    @property
    def pair(self) -> tuple[str, str]:
        """Names of base and candidate."""
        return self.base, self.candidate

    @property
    def worst(self) -> NightlyMetric | None:
        """The metric that says most: of the gravest state, and of these the largest drift."""
        return max(self.metrics, key=gravity, default=None)

    @property
    def doubts(self) -> tuple[str, ...]:
        """Why that it passed may say little; () of one that did not pass."""
        passed = self.state == "passed"
        return tuple(
            finding.sentence for finding in self.findings if passed and finding.kind in DOUBTS
        )


def gravity(metric: NightlyMetric) -> tuple[int, float]:
    """Sorts metrics by how much they say, that which says most last."""
    size = -math.inf if metric.sigma is None else metric.sigma
    return -GRAVEST_FIRST.index(metric.state), size


@dataclass(frozen=True, slots=True, kw_only=True)
class NightStep:
    """A recent change point of a gated metric; values in ``unit``, errors standard errors.

    Attributes:
        before: level before the step, ``after`` it, and the standard error ``stderr`` of the
            difference.
        created: night from which on the level is another one.
        earliest: first night of the range where it may lie (95%).
        latest: last night of that range.
        after: level after the step.
        stderr: standard error of their difference.
        changed: what else changed there.
        unit: "sigma", or of a base that does not scatter "pp" or "%".
    """

    key: Key
    created: str
    earliest: str
    latest: str
    before: float
    after: float
    stderr: float
    changed: tuple[str, ...] = ()
    unit: DriftUnit = "sigma"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenTonight:
    """Documents of a gated metric that are broken tonight, by what they were before.

    Attributes:
        total: broken tonight; ``repaired``: sound tonight and broken last night.
        new: never broken before.
        again: sound the night before and broken on an earlier one.
        alike: time of the night that shares most of what broke; ``shared``: how many.
        by_chance: how many that would be if every document broke as easily as any other.
    """

    key: Key
    total: int
    new: int
    again: int
    repaired: int
    alike: str = ""
    shared: int = 0
    by_chance: float = 0.0

    @property
    def notable(self) -> bool:
        """Whether an old defect may be back: three documents or more, and twice what chance does.

        Borderline documents break and recover by jitter alone.
        """
        return self.again >= 3 and self.shared > 2.0 * self.by_chance


@dataclass(frozen=True, slots=True, kw_only=True)
class PairChanges:
    """What is other than last night, for one pair.

    Attributes:
        was: its state last night; None where it was not compared then.
        regressed: metrics that fail the gate tonight and did not last night; ``still``: that
            did; ``recovered``: that failed last night and pass tonight.
        failed: it, or a gated metric, gave no number tonight and gave one last night.
        steps: change points that were found within the last week.
        broken: documents, where some broke that were sound last night.
        problem: why the history could not be asked, or what of it is damaged; "" for neither.
    """

    base: str
    candidate: str
    was: GateState | None = None
    regressed: tuple[Key, ...] = ()
    still: tuple[Key, ...] = ()
    recovered: tuple[Key, ...] = ()
    failed: bool = False
    steps: tuple[NightStep, ...] = ()
    broken: tuple[BrokenTonight, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GonePair:
    """A pair of last night that is none of tonight's, and its state then.

    Attributes:
        was: its state last night.
    """

    base: str
    candidate: str
    was: GateState


@dataclass(frozen=True, slots=True, kw_only=True)
class NightReport:
    """A night.

    Attributes:
        name: of its folder, its UTC time; also the group of its runs at a tracker.
        created, finished: UTC time as ISO 8601 text.
        guard: guard files.
        history: the history file; "" for none.
        previous: when the night before was; "" for the first one.
        resumed: how often it was gone on with after it had been stopped.
        pairs: in the guard files' order; ``changes`` beside them.
        gone: pairs of last night that are not compared any more.
        other_bases: names of bases that are not what they were last night.
        exit_code: what the command ends with.
        alpha: chance that a pair has any false change point in ``looks`` nights.
        folder: where all of it lies.
        changes: what is other than last night, in the order of the pairs.
        looks: nights that ``alpha`` is about.
    """

    name: str
    created: str
    finished: str
    guard: str
    folder: str
    history: str
    previous: str
    resumed: int
    pairs: tuple[PairNight, ...]
    changes: tuple[PairChanges, ...]
    exit_code: int
    gone: tuple[GonePair, ...] = ()
    other_bases: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    command: str = ""
    version: str = ""
    alpha: float = ALPHA
    looks: int = LOOKS

    @property
    def counts(self) -> Mapping[GateState, int]:
        """How many pairs came to each state."""
        return {state: self.count(state) for state in get_args(GateState)}

    def count(self, state: GateState) -> int:
        """How many pairs came to a state."""
        return sum(pair.state == state for pair in self.pairs)


def build_failed_pair(base: str, candidate: str, error: Exception) -> PairNight:
    """A pair that gave no report."""
    known = isinstance(error, EvalguardError)
    message = str(error) if known else f"{type(error).__name__}: {error}"
    return PairNight(
        base=base,
        candidate=candidate,
        state="failed",
        exit_code=EXIT_FAILED,
        reason=redacted_text(message),
        hint=redacted_text(error.hint) if isinstance(error, EvalguardError) else "",
    )


def build_pair_night(
    report: CompareReport, names: tuple[str, str], *, problems: tuple[str, ...] = ()
) -> PairNight:
    """What a night keeps of a report.

    Args:
        names: of base and candidate in the guard file.
        problems: what of it could not be written.
    """
    gate = report.gate
    waivers = [finding for finding in report.findings if finding.kind == "waiver"]
    return PairNight(
        base=names[0],
        candidate=names[1],
        state=gate.state,
        exit_code=report.exit_code,
        reason=gate.reason,
        margin=gate.margin,
        created=report.created,
        metrics=tuple(_gated_metrics(report)),
        culprits=bisected_culprits(report),
        bisection=bisection_summary(report),
        waivers=tuple(waiver.text for waiver in waivers),
        expired=tuple(waiver.text for waiver in waivers if waiver.values["state"] == "expired"),
        findings=tuple(finding for finding in report.findings if finding.kind != "waiver"),
        notes=report.notes,
        problems=problems,
        base_digest=report.base.digest,
        run_folder=report.run_folder,
    )


def _gated_metrics(report: CompareReport) -> Iterator[NightlyMetric]:
    """The gated metrics, in the report's order."""
    for comparison in report.comparisons:
        key = comparison.key
        if key not in report.gate.gated:
            continue
        low, high = comparison.sigma_interval or (None, None)
        yield NightlyMetric(
            task=comparison.task,
            filter=comparison.filter,
            metric=comparison.metric,
            sigma=comparison.sigma,
            low=low,
            high=high,
            n=comparison.n_used,
            outcome=comparison.outcome,
            state=report.gate.state_of(key),
            accepted=report.gate.accepted_text(key),
            **_drift_in_unit(comparison),
        )


def _drift_in_unit(one: Comparison) -> dict[str, Any]:
    """Its drift where sigma has no size."""
    ends = one.sigma_interval or ()
    unit = choose_drift_unit(
        base=one.base,
        base_stderr=one.base_stderr,
        sigmas=(one.sigma, *ends),
        margin_text=one.margin_text,
        is_binary=one.flips is not None,
    )
    if unit == "sigma" or one.drift is None:
        return {}
    scale = scale_to_unit(unit, one.base)
    low, high = (end * scale for end in one.drift_interval or (math.nan, math.nan))
    return {
        "unit": unit,
        "drift": one.drift * scale,
        "drift_low": finite_or_none(low),
        "drift_high": finite_or_none(high),
    }


def bisected_culprits(report: CompareReport) -> tuple[str, ...]:
    """Settings that its bisection names."""
    if report.bisect is None:
        return ()
    return tuple(dict.fromkeys(culprit.setting for culprit in report.bisect.culprits))


def bisection_summary(report: CompareReport) -> str:
    """What came of its bisection; "" for none."""
    return report.bisect_reason if report.bisect is None else report.bisect.status
