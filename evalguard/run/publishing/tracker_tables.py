"""Tables of a tracked run: metrics, distributions, probes and culprits of the bisection."""

from __future__ import annotations

import bisect
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from evalguard.core.comparison import Comparison
from evalguard.core.influential_documents import InfluentialDocument
from evalguard.core.reports.bisect_report import SIGMA, BisectReport
from evalguard.core.reports.compare_report import CompareReport
from evalguard.core.reports.run_documents import RunDocuments, Side
from evalguard.core.reports.tracked_run import TrackedTable
from evalguard.core.settings import Value
from evalguard.errors import StoreError
from evalguard.report.words.plain_text import printable
from evalguard.run.stored_run import open_documents

_METRIC_COLUMNS = (
    "task", "metric", "filter", "documents", "base", "candidate", "sigma", "sigma_low",
    "sigma_high", "p_value", "outcome",
)  # fmt: skip
_DISTRIBUTION_COLUMNS = (
    "task", "documents", "positions", "kl_mean", "kl_low", "kl_high", "kl_p99", "kl_max", "dp_rms",
    "same_top1", "exact",
)  # fmt: skip
_PROBE_COLUMNS = (
    "search", "probe", "at candidate value", "documents", "documents so far", "sigma", "error",
    "outcome", "reason", "cost", "drift", "drift error", "unit",
)  # fmt: skip
_CULPRIT_COLUMNS = (
    "setting", "reference", "candidate", "target", "task", "metric", "sigma_alone",
    "sigma_in_context", "shapley_sigma", "role", "alone", "in_context",
    "shapley", "unit",
)  # fmt: skip


def build_tables(report: CompareReport, *, documents: bool) -> dict[str, TrackedTable]:
    """Return the tables by name; none without rows.

    Args:
        documents: with what was asked and answered.
    """
    moved = list_moved_documents(report) if documents else _moved_numbers(report)
    found = {
        "metrics": _metrics_table(report),
        "distributions": _distributions_table(report),
        "moved_documents": moved,
    }
    if report.bisect is not None:
        found["bisect/probes"] = _probes_table(report.bisect)
        found["bisect/culprits"] = _culprits_table(report.bisect)
    return {name: table for name, table in found.items() if table.rows}


def _metrics_table(report: CompareReport) -> TrackedTable:
    rows = []
    for one in report.comparisons:
        low, high = one.sigma_interval or (None, None)
        values = (one.base, one.candidate, one.sigma, low, high, one.p_value)
        cells = map(finite_or_none, values)
        rows.append((one.task, one.metric, one.filter, one.n_used, *cells, one.outcome))
    return TrackedTable(columns=_METRIC_COLUMNS, rows=tuple(rows))


def _distributions_table(report: CompareReport) -> TrackedTable:
    """A row for each task whose distributions were compared."""
    rows = []
    for one in report.distributions:
        if one.failure:
            continue
        low, high = one.kl.interval or (None, None)
        values = (
            one.kl.value, low, high, one.kl_at(99).value, one.kl_at(100).value, one.dp_rms.value,
            one.same_top1.value,
        )  # fmt: skip
        cells = map(finite_or_none, values)
        rows.append((one.task, one.n, one.positions, *cells, one.exact))
    return TrackedTable(columns=_DISTRIBUTION_COLUMNS, rows=tuple(rows))


def _probes_table(bisect: BisectReport) -> TrackedTable:
    return TrackedTable(columns=_PROBE_COLUMNS, rows=tuple(_probe_rows(bisect)))


def _probe_rows(bisect: BisectReport) -> Iterator[tuple[Any, ...]]:
    for search in bisect.searches:
        name = f"{search.task} {search.metric}"
        for number, probe in enumerate(search.measured, 1):
            yield (
                name,
                number,
                ", ".join(probe.settings) or "none",
                probe.documents,
                probe.documents_so_far,
                *_sigma_columns(search.unit, probe.drift_sigma, probe.error_sigma),
                probe.outcome,
                probe.reason,
                probe.cost,
                finite_or_none(probe.drift_sigma),
                finite_or_none(probe.error_sigma),
                search.unit,
            )


def _culprits_table(bisect: BisectReport) -> TrackedTable:
    rows = [
        (
            one.setting,
            _setting_text(one.reference),
            _setting_text(one.candidate),
            one.target,
            one.task,
            one.metric,
            *_sigma_columns(one.unit, one.sigma_alone, one.sigma_in_context, one.shapley_sigma),
            one.role,
            finite_or_none(one.sigma_alone),
            finite_or_none(one.sigma_in_context),
            finite_or_none(one.shapley_sigma),
            one.unit,
        )
        for one in bisect.culprits
    ]
    return TrackedTable(columns=_CULPRIT_COLUMNS, rows=tuple(rows))


def _sigma_columns(unit: str, *drifts: float | None) -> tuple[float | None, ...]:
    """Drifts for columns that are called sigma: None in any other unit."""
    return tuple(finite_or_none(drift) if unit == SIGMA else None for drift in drifts)


def finite_or_none(value: float | None) -> float | None:
    """A number that JSON can hold; None for any other."""
    return value if value is not None and math.isfinite(value) else None


def _setting_text(value: Value) -> str:
    return value if isinstance(value, str) else json.dumps(value)


_DOCUMENT_COLUMNS = (
    "task", "metric", "document", "sigma", "share", "base score", "candidate score", "prompt",
    "target", "base answer", "candidate answer",
)  # fmt: skip
_LONGEST_TEXT = 2_000

DocumentsByTask = Mapping[str, RunDocuments | None]


def list_moved_documents(report: CompareReport) -> TrackedTable:
    """Return one row for each document that a metric's influence names.

    What was asked and answered is there where the run folder holds it.
    """
    named = [(c, one) for c in report.comparisons if c.influence for one in c.influence.documents]
    documents = _open_documents(report, [one.task for _, one in named])
    rows = [_document_row(comparison, one, documents.get(one.task)) for comparison, one in named]
    return TrackedTable(columns=_DOCUMENT_COLUMNS, rows=tuple(rows))


def _moved_numbers(report: CompareReport) -> TrackedTable:
    """The same without a word of any document."""
    rows = [
        (one.task, c.metric, one.doc_id, one.contribution, one.share)
        for c in report.comparisons
        if c.influence
        for one in c.influence.documents
    ]
    return TrackedTable(columns=_DOCUMENT_COLUMNS[:5], rows=tuple(rows))


def _open_documents(report: CompareReport, tasks: Sequence[str]) -> DocumentsByTask:
    read = open_documents(report)
    found: dict[str, RunDocuments | None] = {}
    for task in dict.fromkeys(tasks):
        try:
            found[task] = read(task)
        except (StoreError, OSError):  # a table without texts; whoever reads the folder is told
            found[task] = None
    return found


def _document_row(
    comparison: Comparison, one: InfluentialDocument, documents: RunDocuments | None
) -> tuple[Any, ...]:
    index = None if documents is None else _document_index(documents, one.doc_id)
    start = (one.task, comparison.metric, one.doc_id, one.contribution, one.share)
    if documents is None or index is None:
        return (*start, "", "", "", "", "", "")
    return (
        *start,
        _score_text(documents, "base", index, comparison),
        _score_text(documents, "candidate", index, comparison),
        _shorten(documents.of("base", "prompt")[index]),
        _shorten(documents.columns["target"][index]),
        _answers_text(documents, "base", index),
        _answers_text(documents, "candidate", index),
    )


def _document_index(documents: RunDocuments, doc_id: int) -> int | None:
    place = bisect.bisect_left(documents.doc_ids, doc_id)
    there = place < len(documents) and documents.doc_ids[place] == doc_id
    return place if there else None


def _score_text(documents: RunDocuments, side: Side, index: int, comparison: Comparison) -> str:
    text = documents.of(side, "scores")[index]
    if text is None:
        return ""
    item = json.loads(text).get(comparison.filter, {}).get(comparison.metric)
    return "" if item is None else _shorten(json.dumps(item))


def _answers_text(documents: RunDocuments, side: Side, index: int) -> str:
    """What a side generated, else the log-likelihoods that it gave."""
    texts = documents.of(side, "text")[index] or ()
    said = [text for text in texts if text is not None]
    if said:
        return _shorten(" | ".join(said))
    scores = documents.of(side, "loglikelihood")[index] or ()
    return ", ".join("" if score is None else f"{score:.4f}" for score in scores)[:_LONGEST_TEXT]


def _shorten(value: object) -> str:
    return "" if value is None else printable(str(value)[:_LONGEST_TEXT])
