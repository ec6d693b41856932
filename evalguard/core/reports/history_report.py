"""What is asked of a history, as plain data for the reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from evalguard.core.drift_unit import DriftUnit
from evalguard.core.history_night import MetricKey, Night, NightMetric, NightRun, common_unit
from evalguard.core.reports.broken_on_nights import BrokenDocuments
from evalguard.core.reports.document_flips import DocumentFlips
from evalguard.stats.series.levels import Scan

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
