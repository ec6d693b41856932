"""Rows of the table of documents: numbers in columns, as the page's script reads them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from evalguard.core.reports.run_documents import RunDocuments
from evalguard.core.scores import PERPLEXITIES
from evalguard.report.view.report_view import ReportView
from evalguard.report.words.plain_text import printable

JsonNumber = float | int | None


def task_rows(view: ReportView, documents: RunDocuments) -> dict[str, Any]:
    """One task: steps from id to id, and per metric every document's drift and both scores."""
    scores = (documents.scores("base"), documents.scores("candidate"))
    return {
        "task": printable(documents.task),
        "steps": np.diff(documents.doc_ids, prepend=0).tolist(),
        "metrics": [
            {
                "label": _metric_label(view, documents.task, filter_, metric),
                "unit": "log-likelihood" if metric in PERPLEXITIES else "score",
                "drift": _round_all(documents.drifts(filter_, metric), 3),
                "base": _round_all(_metric_items(scores[0], filter_, metric), 5),
                "candidate": _round_all(_metric_items(scores[1], filter_, metric), 5),
            }
            for filter_, metric in _metric_keys(documents, scores)
        ],
        "kl": _round_all(documents.mean_kl(), 2),
    }


def _metric_keys(documents: RunDocuments, scores: Sequence[Any]) -> list[tuple[str, str]]:
    """(filter, metric) of every score and every drift, in order."""
    found = {
        (filter_, metric): None
        for rows in scores
        for row in rows
        for filter_, items in row.items()
        for metric in items
    }
    return [*found, *(key for key in documents.drifting if key not in found)]


def _metric_label(view: ReportView, task: str, filter_: str, metric: str) -> str:
    names = (printable(task), printable(filter_), printable(metric))
    for one in view.metrics:
        if (one.task, one.filter, one.metric) == names:
            return one.label
    return names[2] if filter_ in ("", "none") else f"{names[2]} ({names[1]})"


def _metric_items(rows: Sequence[Any], filter_: str, metric: str) -> list[JsonNumber]:
    return [_item_number(row.get(filter_, {}).get(metric)) for row in rows]


def _item_number(item: Any) -> JsonNumber:
    """An item as a number: of a (log-likelihood, words) pair the first; None for any other."""
    if isinstance(item, list) and item:
        item = item[0]
    return item if isinstance(item, (int, float)) else None


def _round_all(values: Sequence[Any] | None, digits: int) -> list[JsonNumber] | None:
    """Numbers with as many significant digits as are read; None where there is no number at all."""
    if values is None:
        return None
    found = [_round_number(value, digits) for value in values]
    return found if any(value is not None for value in found) else None


def _round_number(value: Any, digits: int) -> JsonNumber:
    if value is None or not math.isfinite(value):
        return None
    short = float(f"{value:.{digits}g}")
    return int(short) if short.is_integer() and abs(short) < 1e9 else short
