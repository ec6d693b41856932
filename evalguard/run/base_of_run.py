"""The base of a finished comparison, from its run folder."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np

from evalguard.core.reports.compare_report import CompareReport, RunIdentity
from evalguard.core.scores import NotCompared, ScoreTable
from evalguard.core.settings import Value
from evalguard.errors import MisalignedRunsError, UsageError, nearest
from evalguard.run.baseline_scores import BaselineScores
from evalguard.run.scoring.task_scores import describe_reading
from evalguard.run.stored_run import StoredRun, read_stored_run
from evalguard.run.stored_tables import SideName, StoredTables, read_side_rows, read_stored_tables
from evalguard.stats.moments import exact_sum

_COMPARE_AGAIN = "compare the two models once more: that run can be a base"


def read_base_of_run(path: Path, name: str = "") -> BaselineScores:
    """Read what a run folder (or its result.json) kept of its base.

    Args:
        name: of the model that is meant, where it is the run's candidate; "": the base.

    Raises:
        UsageError: this is not a run folder, it has no such model, or it kept no scores of it.
        StoreError: it is damaged.
        MisalignedRunsError: its samples do not give the values of its result.
    """
    run = read_stored_run(path)
    side = _side_of_report(run.report, name, path)
    identity = run.report.base if side == "base" else run.report.candidate
    tables = read_score_tables(run, side)
    if not tables:
        raise UsageError(
            f"{path} keeps no scores of its {side} {identity.name}, which is a {identity.kind}",
            hint="name that run with --base" if identity.kind == "lm-eval run" else _COMPARE_AGAIN,
        )
    _check_values(path, run.report, side, tables)
    environment = cast("dict[str, Value]", run.report.environment.get(side) or {})
    return BaselineScores(
        path=run.folder,
        created=run.report.created,
        identity=mark_as_stored(identity, run.report.created),
        tables=tuple(
            replace(
                _with_stored_caveat(table, run.report.created),
                reading=describe_reading(environment),
            )
            for of in tables
            for table in of.tables
        ),
        not_compared=_uncompared_metrics(run.report, tables),
        fields={of.tables[0].task: of.fields for of in tables if of.tables},
        rows=_sample_rows(run, side, tables),
        notes=run.notes,
        environment=environment,
    )


def _sample_rows(
    run: StoredRun, side: SideName, tables: tuple[StoredTables, ...]
) -> dict[str, tuple[Mapping[str, Value], ...]]:
    tasks = dict.fromkeys(table.task for of in tables for table in of.tables)
    return {task: read_side_rows(run.files[task], side) for task in tasks}


def _uncompared_metrics(
    report: CompareReport, tables: tuple[StoredTables, ...]
) -> tuple[NotCompared, ...]:
    """What has no scores: of these documents, or already when the run was made."""
    here = [left for of in tables for left in of.not_compared]
    known = {(left.task, left.filter, left.metric) for left in here}
    then = [one for one in report.not_compared if (one.task, one.filter, one.metric) not in known]
    return (*here, *then)


def read_score_tables(run: StoredRun, side: SideName) -> tuple[StoredTables, ...]:
    """One side's score tables of every task whose samples are there; () where none are.

    Raises:
        UsageError, StoreError: as ``read_stored_tables``.
    """
    identity = run.report.base if side == "base" else run.report.candidate
    found = (
        read_stored_tables(run.samples(task), task, side, source=f"stored run {identity.name}")
        for task in run.tasks
    )
    return tuple(one for one in found if one is not None)


def mark_as_stored(identity: RunIdentity, created: str) -> RunIdentity:
    """The identity of a model whose scores were kept then."""
    described = f"{identity.description}, " if identity.description else ""
    return replace(identity, kind="stored run", description=f"{described}stored {created}")


def _with_stored_caveat(table: ScoreTable, created: str) -> ScoreTable:
    then = f"scores that were stored on {created}"
    return replace(table, provenance=(*table.provenance, then))


def _side_of_report(report: CompareReport, name: str, path: Path) -> SideName:
    names = {report.base.name: "base", report.candidate.name: "candidate"}
    if not name:
        return "base"
    if name not in names:
        raise UsageError(
            f"the run {path} has no model '{name}'{nearest(name, names)}",
            hint=f"it has: {', '.join(names)}",
        )
    return cast("SideName", names[name])


def _check_values(
    path: Path, report: CompareReport, side: SideName, tables: tuple[StoredTables, ...]
) -> None:
    """Refuse samples that are of another run than the result beside them."""
    told = {
        ((one.task, one.filter, one.metric), one.n_used): getattr(one, side)
        for one in report.comparisons
    }
    for table in (table for of in tables for table in of.tables):
        value, found = told.get((table.key, table.n)), _metric_value(table)
        if value is None or not (math.isfinite(value) and math.isfinite(found)):
            continue
        if not math.isclose(found, value, rel_tol=1e-9, abs_tol=1e-12):
            raise MisalignedRunsError(
                f"{path}: the samples of {' '.join(table.key)} give {found:.6g} for the {side}, "
                f"and its result.json says {value:.6g}: they are not of one run",
                hint=_COMPARE_AGAIN,
            )


def _metric_value(table: ScoreTable) -> float:
    """The metric over all documents; infinite or NaN where it is not a number."""
    weights = np.ones(table.n) if table.weights is None else table.weights
    total = exact_sum(weights)
    mean = exact_sum(table.values) / total if total else math.nan
    if table.aggregation == "bits_per_byte":
        return -mean / math.log(2.0)
    return mean if table.aggregation == "mean" else float(np.exp(-mean))
