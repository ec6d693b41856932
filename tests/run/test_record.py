"""Samples as columns: shared ones once, both sides' beside each other, nulls where one lacks."""

from __future__ import annotations

from typing import Any

import pytest

from evalguard.comparison.run_record import build_sample_columns, list_tasks_of_sides
from evalguard.errors import EvaluationError
from evalguard.harness.score_tables import TaskScores


def scores(*rows: dict[str, Any]) -> TaskScores:
    shared = {"doc": "d", "target": "t", "doc_hash": "h", "target_hash": "g"}
    return TaskScores(
        task="t", tables=(), not_compared=(), samples=tuple({**shared, **row} for row in rows)
    )


def test_documents_are_in_order_and_shared_columns_stand_once() -> None:
    columns = build_sample_columns(
        scores({"doc_id": 2, "prompt": "p2"}, {"doc_id": 0, "prompt": "p0"}),
        scores({"doc_id": 0, "prompt": "q0"}, {"doc_id": 2, "prompt": "q2"}),
    )
    assert list(columns) == [
        "doc_id", "doc", "target", "doc_hash", "target_hash", "base:prompt", "candidate:prompt"
    ]  # fmt: skip
    assert columns["doc_id"] == [0, 2]
    assert columns["base:prompt"] == ["p0", "p2"]
    assert columns["candidate:prompt"] == ["q0", "q2"]


def test_a_document_of_one_side_keeps_its_row() -> None:
    columns = build_sample_columns(
        scores({"doc_id": 0, "x": 1}), scores({"doc_id": 0, "x": 2}, {"doc_id": 1, "x": 3})
    )
    assert columns["base:x"] == [1, None]
    assert columns["candidate:x"] == [2, 3]
    assert columns["doc"] == ["d", "d"]


def test_a_side_without_samples_has_no_columns() -> None:
    columns = build_sample_columns(None, scores({"doc_id": 0, "x": 2}))
    assert [name for name in columns if ":" in name] == ["candidate:x"]
    assert build_sample_columns(None, None) == {
        "doc_id": [], "doc": [], "target": [], "doc_hash": [], "target_hash": []
    }  # fmt: skip


def test_an_id_that_is_no_number_is_an_error_of_the_task() -> None:
    with pytest.raises(EvaluationError, match="document id 'a' is not a number"):
        build_sample_columns(scores({"doc_id": "a"}), None)


def test_tasks_of_several_sides_are_named_once() -> None:
    assert list_tasks_of_sides(("a", "b"), ("b", "c")) == ["a", "b", "c"]
