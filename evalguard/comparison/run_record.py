"""What a finished comparison leaves on disk: per task samples and tokens, and result.json.

result.json is written last: it holds the digests of the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evalguard.core.compare_report import CompareReport, drift_column
from evalguard.core.comparison import Comparison
from evalguard.core.document_columns import DocumentColumns, Numbers, column_of
from evalguard.core.document_scale import DocumentScale
from evalguard.core.pairing import finite_rows, pair
from evalguard.core.scores import Aggregation, ScoreTable, Uninformative
from evalguard.core.settings import Value
from evalguard.distributions.task_distributions import TaskDivergences
from evalguard.engine.scored_side import ScoredSide
from evalguard.engine.sources import ModelSource, Source
from evalguard.errors import (
    EvaluationError,
    MisalignedRunsError,
    StoreError,
    UsageError,
    error_text,
)
from evalguard.harness.score_tables import TaskScores
from evalguard.models.arguments import HF_TYPES
from evalguard.models.unloaded_models import token_texts
from evalguard.report.compare_document import compare_document
from evalguard.report.record_documents import read_record, write_record
from evalguard.store.run_folder import RunFolder

Drifts = Mapping[int, float]


def compute_document_drifts(
    report: CompareReport, scored: tuple[ScoredSide, ScoredSide], allow: frozenset[str]
) -> dict[str, dict[str, Drifts]]:
    """Return each document's part of sigma, by task and name of the column.

    Left out are metrics that failed, that are no sum over documents, or that have no standard
    error to be measured in.

    Args:
        allow: differences between the sides that were allowed when they were paired.
    """
    base, candidate = ({table.key: table for table in side.tables} for side in scored)
    by_task: dict[str, dict[str, Drifts]] = {}
    for comparison in report.comparisons:
        key = comparison.key
        if comparison.outcome == "failed" or key not in base or key not in candidate:
            continue
        drifts = _metric_drifts(comparison, base[key], candidate[key], allow)
        if drifts is not None:
            by_task.setdefault(key[0], {})[drift_column(key[1], key[2])] = drifts
    return by_task


def _metric_drifts(
    comparison: Comparison, base: ScoreTable, candidate: ScoreTable, allow: frozenset[str]
) -> Drifts | None:
    try:
        pair(base, candidate, allow=allow)
        base, candidate = finite_rows(base, candidate)
        population = 0 if comparison.stopping is None else comparison.n
        scale = DocumentScale.of(base, population=population)
    except (MisalignedRunsError, UsageError):
        return None
    parts = (scale.values(base) - scale.values(candidate)) / base.n / scale.yardstick
    return dict(zip(base.doc_ids.tolist(), parts.tolist(), strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricFacts:
    """One metric of one side, without its documents; the fields are those of ``ScoreTable``."""

    filter: str
    metric: str
    aggregation: Aggregation
    higher_is_better: bool
    directed: bool = True
    figure: bool = False
    n_total: int = 0
    run: Mapping[str, Value]
    uninformative: Uninformative | None = None
    caveats: tuple[str, ...] = ()
    provenance: tuple[str, ...] = ()

    @classmethod
    def read(cls, told: Mapping[str, Any]) -> MetricFacts:
        """Read back what ``describe_metrics`` wrote; an earlier version wrote less.

        Raises:
            StoreError: it is not that.
        """
        facts: MetricFacts = read_record(cls, told, "facts")
        return facts


def describe_metrics(tables: Sequence[ScoreTable]) -> list[dict[str, Any]]:
    """The facts of a task's tables as plain data."""
    names = [field.name for field in fields(MetricFacts)]
    facts = [MetricFacts(**{name: getattr(table, name) for name in names}) for table in tables]
    return [write_record(fact) for fact in facts]


def name_tokens(
    sources: Sequence[Source], divergences: Iterable[TaskDivergences]
) -> Mapping[int, str]:
    """Return the text of every scored token id; {} where no tokenizer is at hand.

    Distributions are compared of models with one vocabulary, so that either side's will do.
    """
    token_ids = [
        request.token_ids
        for task in divergences
        for document in task.documents
        for request in document.requests
    ]
    if not token_ids:
        return {}
    ids = np.unique(np.concatenate(token_ids)).tolist()
    for source in sources:
        if isinstance(source, ModelSource) and source.variant.model in HF_TYPES:
            texts = token_texts(source.variant.model_args, ids)
            if texts:
                return texts
    return {}


# Written once: both sides have the same documents, or the comparison was refused.
_SHARED_COLUMNS = ("doc_id", "doc", "target", "doc_hash", "target_hash")


def build_sample_columns(
    base: TaskScores | None, candidate: TaskScores | None
) -> dict[str, Sequence[Value]]:
    """Return one task's samples as columns: shared ones, then ``base:`` and ``candidate:``.

    A document that only one side has keeps its row, with nulls on the other side.
    """
    sides = {"base": base, "candidate": candidate}
    places = {name: _places(of) for name, of in sides.items()}
    doc_ids = sorted({doc_id for of_side in places.values() for doc_id in of_side})
    shared = [(of, places[side]) for side, of in sides.items()]
    columns = {name: _shared_column(name, doc_ids, shared) for name in _SHARED_COLUMNS}
    for side, of in sides.items():
        for name in _own_columns(of):
            columns[f"{side}:{name}"] = _side_column(of, name, doc_ids, places[side])
    return columns


def add_drift_columns(
    columns: Mapping[str, Sequence[Value]], drifts: Mapping[str, Drifts]
) -> dict[str, Sequence[Value]]:
    """Add drifts to a task's columns, in the order of its documents."""
    ids: Sequence[Any] = columns["doc_id"]
    added: dict[str, Sequence[Value]] = {
        name: Numbers.of([of_metric.get(doc_id) for doc_id in ids], np.float64)
        for name, of_metric in drifts.items()
    }
    return {**columns, **added}


def build_token_columns(
    divergences: TaskDivergences, texts: Mapping[int, str]
) -> dict[str, NDArray[Any]]:
    """Return one task's scored tokens as columns, in ascending document and reading order.

    Bounds of KL are there where it was estimated from a reference, and what each token says where
    its tokenizer is at hand.
    """
    scored = [
        (document.doc_id, number, request)
        for document in divergences.documents
        for number, request in enumerate(document.requests)
        if request.positions
    ]
    parts = [request for _, _, request in scored]
    lengths = [part.positions for part in parts]
    columns: dict[str, NDArray[Any]] = {
        "doc_id": np.repeat([doc_id for doc_id, _, _ in scored], lengths),
        "request": np.repeat([number for _, number, _ in scored], lengths),
        "position": np.concatenate([np.arange(length) for length in lengths]),
    }
    for name, field in _TOKEN_COLUMNS.items():
        if getattr(parts[0], field) is not None:
            columns[name] = np.concatenate([getattr(part, field) for part in parts])
    if texts:
        labels = [texts.get(token_id, f"#{token_id}") for token_id in columns["token_id"].tolist()]
        columns["text"] = np.array(labels, dtype=object)
    return columns


_TOKEN_COLUMNS = {
    "token_id": "token_ids",
    "base_logprob": "base_logprobs",
    "candidate_logprob": "candidate_logprobs",
    "kl": "kl",
    "kl_low": "kl_low",
    "kl_high": "kl_high",
    "base_top": "base_top",
    "candidate_top": "candidate_top",
    "shared_top": "shared_top",
}


def _places(scores: TaskScores | None) -> dict[int, int]:
    """The row of each document."""
    if scores is None:
        return {}
    places: dict[int, int] = {}
    for row, doc_id in enumerate(column_of(scores.samples, "doc_id")):
        if not isinstance(doc_id, int):
            raise EvaluationError(f"task '{scores.task}': document id {doc_id!r} is not a number")
        places[doc_id] = row
    return places


def _own_columns(scores: TaskScores | None) -> Iterable[str]:
    if scores is None:
        return ()
    rows = scores.samples
    names = rows.columns if isinstance(rows, DocumentColumns) else (n for row in rows for n in row)
    return {name: None for name in names if name not in _SHARED_COLUMNS}


def _side_column(
    scores: TaskScores | None, name: str, doc_ids: Sequence[int], places: Mapping[int, int]
) -> Sequence[Value]:
    """A side's column in the order of ``doc_ids``; None for documents that it does not have."""
    if scores is None:
        return [None] * len(doc_ids)
    values = column_of(scores.samples, name)
    if len(values) == len(doc_ids) and [*places] == doc_ids:
        return values
    return [values[places[doc_id]] if doc_id in places else None for doc_id in doc_ids]


def _shared_column(
    name: str, doc_ids: Sequence[int], sides: Sequence[tuple[TaskScores | None, Mapping[int, int]]]
) -> Sequence[Value]:
    """The column of the first side that has the document."""
    columns = [_side_column(scores, name, doc_ids, places) for scores, places in sides]
    if len(sides[0][1]) == len(doc_ids):
        return columns[0]
    return [
        next(of[at] for of, (_, places) in zip(columns, sides, strict=True) if doc_id in places)
        for at, doc_id in enumerate(doc_ids)
    ]


def list_tasks_of_sides(*sides: Sequence[str]) -> list[str]:
    """Return the names of all tasks, in order, each once."""
    return list(dict.fromkeys(name for side in sides for name in side))


def write_run_folder(
    report: CompareReport,
    base: Mapping[str, TaskScores],
    candidate: Mapping[str, TaskScores],
    output: Path,
    *,
    divergences: Mapping[str, TaskDivergences],
    drifts: Mapping[str, Mapping[str, Drifts]],
    texts: Mapping[int, str],
) -> CompareReport:
    """Write the run folder; if that fails, the numbers are reported with the reason.

    Args:
        base, candidate: scores of each side by task; {} for a finished run.
        output: folder of the run folders.
        divergences: of the candidate from the base, by task; {} where that was not measured.
        drifts: what each document adds to a metric's drift, by task and name of the column.
        texts: of scored tokens, by their id.
    """
    created = datetime.fromisoformat(report.created)
    try:
        with RunFolder.create(output, report.base.name, report.candidate.name, created) as folder:
            written = replace(report, run_folder=str(folder.path))
            for task in list_tasks_of_sides(tuple(base), tuple(candidate)):
                columns = build_sample_columns(base.get(task), candidate.get(task))
                sides = (("base", base.get(task)), ("candidate", candidate.get(task)))
                facts = {name: describe_metrics(of.tables) for name, of in sides if of is not None}
                columns = add_drift_columns(columns, drifts.get(task, {}))
                folder.write_samples(task, columns, facts)
            for task, divergence in divergences.items():
                if any(
                    request.positions
                    for document in divergence.documents
                    for request in document.requests
                ):
                    folder.write_tokens(task, build_token_columns(divergence, texts))
            written = replace(written, files=dict(folder.digests))
            folder.write_result(compare_document(written))
            folder.commit()
    except StoreError as error:
        return report.with_unstored(f"no run folder was written: {error_text(error)}")
    return written
