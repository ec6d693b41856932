"""A comparison as a history keeps it, put there as soon as its verdict is known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from evalguard.core.comparison import Comparison
from evalguard.core.document_scores import DocumentScores
from evalguard.core.gate import GateResult
from evalguard.core.history_night import MetricKey, NightMetric, NightRun
from evalguard.core.pairing import pair
from evalguard.core.reports.compare_report import CompareReport
from evalguard.core.scores import ScoreTable, Tables
from evalguard.core.settings import digest_of
from evalguard.errors import EvalguardError, MisalignedRunsError, error_text
from evalguard.run.scoring.scored_side import ScoredSide
from evalguard.store.history.history_file import HistoryFile, StoredMetric


def prepare_history(path: Path | None) -> None:
    """Make sure that a run can be kept, before anything long runs; make the file if it is missing.

    Raises:
        UsageError, StoreError: it cannot.
    """
    if path is not None:
        with HistoryFile(path, create=True) as history:
            history.check_writable()


def store_in_history(
    report: CompareReport,
    scored: tuple[ScoredSide, ScoredSide],
    allow: frozenset[str],
    path: Path | None,
) -> CompareReport:
    """Keep a comparison; where that fails, the numbers are reported with the reason.

    Args:
        allow: differences between the sides that were allowed when they were paired.
        path: of the history; None: it is not kept.
    """
    if path is None:
        return report
    metrics = build_stored_metrics(report, (scored[0].tables, scored[1].tables), allow)
    try:
        with HistoryFile(path, create=True) as history:
            history.add(build_night_run(report), metrics, report.environment)
    except EvalguardError as error:
        return report.with_unstored(f"this run is not in the history {path}: {error_text(error)}")
    return report


def build_night_run(report: CompareReport) -> NightRun:
    """What a history keeps of a report beside its metrics."""
    return NightRun(
        created=report.created,
        base=report.base.name,
        base_digest=report.base.digest,
        candidate=report.candidate.name,
        candidate_digest=report.candidate.digest,
        exit_code=report.exit_code,
        passed=report.gate.passed,
        state=report.gate.state,
        margin=report.gate.margin,
        fail_on=report.gate.fail_on,
        version=report.version,
        environment=digest_of(dict(report.environment)),
        folder=report.run_folder or "",
    )


def build_night_metric(comparison: Comparison, gate: GateResult) -> NightMetric:
    """What a history keeps of a comparison."""
    key = comparison.key
    waiver = next((one.waiver for one in gate.accepted if one.key == key), None)
    low, high = comparison.sigma_interval or (None, None)
    lost, won = comparison.flips or (None, None)
    return NightMetric(
        task=comparison.task,
        filter=comparison.filter,
        metric=comparison.metric,
        higher_is_better=comparison.higher_is_better,
        n=comparison.n,
        n_used=comparison.n_used,
        base=comparison.base,
        base_stderr=comparison.base_stderr,
        candidate=comparison.candidate,
        candidate_stderr=comparison.candidate_stderr,
        sigma=comparison.sigma,
        sigma_low=low,
        sigma_high=high,
        paired_stderr=comparison.paired_stderr,
        p_value=comparison.p_value,
        method=comparison.method,
        outcome=comparison.outcome,
        significant=comparison.significant,
        certain=comparison.certain,
        bit_identical=comparison.bit_identical,
        gated=key in gate.gated,
        lost=lost,
        won=won,
        accepted="" if waiver is None else f"until {waiver.until}: {waiver.reason}",
        margin=comparison.margin,
        margin_text=comparison.margin_text,
    )


def build_stored_metrics(
    report: CompareReport, tables: tuple[Tables, Tables], allow: frozenset[str]
) -> list[StoredMetric]:
    """The metrics of a report with their documents, where both sides have them."""
    base, candidate = ({table.key: table for table in side} for side in tables)
    return list(_stored_metrics(report, base, candidate, allow))


def _stored_metrics(
    report: CompareReport,
    base: Mapping[MetricKey, ScoreTable],
    candidate: Mapping[MetricKey, ScoreTable],
    allow: frozenset[str],
) -> Iterator[StoredMetric]:
    for comparison in report.comparisons:
        key = comparison.key
        documents = None
        if comparison.outcome != "failed" and key in base and key in candidate:
            documents = _document_scores(base[key], candidate[key], allow)
        yield StoredMetric(metric=build_night_metric(comparison, report.gate), documents=documents)


def _document_scores(
    base: ScoreTable, candidate: ScoreTable, allow: frozenset[str]
) -> DocumentScores | None:
    try:
        return DocumentScores.of(pair(base, candidate, allow=allow))
    except MisalignedRunsError:  # the comparison rests on less than these documents, if on any
        return None
