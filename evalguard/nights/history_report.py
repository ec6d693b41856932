"""Records of a history: nights, trends and flips, and their JSON document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evalguard.core.amounts import finite_or_none
from evalguard.core.comparison import Outcome
from evalguard.core.gate_state import GateState
from evalguard.core.verdict import DriftUnit, Margin, choose_drift_unit, scale_to_unit
from evalguard.nights.change_points import ChangePoint, Level, Scan
from evalguard.nights.history_flips import BrokenDocuments, DocumentFlips
from evalguard.report.record_documents import key_fields, replace_non_finite, write_record

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
        ratio = self.paired_stderr / self.base_stderr
        return finite_or_none(ratio)

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
    return next((night.metric.unit for night in nights if night.metric.unit != "sigma"), "sigma")


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


SCHEMA = "evalguard.history/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRun:
    """A run with its metrics, in the order of its report."""

    run: NightRun
    metrics: tuple[NightMetric, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryListing:
    """Runs of a history, the oldest first; ``total`` counts those that are not shown, too.

    ``problems`` are rows that were left out because they are damaged.
    """

    file: str
    runs: tuple[HistoryRun, ...]
    total: int
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What is other in a night's run than in the run before it.

    Attributes:
        run: number of the night's run.
        what: "base", "candidate" (another digest), "evalguard", "documents" (their number),
            "margin", or a place in the environment such as "packages.torch".
        before, after: its values; digests are cut to their first 8 digits.
    """

    run: int
    what: str
    before: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """One metric of a pair over nights.

    Attributes:
        nights: the oldest first.
        scan: change points of the drift in ``unit``, over the nights that have a finite one;
            positions in it count those nights.
        used: positions in ``nights`` of the nights that the scan used.
        changes: for each change point, what else changed in the nights where it may lie.
    """

    key: MetricKey
    nights: tuple[Night, ...]
    scan: Scan
    used: tuple[int, ...]
    changes: tuple[tuple[Change, ...], ...]

    @property
    def unit(self) -> DriftUnit:
        """Of its drifts and levels."""
        return common_unit(self.nights)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrendReport:
    """Trends of a pair.

    Attributes:
        alpha: chance of any false change point among all of them, in ``looks`` answers together
            (365: asked every night for a year).
    """

    file: str
    base: str
    candidate: str
    alpha: float
    trends: tuple[Trend, ...]
    looks: int = 1
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricFlips:
    """One metric in two nights of a pair.

    Attributes:
        flips: None, with ``reason``, where the two cannot be compared document by document.
        broken: which documents are broken in the second night, over all nights up to it; None
            likewise.
    """

    key: MetricKey
    flips: DocumentFlips | None
    broken: BrokenDocuments | None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlipReport:
    """Which documents changed between two nights of a pair.

    ``nights`` names the runs (number -> time) that ``broken`` speaks of.
    """

    file: str
    first: NightRun
    second: NightRun
    metrics: tuple[MetricFlips, ...]
    nights: Mapping[int, str]
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryCheck:
    """What reading all of a history showed; ``problems`` is empty where it is whole."""

    file: str
    version: int
    runs: int
    metrics: int
    vectors: int
    size: int
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryExport:
    """Parquet files that were written, with their rows; ``problems``: those that are left out."""

    file: str
    written: Mapping[str, int]
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryPruning:
    """Runs that were taken out of a history; ``size`` of the file in bytes.

    ``dry_run``: they would be, and nothing was changed.
    """

    file: str
    removed: tuple[NightRun, ...]
    kept: int
    size_before: int
    size: int
    dry_run: bool
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryAddition:
    """A finished run that was put into a history, and how many of its metrics keep documents.

    ``notes``: what whoever relies on its numbers should know.
    """

    file: str
    run: NightRun
    metrics: int
    with_documents: int
    notes: tuple[str, ...] = ()


Found = (
    HistoryListing
    | TrendReport
    | FlipReport
    | HistoryCheck
    | HistoryExport
    | HistoryPruning
    | HistoryAddition
)
_IN_UNIT = ("drift_in_unit", "drift_in_unit_stderr")


def history_document(found: Found) -> dict[str, Any]:
    """Return the document; numbers that are infinite are null, like those that do not exist."""
    content = write_record(found) if not isinstance(found, TrendReport) else _trends_document(found)
    if isinstance(found, HistoryCheck):
        content = {"check": {"whole": not found.problems, **content}}
    elif isinstance(found, HistoryPruning):
        content = {"prune": content}
    elif isinstance(found, HistoryAddition):
        content = {"add": content}
    elif isinstance(found, HistoryExport):
        content = {"export": content}
    return {"schema": SCHEMA, **replace_non_finite(content, "", {})}


def _trends_document(report: TrendReport) -> dict[str, Any]:
    return {
        "file": report.file,
        "base": report.base,
        "candidate": report.candidate,
        "alpha": report.alpha,
        "looks": report.looks,
        "trends": [_trend_document(trend) for trend in report.trends],
        "problems": report.problems,
    }


def _trend_document(trend: Trend) -> dict[str, Any]:
    scan, used, key = trend.scan, set(trend.used), key_fields(trend.key)
    nights = [trend.nights[index] for index in trend.used]
    return {
        **key,
        "alpha": scan.alpha,
        "shortest": scan.shortest,
        "smallest_step": scan.smallest_step,
        "seed": scan.seed,
        "correlation": scan.correlation,
        "nights": [
            {"run": night.run.number, "created": night.run.created, "used": index in used}
            | {name: value for name, value in write_record(night.metric).items() if name not in key}
            | dict(zip(_IN_UNIT, night.metric.drift_in(trend.unit), strict=True))
            | {"unit": trend.unit}
            for index, night in enumerate(trend.nights)
        ],
        "unit": trend.unit,
        "levels": [_level_document(level, nights, trend.unit) for level in scan.levels],
        "change_points": [
            {
                **_change_point_document(point, nights),
                "changes": [write_record(change) for change in changes],
            }
            for point, changes in zip(scan.points, trend.changes, strict=True)
        ],
    }


def _change_point_document(point: ChangePoint, nights: list[Night]) -> dict[str, Any]:
    return {
        "run": nights[point.position].run.number,
        "created": nights[point.position].run.created,
        "earliest_run": nights[point.earliest].run.number,
        "latest_run": nights[point.latest].run.number,
        "before": point.before.mean,
        "after": point.after.mean,
        "step": point.step,
        "step_stderr": point.stderr,
        "p_value": point.p_value,
        "level": point.level,
    }


def _level_document(level: Level, nights: list[Night], unit: DriftUnit) -> dict[str, Any]:
    return {
        "first_run": nights[level.start].run.number,
        "last_run": nights[level.stop - 1].run.number,
        "nights": level.stop - level.start,
        "sigma": level.mean if unit == "sigma" else None,
        "mean": level.mean,
        "stderr": level.stderr,
    }
