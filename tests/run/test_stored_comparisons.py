"""A run folder is read back: its report, and what was asked and answered."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from edited_result import edit_result
from fake_models import table
from hypothesis import given, settings
from hypothesis import strategies as st

from evalguard.comparison.stored_run import StoredRun, read_stored_run
from evalguard.comparison.table_comparisons import compare_tables
from evalguard.core.compare_report import CompareReport, RunDocuments, RunIdentity
from evalguard.core.gate import Gate
from evalguard.errors import StoreError, UsageError
from evalguard.report.compare_document import compare_document
from evalguard.store.run_folder import RunFolder

WHEN = datetime(2026, 11, 20, 11, 4, 5, tzinfo=timezone.utc)
SAMPLES: dict[str, list[Any]] = {
    "doc_id": [0, 2],
    "target": ["a", "ü\u202e"],
    "base:scores": [json.dumps({"none": {"acc": 1.0}}), json.dumps({"none": {"acc": [0, 3]}})],
    "base:token_logprobs": [[[-1.5, -0.5]], [None]],
    "candidate:scores": [None, json.dumps({"none": {"acc": 0.0}})],
    "odd": [{"a": 1}, [2]],
}
TOKENS = {"doc_id": np.array([0, 0, 2]), "kl": np.array([0.5, math.inf, 0.0])}


def a_report() -> CompareReport:
    gate = Gate()
    comparisons = compare_tables([table([1.0, 0.0] * 20)], [table([0.0, 0.0] * 20)], gate=gate)
    return CompareReport(
        base=RunIdentity(name="a", digest="d"),
        candidate=RunIdentity(name="b", digest="e"),
        comparisons=comparisons,
        gate=gate.judge(comparisons),
        exit_code=1,
        created="2026-01-01T00:00:00+00:00",
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    report = a_report()
    task = report.comparisons[0].task
    with RunFolder.create(tmp_path / "reports", "a", "b", WHEN) as run:
        run.write_samples("another", {"doc_id": [1]})
        run.write_samples(task, SAMPLES)
        run.write_tokens(task, TOKENS)
        run.write_result(compare_document(dataclasses.replace(report, run_folder=str(run.path))))
        return run.commit()


def test_the_report_and_the_tasks_are_there(folder: Path) -> None:
    run = read_stored_run(folder)
    assert run.report == dataclasses.replace(a_report(), run_folder=str(folder))
    assert run.tasks == (a_report().comparisons[0].task, "another")
    assert read_stored_run(folder / "result.json").report == run.report


def test_documents_are_what_was_written(folder: Path) -> None:
    run = read_stored_run(folder)
    found = run.documents(run.tasks[0])
    assert found is not None
    assert (len(found), list(found.doc_ids)) == (2, [0, 2])
    assert {name: list(values) for name, values in found.columns.items()} == SAMPLES
    assert found.scores("base") == [{"none": {"acc": 1.0}}, {"none": {"acc": [0, 3]}}]
    assert found.scores("candidate") == [{}, {"none": {"acc": 0.0}}]
    assert list(found.of("candidate", "prompt")) == [None, None]
    assert found.tokens_of(0)["kl"].tolist() == [0.5, math.inf]
    assert found.tokens_of(1)["kl"].tolist() == []
    assert run.documents("no such task") is None
    other = run.documents("another")
    assert other is not None
    assert other.tokens_of(1) == {}


def test_a_run_that_was_moved_is_where_it_is_now(folder: Path, tmp_path: Path) -> None:
    there = tmp_path / "elsewhere"
    shutil.move(folder, there)
    assert read_stored_run(there).report.run_folder == str(there)


def test_a_relative_folder_keeps_its_spelling(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent.parent)
    said = f"reports/{folder.name}"
    edit_result(folder, lambda result: result.update(run_folder=said))
    assert read_stored_run(folder).report.run_folder == said


def test_without_samples_there_are_no_documents(folder: Path, tmp_path: Path) -> None:
    alone = tmp_path / "alone" / "result.json"
    alone.parent.mkdir()
    shutil.copy(folder / "result.json", alone)
    run = read_stored_run(alone)
    assert (run.tasks, run.documents("t")) == ((), None)


def test_what_is_no_run_is_said(folder: Path, tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent", folder / "samples"):
        with pytest.raises(UsageError, match="cannot be read") as refused:
            read_stored_run(path)
        assert "run folder" in refused.value.hint
    (folder / "result.json").write_text("{")
    with pytest.raises(UsageError, match="is not JSON"):
        read_stored_run(folder)
    (folder / "result.json").write_text('{"schema": "evalguard.floor/1"}')
    with pytest.raises(UsageError, match=r"evalguard\.floor/1"):
        read_stored_run(folder)
    (folder / "result.json").write_text('{"schema": "evalguard.compare/1"}')
    with pytest.raises(StoreError, match=r"reports.*comparisons is missing"):
        read_stored_run(folder)


@pytest.mark.parametrize("change", ["cut", "empty", "flipped", "a folder"])
def test_a_damaged_table_is_said_with_its_file(folder: Path, change: str) -> None:
    task = a_report().comparisons[0].task
    (file,) = folder.glob("tokens-*.parquet")
    data = file.read_bytes()
    file.unlink()
    if change == "a folder":
        file.mkdir()
    else:
        middle = bytes([*data[:4], *(byte ^ 0xFF for byte in data[4:-8]), *data[-8:]])
        file.write_bytes({"cut": data[:-9], "empty": b"", "flipped": middle}[change])
    run = read_stored_run(folder)
    with pytest.raises(StoreError, match=file.name) as refused:
        run.documents(task)
    assert refused.value.hint


@pytest.mark.parametrize("text", ["", "[1]", '{"none": 1}', "[" * 10_000, None])
def test_scores_that_are_none_are_refused(text: str | None) -> None:
    found = RunDocuments(task="t", columns={"doc_id": [0], "base:scores": [text]})
    if text is None:
        assert found.scores("base") == [{}]
    else:
        with pytest.raises(StoreError, match="task 't' are damaged"):
            found.scores("base")


numbers = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False)
values = st.none() | st.booleans() | numbers | st.text()


@settings(max_examples=40, deadline=None)
@given(column=st.lists(values | st.lists(values, max_size=3), min_size=1, max_size=4))
def test_whatever_stood_in_a_column_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, column: list[Any]
) -> None:
    with RunFolder.create(tmp_path_factory.mktemp("runs"), "a", "b", WHEN) as run:
        run.write_samples("t", {"any": column})
        run.write_result(compare_document(a_report()))
        path = run.commit()
    found = StoredRun(report=a_report(), folder=path, files={}, sealed=True).documents("t")
    assert found is not None
    assert found.columns["any"] == column
