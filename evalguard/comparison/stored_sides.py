"""Sides from finished comparisons: score tables and samples, read from their run folders."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from evalguard.answers.figure_tables import EXPECTED, answers_by_document, figure_tables
from evalguard.comparison.run_record import MetricFacts
from evalguard.comparison.stored_run import StoredRun, read_stored_run
from evalguard.core.compare_report import CompareReport, RunIdentity
from evalguard.core.document_columns import DocumentFields, read_fields
from evalguard.core.document_statistics import (
    DocumentStatistics,
    check_loglikelihoods,
    read_items,
    request_hash,
)
from evalguard.core.expected_answers import ExpectedAnswer
from evalguard.core.moments import exact_sum
from evalguard.core.scores import (
    LOGLIKELIHOODS,
    NO_PROBABILITY,
    NotCompared,
    ScoreTable,
    restore_infinities,
    restore_infinity,
)
from evalguard.core.settings import Value
from evalguard.core.shown_tokens import SAMPLE_COLUMNS
from evalguard.engine.sources import BaselineScores
from evalguard.engine.task_scores import describe_reading
from evalguard.errors import MisalignedRunsError, StoreError, UsageError, nearest
from evalguard.store.run_tables import read_sample_facts, read_samples, sample_column_names


def read_side_rows(
    file: Path, side: Literal["base", "candidate"]
) -> tuple[Mapping[str, Value], ...]:
    """Return one side's rows of a task's samples, in ascending order of the documents' ids.

    The inverse of what ``record.sample_columns`` makes of them: a document that this side has not
    answered has no row.

    Raises:
        StoreError: the file is damaged.
    """
    own = f"{side}:"
    names = [name for name in sample_column_names(file) if name.startswith(own) or ":" not in name]
    columns = read_samples(file, names)
    answered = columns.get(f"{own}scores", ())
    return tuple(
        _with_infinities(
            {name.removeprefix(own): values[index] for name, values in columns.items()}
        )
        for index, scores in enumerate(answered)
        if scores is not None
    )


SideName = Literal["base", "candidate"]
SampleRow = Mapping[str, Any]
_SHARED_COLUMNS = ("doc_id", "doc", "doc_hash", "target_hash")
_SIDE_COLUMNS = (
    "prompt_hash", "token_hash", "arguments", "loglikelihood", "cut", "scores", "answers",
)  # fmt: skip
# What figures of generated answers are computed from.
_ANSWER_COLUMNS = ("text", "generated", *SAMPLE_COLUMNS)
_OWN_AGGREGATION = (
    "its aggregation is the task's own, which only a run with the model itself can compute"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTables:
    """One side of one task.

    Attributes:
        tables: as they were compared, bit for bit.
        not_compared: metrics whose documents do not give the number again.
        fields: of the documents.
    """

    tables: tuple[ScoreTable, ...]
    not_compared: tuple[NotCompared, ...]
    fields: DocumentFields


def read_stored_tables(
    file: Path, task: str, side: SideName, *, source: str
) -> StoredTables | None:
    """Read one side of a task's samples; None where the run kept no scores of that side.

    Of an lm-eval run it keeps what was asked and answered: its scores are in its own files.

    Args:
        source: whose scores these are, for messages.

    Raises:
        UsageError: they were written by an evalguard that kept too little.
        StoreError: the file is damaged.
    """
    columns = read_samples(file, [*_SHARED_COLUMNS, *(f"{side}:{name}" for name in _SIDE_COLUMNS)])
    if f"{side}:scores" not in columns:
        return None
    facts = read_sample_facts(file).get(side)
    if facts is None:
        raise UsageError(
            f"{file} was written by an earlier evalguard, which did not keep how its metrics are "
            "made",
            hint="compare the two models once more: that run keeps what is needed",
        )
    if not facts:
        return None
    try:
        if any(fact.get("figure") for fact in facts):
            columns |= read_samples(file, [f"{side}:{name}" for name in _ANSWER_COLUMNS])
        rows = _rows_of_columns(columns, side)
        # of a run that an evalguard made which did not look
        check_loglikelihoods(task, {row["doc_id"]: _row_loglikelihoods(row) for row in rows})
        return _read_tables(task, facts, rows, source)
    except (ValueError, KeyError, TypeError, AttributeError, StoreError) as error:
        raise StoreError(
            f"{file} is damaged: its {side} is not what was written ({error})",
            hint="compare the two models once more",
        ) from error


def _read_tables(
    task: str, told: Sequence[SampleRow], rows: Sequence[SampleRow], source: str
) -> StoredTables:
    facts = [MetricFacts.read(entry) for entry in told]
    left_out = tuple(
        NotCompared(task=task, filter=fact.filter, metric=fact.metric, reason=_OWN_AGGREGATION)
        for fact in facts
        if fact.aggregation == "other"
    )
    scores = [fact for fact in facts if fact.aggregation != "other" and not fact.figure]
    return StoredTables(
        tables=(
            *(_build_table(task, fact, rows, source) for fact in scores),
            *_figure_tables(task, [fact for fact in facts if fact.figure], rows, source),
        ),
        not_compared=left_out,
        fields=read_fields({row["doc_id"]: json.loads(row["doc"]) for row in rows}),
    )


def _figure_tables(
    task: str, facts: Sequence[MetricFacts], rows: Sequence[SampleRow], source: str
) -> tuple[ScoreTable, ...]:
    """Tables of the figures of answers that the run's gate named, made of the answers anew."""
    if not facts:
        return ()
    blank = _blank_table(task, facts[0], rows, source)
    blank = replace(blank, run={k: v for k, v in blank.run.items() if k != EXPECTED})
    names = tuple(dict.fromkeys(fact.metric for fact in facts))
    recorded = next((fact.run[EXPECTED] for fact in facts if EXPECTED in fact.run), None)
    expected = None if recorded is None else ExpectedAnswer.read(recorded)
    return figure_tables(blank, answers_by_document(task, rows), names, expected)


def _rows_of_columns(columns: Mapping[str, Sequence[Any]], side: SideName) -> list[SampleRow]:
    """The documents that this side has, in ascending order of their ids."""
    names = {name: name.removeprefix(f"{side}:") for name in columns}
    rows = (
        dict(zip(names.values(), values, strict=True))
        for values in zip(*columns.values(), strict=True)
    )
    return [
        {**row, "scores": json.loads(row["scores"]), "answers": json.loads(row["answers"])}
        for row in rows
        if row["scores"] is not None
    ]


def _build_table(
    task: str, facts: MetricFacts, rows: Sequence[SampleRow], source: str
) -> ScoreTable:
    having = [row for row in rows if facts.metric in row["scores"].get(facts.filter, {})]
    items = [row["scores"][facts.filter][facts.metric] for row in having]
    statistics = read_items(items, facts.aggregation)
    return replace(
        _blank_table(task, facts, having, source),
        aggregation=statistics.aggregation,
        values=_row_values(statistics, having),
        weights=statistics.weights,
        answers=_row_answers(having, facts),
        uninformative=facts.uninformative,
    )


def _blank_table(
    task: str, facts: MetricFacts, rows: Sequence[SampleRow], source: str
) -> ScoreTable:
    """A table of these documents without any scores."""
    tokens = tuple(row["token_hash"] or "" for row in rows)
    return ScoreTable(
        task=task,
        filter=facts.filter,
        metric=facts.metric,
        aggregation="mean",
        higher_is_better=facts.higher_is_better,
        directed=facts.directed,
        doc_ids=np.array([row["doc_id"] for row in rows], dtype=np.int64),
        values=np.zeros(len(rows)),
        doc_hashes=tuple(row["doc_hash"] for row in rows),
        prompt_hashes=tuple(row["prompt_hash"] for row in rows),
        target_hashes=tuple(row["target_hash"] for row in rows),
        asked_hashes=tuple(request_hash(_row_arguments(row)) for row in rows),
        token_hashes=tokens if all(tokens) else (),
        cut=tuple(bool(row["cut"]) for row in rows),
        n_total=facts.n_total,
        source=source,
        run=facts.run,
        caveats=facts.caveats,
        provenance=facts.provenance,
    )


def _row_values(statistics: DocumentStatistics, rows: Sequence[SampleRow]) -> NDArray[np.float64]:
    """The values, as they were compared: NaN where the model gave no number for a text."""
    values = statistics.values
    if statistics.aggregation in LOGLIKELIHOODS:
        values = restore_infinities(values, [_only_text(row) for row in rows])
    given = (
        [value for value in row.get("loglikelihood") or () if value is not None] for row in rows
    )
    unsound = [any(math.isnan(value) or value == math.inf for value in of) for of in given]
    return np.where(np.array(unsound, dtype=np.bool_), math.nan, values)


def _only_text(row: SampleRow) -> str | None:
    """The text that was scored; None where there are several."""
    asked = list(_row_arguments(row))
    text = asked[0][-1] if len(asked) == 1 and asked[0] else None
    return text if isinstance(text, str) else None


def _with_infinities(row: SampleRow) -> SampleRow:
    """A row with minus infinity where a server wrote a number for it."""
    likelihoods = row.get("loglikelihood")
    if not likelihoods or not any(
        likelihood is not None and likelihood <= NO_PROBABILITY for likelihood in likelihoods
    ):
        return row
    asked = list(_row_arguments(row))
    if len(asked) != len(likelihoods):
        return row
    tokens = row.get("token_logprobs") or [None] * len(likelihoods)
    restored = []
    for value, of, arguments in zip(likelihoods, tokens, asked, strict=True):
        last = arguments[-1] if arguments else None
        text = last if isinstance(last, str) else row.get("prompt")
        known = None if value is None else restore_infinity(value, token_logprobs=of, text=text)
        restored.append(known)
    return {**row, "loglikelihood": restored}


def _row_loglikelihoods(row: SampleRow) -> list[float]:
    """Of a document's distinct requests."""
    likelihoods = dict(zip(row["arguments"], row.get("loglikelihood") or (), strict=False))
    return [value for value in likelihoods.values() if value is not None]


def _row_arguments(row: SampleRow) -> Iterator[Sequence[object]]:
    for text in row["arguments"]:
        yield json.loads(text)


def _row_answers(rows: Sequence[SampleRow], facts: MetricFacts) -> tuple[str, ...]:
    """What was answered; () where any document's answer is not known."""
    answers = [row["answers"].get(facts.filter, {}).get(facts.metric) for row in rows]
    return tuple(answers) if all(isinstance(answer, str) for answer in answers) else ()


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
    here = [omitted for of in tables for omitted in of.not_compared]
    known = {(omitted.task, omitted.filter, omitted.metric) for omitted in here}
    then = [
        omitted
        for omitted in report.not_compared
        if (omitted.task, omitted.filter, omitted.metric) not in known
    ]
    return (*here, *then)


def read_score_tables(run: StoredRun, side: SideName) -> tuple[StoredTables, ...]:
    """One side's score tables of every task whose samples are there; () where none are.

    Raises:
        UsageError, StoreError: as ``read_stored_tables``.
    """
    identity = run.report.base if side == "base" else run.report.candidate
    stored = (
        read_stored_tables(run.samples(task), task, side, source=f"stored run {identity.name}")
        for task in run.tasks
    )
    return tuple(tables for tables in stored if tables is not None)


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
    expected = {
        ((comparison.task, comparison.filter, comparison.metric), comparison.n_used): getattr(
            comparison, side
        )
        for comparison in report.comparisons
    }
    for table in (table for of in tables for table in of.tables):
        value, computed = expected.get((table.key, table.n)), _metric_value(table)
        if value is None or not (math.isfinite(value) and math.isfinite(computed)):
            continue
        if not math.isclose(computed, value, rel_tol=1e-9, abs_tol=1e-12):
            raise MisalignedRunsError(
                f"{path}: the samples of {' '.join(table.key)} give {computed:.6g} for the {side}, "
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
