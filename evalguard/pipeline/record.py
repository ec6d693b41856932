"""What a finished comparison leaves on disk: result.json and one samples file per task."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from evalguard.errors import EvaluationError
from evalguard.harness import TaskScores
from evalguard.settings import Value

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
