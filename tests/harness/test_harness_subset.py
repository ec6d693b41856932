"""A random sample of documents is asked exactly as all of them are, under lm-eval's own ids."""

from __future__ import annotations

from pathlib import Path

import pytest
from local_tasks import N, answers, build

from evalguard.errors import UsageError
from evalguard.harness.score_tables import score_tables
from evalguard.harness.task_options import TaskOptions

TASKS = ("eg_lastword", "eg_rolling", "eg_choice", "eg_generate")


@pytest.mark.parametrize("name", TASKS)
def test_sampled_documents_get_the_same_requests_as_in_the_whole_run(
    task_folder: Path, name: str
) -> None:
    whole, sample = build(task_folder, name), build(task_folder, name, sample=7)
    assert len(sample.doc_ids) == 7
    assert sample.doc_ids != tuple(range(7))
    assert list(sample.doc_ids) == sorted(sample.doc_ids)
    # few-shot examples included: eg_choice has two of them in every prompt
    assert sample.requests == tuple(r for r in whole.requests if r.doc_id in sample.doc_ids)
    assert (sample.n_documents, sample.n_total, sample.run["limit"]) == (7, N, 7)


@pytest.mark.parametrize("name", TASKS)
def test_sampled_documents_get_the_same_scores_as_in_the_whole_run(
    task_folder: Path, name: str
) -> None:
    whole, sample = build(task_folder, name), build(task_folder, name, sample=9)
    of_all = score_tables(whole, answers(whole.requests)).tables
    of_some = score_tables(sample, answers(sample.requests)).tables
    for one, other in zip(of_all, of_some, strict=True):
        rows = [list(one.doc_ids).index(doc_id) for doc_id in other.doc_ids]
        assert one.key == other.key
        assert other.values.tolist() == one.values[rows].tolist()
        assert other.doc_hashes == tuple(one.doc_hashes[row] for row in rows)
        assert other.prompt_hashes == tuple(one.prompt_hashes[row] for row in rows)


def test_seed_draws_the_sample_and_the_limit_bounds_it(task_folder: Path) -> None:
    first = build(task_folder, "eg_lastword", sample=8)
    assert build(task_folder, "eg_lastword", sample=8).doc_ids == first.doc_ids
    assert build(task_folder, "eg_lastword", sample=8, seed=2).doc_ids != first.doc_ids
    limited = build(task_folder, "eg_lastword", sample=8, limit=12)
    assert max(limited.doc_ids) < 12


def test_sample_of_all_documents_is_the_whole_run(task_folder: Path) -> None:
    sample = build(task_folder, "eg_lastword", sample=N)
    assert sample.doc_ids == tuple(range(N))
    assert sample.run["limit"] == "all"


def test_empty_sample_is_refused() -> None:
    with pytest.raises(UsageError, match="sample of 0"):
        TaskOptions(sample=0)
