"""Finished runs put into a history, taken out of it, and read back as the base of a comparison."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from evalguard.answers.figure_tables import Answered, answers_by_document, with_paired_figures
from evalguard.comparison.stored_run import StoredRun, read_stored_run
from evalguard.comparison.stored_sides import (
    SideName,
    mark_as_stored,
    read_score_tables,
    read_side_rows,
)
from evalguard.core.compare_report import CompareReport, RunIdentity
from evalguard.core.comparison import Comparison
from evalguard.core.document_statistics import check_loglikelihoods
from evalguard.core.gate import GateResult
from evalguard.core.pairing import ALLOWED, pair
from evalguard.core.scores import (
    LOGLIKELIHOODS,
    NotCompared,
    ScoreTable,
    Tables,
    restore_infinities,
)
from evalguard.core.settings import Value, digest_of
from evalguard.engine.scored_side import ScoredSide
from evalguard.engine.sources import BaselineScores
from evalguard.engine.task_scores import describe_reading
from evalguard.errors import EvalguardError, MisalignedRunsError, UsageError, error_text, nearest
from evalguard.nights.document_scores import DocumentScores
from evalguard.nights.history.history_file import HistoryFile, StoredMetric
from evalguard.nights.history_report import (
    HistoryAddition,
    HistoryPruning,
    MetricKey,
    NightMetric,
    NightRun,
    prunable,
)

# A document's value is its log-likelihood, in nats.
_NO_DOCUMENTS = "the history keeps no scores of single documents for it"


def read_base_of_history(path: Path, name: str, candidate: str) -> BaselineScores:
    """Read what a history kept of a base, from the latest run that has it.

    Args:
        name: of the base; "": the one that ``candidate`` was last compared with, else the only one.

    Raises:
        UsageError: there is no such run, several bases, or a run that was kept without hashes.
        EvaluationError: log-likelihoods that it kept say nothing about the model.
        StoreError: the history cannot be read.
    """
    with HistoryFile(path) as history:
        run = _latest_run(path, history.runs(), name, candidate)
        tables: list[ScoreTable] = []
        left_out: list[NotCompared] = []
        for metric in history.metrics(run.number):
            documents = history.documents([run.number], metric.key, hashes=True).get(run.number)
            if documents is None:
                left_out.append(_left_out_metric(metric.key))
            else:
                tables.append(_history_table(path, run, metric.key, documents))
        environment = history.environment(run.environment).get("base")
        history.note_damage()
        damaged = tuple(text for text, of in history.problems.items() if of == run.number)
    environment = cast("dict[str, Value]", environment or {})
    identity = RunIdentity(name=run.base, digest=run.base_digest)
    return BaselineScores(
        path=path,
        created=run.created,
        identity=mark_as_stored(identity, run.created),
        tables=tuple(replace(table, reading=describe_reading(environment)) for table in tables),
        not_compared=tuple(left_out),
        notes=(
            "a history keeps no answers: in how many documents they are the same is not known",
            *(f"the history is damaged, and left out: {problem}" for problem in damaged),
        ),
        environment=environment,
    )


def _left_out_metric(key: MetricKey) -> NotCompared:
    return NotCompared(task=key[0], filter=key[1], metric=key[2], reason=_NO_DOCUMENTS)


def _latest_run(path: Path, runs: Sequence[NightRun], name: str, candidate: str) -> NightRun:
    """The latest run whose base is meant."""
    if not runs:
        raise UsageError(f"the history {path} has no runs yet")
    bases = dict.fromkeys(run.base for run in runs)
    if not name:
        beside = dict.fromkeys(run.base for run in runs if run.candidate == candidate) or bases
        if len(beside) > 1:
            raise UsageError(
                f"the history {path} has several bases: {', '.join(beside)}",
                hint=f"choose one: --base {path}:{next(iter(beside))}",
            )
        name = next(iter(beside))
    if name not in bases:
        raise UsageError(
            f"the history {path} has no base '{name}'{nearest(name, bases)}",
            hint=f"it has: {', '.join(bases)}",
        )
    return [run for run in runs if run.base == name][-1]


def _history_table(
    path: Path, run: NightRun, key: MetricKey, documents: DocumentScores
) -> ScoreTable:
    hashes = documents.hashes
    if hashes is None:
        raise UsageError(
            f"run {run.number} of the history {path} was kept by an earlier evalguard, without the "
            "hashes that prove which documents were asked",
            hint=f"give its run folder ({run.folder or 'none was written'}), or compare once more",
        )
    if documents.aggregation in LOGLIKELIHOODS:
        ids = [int(doc_id) for doc_id in documents.doc_ids]
        # of a night that an evalguard kept which did not look
        check_loglikelihoods(
            key[0], {doc: [float(v)] for doc, v in zip(ids, documents.base, strict=True)}
        )
    return ScoreTable(
        task=key[0],
        filter=key[1],
        metric=key[2],
        aggregation=documents.aggregation,
        higher_is_better=documents.higher_is_better,
        doc_ids=documents.doc_ids,
        values=_base_values(documents),
        weights=documents.weights,
        doc_hashes=hashes.doc_hashes,
        prompt_hashes=hashes.prompt_hashes,
        target_hashes=hashes.target_hashes,
        asked_hashes=hashes.asked_hashes,
        token_hashes=hashes.token_hashes,
        n_total=hashes.n_total,
        source=f"stored run {run.number} of {run.base}",
        run=dict(hashes.run),
        provenance=(f"scores that were stored on {run.created}",),
    )


def _base_values(documents: DocumentScores) -> NDArray[np.float64]:
    if documents.aggregation not in LOGLIKELIHOODS:
        return documents.base
    return restore_infinities(documents.base, [None] * len(documents.base))


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
        accepted=gate.accepted_text(key),
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


_SIDES: tuple[SideName, ...] = ("base", "candidate")


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
    tables = _with_paired_figures(
        stored,
        [
            tuple(table for of in read_score_tables(stored, side) for table in of.tables)
            for side in _SIDES
        ],
    )
    # They were paired when they were compared: what differed then was declared.
    metrics = build_stored_metrics(report, tables, ALLOWED)
    night = build_night_run(report)
    with HistoryFile(file, create=True) as history:
        for earlier in history.runs(night.pair):
            if replace(earlier, number=0, folder="") == replace(night, folder=""):
                raise AlreadyInHistoryError(
                    f"the history {file} has this run already: it is run {earlier.number}"
                )
        number = history.add(night, metrics, report.environment)
    return HistoryAddition(
        file=str(file),
        run=replace(night, number=number),
        metrics=len(metrics),
        with_documents=sum(metric.documents is not None for metric in metrics),
        notes=stored.notes,
    )


def _with_paired_figures(
    stored: StoredRun, tables: Sequence[tuple[ScoreTable, ...]]
) -> tuple[tuple[ScoreTable, ...], tuple[ScoreTable, ...]]:
    """Both sides' tables with the figures that are of both models' answers."""

    def answers(task: str) -> tuple[Answered, Answered]:
        base, candidate = (read_side_rows(stored.samples(task), side) for side in _SIDES)
        return answers_by_document(task, base), answers_by_document(task, candidate)

    base, candidate = tables
    return with_paired_figures(base, candidate, answers)


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
            history.remove([run.number for run in removed])
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
