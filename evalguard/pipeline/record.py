"""What a finished comparison leaves on disk: per task samples and tokens, and result.json.

result.json is written last: it holds the digests of the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evalguard.compare_report import CompareReport
from evalguard.errors import EvaluationError, StoreError
from evalguard.harness import TaskScores
from evalguard.pipeline.divergences import TaskDivergences
from evalguard.pipeline.drifts import Drifts
from evalguard.pipeline.metric_facts import told_facts
from evalguard.report.contract import document
from evalguard.settings import Value
from evalguard.store import RunFolder

# Written once: both sides have the same documents, or the comparison was refused.
_SHARED = ("doc_id", "doc", "target", "doc_hash", "target_hash")


def sample_columns(base: TaskScores | None, candidate: TaskScores | None) -> dict[str, list[Value]]:
    """Return one task's samples as columns: shared ones, then ``base:`` and ``candidate:``.

    A document that only one side has keeps its row, with nulls on the other side.
    """
    sides = {"base": _rows(base), "candidate": _rows(candidate)}
    doc_ids = sorted({doc_id for rows in sides.values() for doc_id in rows})
    columns: dict[str, list[Value]] = {}
    for name in _SHARED:
        columns[name] = [_first(sides.values(), doc_id, name) for doc_id in doc_ids]
    for side, rows in sides.items():
        own = {name: None for row in rows.values() for name in row if name not in _SHARED}
        for name in own:
            columns[f"{side}:{name}"] = [rows.get(doc_id, {}).get(name) for doc_id in doc_ids]
    return columns


def with_drifts(
    columns: Mapping[str, list[Value]], drifts: Mapping[str, Drifts]
) -> dict[str, list[Value]]:
    """Add drifts to a task's columns, in the order of its documents."""
    ids: list[Any] = columns["doc_id"]
    added: dict[str, list[Value]] = {
        name: [of_metric.get(doc_id) for doc_id in ids] for name, of_metric in drifts.items()
    }
    return {**columns, **added}


def token_columns(
    divergences: TaskDivergences, texts: Mapping[int, str]
) -> dict[str, NDArray[Any]]:
    """Return one task's scored tokens as columns, in ascending document and reading order.

    Bounds of KL are there where it was estimated from a reference, and what each token says where
    its tokenizer is at hand.
    """
    found = [
        (document.doc_id, number, one)
        for document in divergences.documents
        for number, one in enumerate(document.requests)
        if one.positions
    ]
    parts = [one for _, _, one in found]
    lengths = [one.positions for one in parts]
    columns: dict[str, NDArray[Any]] = {
        "doc_id": np.repeat([doc_id for doc_id, _, _ in found], lengths),
        "request": np.repeat([number for _, number, _ in found], lengths),
        "position": np.concatenate([np.arange(length) for length in lengths]),
    }
    for name, field in _TOKEN_COLUMNS.items():
        if getattr(parts[0], field) is not None:
            columns[name] = np.concatenate([getattr(one, field) for one in parts])
    if texts:
        said = [texts.get(one, f"#{one}") for one in columns["token_id"].tolist()]
        columns["text"] = np.array(said, dtype=object)
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


def _rows(scores: TaskScores | None) -> dict[int, Mapping[str, Value]]:
    if scores is None:
        return {}
    rows: dict[int, Mapping[str, Value]] = {}
    for row in scores.samples:
        doc_id = row["doc_id"]
        if not isinstance(doc_id, int):
            raise EvaluationError(f"task '{scores.task}': document id {doc_id!r} is no number")
        rows[doc_id] = row
    return rows


def _first(sides: Iterable[Mapping[int, Mapping[str, Value]]], doc_id: int, name: str) -> Value:
    return next((rows[doc_id][name] for rows in sides if doc_id in rows), None)


def tasks_of(*sides: Sequence[str]) -> list[str]:
    """Return the names of all tasks, in order, each once."""
    return list(dict.fromkeys(name for side in sides for name in side))


def write_run(
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
            for task in tasks_of(tuple(base), tuple(candidate)):
                columns = sample_columns(base.get(task), candidate.get(task))
                sides = (("base", base.get(task)), ("candidate", candidate.get(task)))
                facts = {name: told_facts(of.tables) for name, of in sides if of is not None}
                columns = with_drifts(columns, drifts.get(task, {}))
                folder.write_samples(task, columns, facts)
            for task, found in divergences.items():
                if any(one.positions for document in found.documents for one in document.requests):
                    folder.write_tokens(task, token_columns(found, texts))
            written = replace(written, files=dict(folder.digests))
            folder.write_result(document(written))
            folder.commit()
    except StoreError as error:
        hint = f" ({error.hint})" if error.hint else ""
        note = f"no run folder was written: {error}{hint}"
        return replace(report, notes=(*report.notes, note))
    return written
