"""The documents that moved most, with what was asked and answered, as a table."""

from __future__ import annotations

import bisect
import json
from collections.abc import Mapping, Sequence
from typing import Any

from evalguard.compare_report import CompareReport
from evalguard.comparison import Comparison
from evalguard.errors import StoreError
from evalguard.influence import InfluentialDocument
from evalguard.pipeline.stored_run import documents_of
from evalguard.report.plain_text import printable
from evalguard.run_documents import RunDocuments, Side
from evalguard.tracked_run import TrackedTable

_COLUMNS = (
    "task", "metric", "document", "sigma", "share", "base score", "candidate score", "prompt",
    "target", "base answer", "candidate answer",
)  # fmt: skip
_LONGEST_TEXT = 2_000

Documents = Mapping[str, RunDocuments | None]


def moved_documents(report: CompareReport) -> TrackedTable:
    """Return one row for each document that a metric's influence names.

    What was asked and answered is there where the run folder holds it.
    """
    named = [(c, one) for c in report.comparisons if c.influence for one in c.influence.documents]
    documents = _documents(report, [one.task for _, one in named])
    rows = [_row(comparison, one, documents.get(one.task)) for comparison, one in named]
    return TrackedTable(columns=_COLUMNS, rows=tuple(rows))


def _documents(report: CompareReport, tasks: Sequence[str]) -> Documents:
    read = documents_of(report)
    found: dict[str, RunDocuments | None] = {}
    for task in dict.fromkeys(tasks):
        try:
            found[task] = read(task)
        except (StoreError, OSError):  # a table without texts; whoever reads the folder is told
            found[task] = None
    return found


def _row(
    comparison: Comparison, one: InfluentialDocument, documents: RunDocuments | None
) -> tuple[Any, ...]:
    index = None if documents is None else _index(documents, one.doc_id)
    start = (one.task, comparison.metric, one.doc_id, one.contribution, one.share)
    if documents is None or index is None:
        return (*start, "", "", "", "", "", "")
    return (
        *start,
        _score(documents, "base", index, comparison),
        _score(documents, "candidate", index, comparison),
        _text(documents.of("base", "prompt")[index]),
        _text(documents.columns["target"][index]),
        _answers(documents, "base", index),
        _answers(documents, "candidate", index),
    )


def _index(documents: RunDocuments, doc_id: int) -> int | None:
    place = bisect.bisect_left(documents.doc_ids, doc_id)
    there = place < len(documents) and documents.doc_ids[place] == doc_id
    return place if there else None


def _score(documents: RunDocuments, side: Side, index: int, comparison: Comparison) -> str:
    text = documents.of(side, "scores")[index]
    if text is None:
        return ""
    item = json.loads(text).get(comparison.filter, {}).get(comparison.metric)
    return "" if item is None else _text(json.dumps(item))


def _answers(documents: RunDocuments, side: Side, index: int) -> str:
    """What a side generated, else the log-likelihoods that it gave."""
    texts = documents.of(side, "text")[index] or ()
    said = [text for text in texts if text is not None]
    if said:
        return _text(" | ".join(said))
    scores = documents.of(side, "loglikelihood")[index] or ()
    return ", ".join("" if score is None else f"{score:.4f}" for score in scores)[:_LONGEST_TEXT]


def _text(value: object) -> str:
    return "" if value is None else printable(str(value)[:_LONGEST_TEXT])
