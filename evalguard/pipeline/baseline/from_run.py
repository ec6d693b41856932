"""The base of a finished comparison, from its run folder."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np

from evalguard.compare_report import CompareReport, RunIdentity
from evalguard.errors import MisalignedRunsError, UsageError, nearest
from evalguard.pipeline.baseline.kept_run import KeptRun
from evalguard.pipeline.baseline.stored_rows import stored_rows
from evalguard.pipeline.baseline.stored_tables import Side, StoredTables, stored_tables
from evalguard.pipeline.stored_run import StoredRun, stored_run
from evalguard.pipeline.task_scoring import reading_of
from evalguard.scores import NotCompared, ScoreTable
from evalguard.settings import Value
from evalguard.stats.moments import exact_sum

_AGAIN = "compare the two models once more: that run can be a baseline"


def base_of_run(path: Path, name: str = "") -> KeptRun:
    """Read what a run folder (or its result.json) kept of its base.

    Args:
        name: of the model that is meant, where it is the run's candidate; "": the base.

    Raises:
        UsageError: this is no run folder, it has no such model, or it kept no scores of it.
        StoreError: it is damaged.
        MisalignedRunsError: its samples do not give the values of its result.
    """
    run = stored_run(path)
    side = _side(run.report, name, path)
    identity = run.report.base if side == "base" else run.report.candidate
    tables = tables_of(run, side)
    if not tables:
        raise UsageError(
            f"{path} keeps no scores of its {side} {identity.name}, which is a {identity.kind}",
            hint="name that run with --base" if identity.kind == "lm-eval run" else _AGAIN,
        )
    _check_values(path, run.report, side, tables)
    environment = cast("dict[str, Value]", run.report.environment.get(side) or {})
    return KeptRun(
        path=run.folder,
        created=run.report.created,
        identity=as_stored(identity, run.report.created),
        tables=tuple(
            replace(_told(table, run.report.created), reading=reading_of(environment))
            for of in tables
            for table in of.tables
        ),
        not_compared=_not_compared(run.report, tables),
        fields={of.tables[0].task: of.fields for of in tables if of.tables},
        rows=_rows(run, side, tables),
        notes=run.notes,
        environment=environment,
    )


def _rows(
    run: StoredRun, side: Side, tables: tuple[StoredTables, ...]
) -> dict[str, tuple[Mapping[str, Value], ...]]:
    tasks = dict.fromkeys(table.task for of in tables for table in of.tables)
    return {task: stored_rows(run.files[task], side) for task in tasks}


def _not_compared(
    report: CompareReport, tables: tuple[StoredTables, ...]
) -> tuple[NotCompared, ...]:
    """What has no scores: of these documents, or already when the run was made."""
    here = [left for of in tables for left in of.not_compared]
    known = {(left.task, left.filter, left.metric) for left in here}
    then = [one for one in report.not_compared if (one.task, one.filter, one.metric) not in known]
    return (*here, *then)


def tables_of(run: StoredRun, side: Side) -> tuple[StoredTables, ...]:
    """One side's score tables of every task whose samples are there; () where none are.

    Raises:
        UsageError, StoreError: as ``stored_tables``.
    """
    identity = run.report.base if side == "base" else run.report.candidate
    found = (
        stored_tables(run.samples(task), task, side, source=f"stored run {identity.name}")
        for task in run.tasks
    )
    return tuple(one for one in found if one is not None)


def as_stored(identity: RunIdentity, created: str) -> RunIdentity:
    """The identity of a model whose scores were kept then."""
    described = f"{identity.description}, " if identity.description else ""
    return replace(identity, kind="stored run", description=f"{described}stored {created}")


def _told(table: ScoreTable, created: str) -> ScoreTable:
    return replace(table, caveats=(*table.caveats, f"scores that were stored on {created}"))


def _side(report: CompareReport, name: str, path: Path) -> Side:
    names = {report.base.name: "base", report.candidate.name: "candidate"}
    if not name:
        return "base"
    if name not in names:
        raise UsageError(
            f"the run {path} has no model '{name}'{nearest(name, names)}",
            hint=f"it has: {', '.join(names)}",
        )
    return cast("Side", names[name])


def _check_values(
    path: Path, report: CompareReport, side: Side, tables: tuple[StoredTables, ...]
) -> None:
    """Refuse samples that are of another run than the result beside them."""
    told = {
        ((one.task, one.filter, one.metric), one.n_used): getattr(one, side)
        for one in report.comparisons
    }
    for table in (table for of in tables for table in of.tables):
        value, found = told.get((table.key, table.n)), _value(table)
        if value is None or not (math.isfinite(value) and math.isfinite(found)):
            continue
        if not math.isclose(found, value, rel_tol=1e-9, abs_tol=1e-12):
            raise MisalignedRunsError(
                f"{path}: the samples of {' '.join(table.key)} give {found:.6g} for the {side}, "
                f"and its result.json says {value:.6g}: they are not of one run",
                hint=_AGAIN,
            )


def _value(table: ScoreTable) -> float:
    """The metric over all documents; infinite or NaN where it is no number."""
    weights = np.ones(table.n) if table.weights is None else table.weights
    total = exact_sum(weights)
    mean = exact_sum(table.values) / total if total else math.nan
    if table.aggregation == "bits_per_byte":
        return -mean / math.log(2.0)
    return mean if table.aggregation == "mean" else float(np.exp(-mean))
