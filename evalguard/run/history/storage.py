"""Changes a history: a finished comparison or run folder is added, old runs are removed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

from evalguard.core.comparison import Comparison
from evalguard.core.document_scores import DocumentScores
from evalguard.core.gate import GateResult
from evalguard.core.history import MetricKey, NightMetric, NightRun, prunable
from evalguard.core.pairing import ALLOWED, pair
from evalguard.core.reports.compare_report import CompareReport
from evalguard.core.reports.history_report import HistoryAddition, HistoryPruning
from evalguard.core.scores import ScoreTable
from evalguard.core.settings import digest_of
from evalguard.errors import EvalguardError, MisalignedRunsError, UsageError
from evalguard.run.base import read_score_tables
from evalguard.run.scoring.scoring import ScoredSide
from evalguard.run.stored_run import read_stored_run
from evalguard.store.history.database import remove_runs
from evalguard.store.history.history_file import HistoryFile, StoredMetric

ScoreTables = Sequence[ScoreTable]


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
        hint = f" ({error.hint})" if error.hint else ""
        return report.with_unstored(f"this run is not in the history {path}: {error}{hint}")
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
    report: CompareReport, tables: tuple[ScoreTables, ScoreTables], allow: frozenset[str]
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


# Changing a history: a finished run is put into it, old nights are taken out.


class AlreadyInHistoryError(UsageError):
    """The history has this run."""


def add_run(file: Path, run: Path) -> HistoryAddition:
    """Put a finished run into a history, as if it had been made with ``--history``.

    Args:
        file: of the history; made where there is none.
        run: run folder.

    Raises:
        AlreadyKept: the history has the run.
        UsageError: this is not a run folder, or its samples are of an earlier evalguard.
        StoreError: something is damaged, or the history cannot be written.
    """
    stored = read_stored_run(run)
    report = stored.report
    tables = [
        tuple(table for of in read_score_tables(stored, side) for table in of.tables)
        for side in ("base", "candidate")
    ]
    # They were paired when they were compared: what differed then was declared.
    metrics = build_stored_metrics(report, (tables[0], tables[1]), ALLOWED)
    night = build_night_run(report)
    with HistoryFile(file, create=True) as history:
        for one in history.runs(night.pair):
            if replace(one, number=0, folder="") == replace(night, folder=""):
                raise AlreadyInHistoryError(
                    f"the history {file} has this run already: it is run {one.number}"
                )
        number = history.add(night, metrics, report.environment)
    return HistoryAddition(
        file=str(file),
        run=replace(night, number=number),
        metrics=len(metrics),
        with_documents=sum(one.documents is not None for one in metrics),
        notes=stored.notes,
    )


def prune_runs(
    file: Path, *, days: float | None = None, nights: int | None = None, dry_run: bool = False
) -> HistoryPruning:
    """Take old runs out of a history.

    Args:
        days: runs of so many days are kept.
        nights: so many runs of every pair are kept. What either rule keeps stays.
        dry_run: only say which would be removed.

    Raises:
        UsageError: neither rule is given, there is no history, or it is damaged.
        StoreError: it cannot be written.
    """
    if days is None and nights is None:
        raise UsageError(
            "nothing says which nights are kept",
            hint="--keep-days N, --keep-nights N, or both: what either rule keeps stays",
        )
    before = file.stat().st_size if file.exists() else 0
    since = "" if days is None else _days_ago(days)
    with HistoryFile(file) as history:
        runs = history.runs()
        problems = tuple(history.problems)
    removed = prunable(runs, since=since, nights=nights)
    if removed and not dry_run:
        remove_runs(file, [run.number for run in removed])
    return HistoryPruning(
        file=str(file),
        removed=removed,
        kept=len(runs) - len(removed),
        size_before=before,
        size=file.stat().st_size,
        dry_run=dry_run,
        problems=problems,
    )


def _days_ago(days: float) -> str:
    try:
        since = datetime.now(timezone.utc) - timedelta(days=days)
    except OverflowError:
        return "0"  # before every time
    return since.isoformat(timespec="seconds")
