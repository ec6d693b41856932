"""A model beside a finished lm-eval run answers what that run answered, as it did."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from evalguard.config.guard import GuardSet
from evalguard.config.options import CompareOptions
from evalguard.core.scores import ScoreTable
from evalguard.core.settings import Value, Variant
from evalguard.engine.choices import resolve_choices
from evalguard.engine.sources import ModelSource, RunSource
from evalguard.harness.finished_runs.lmeval_run import LmEvalRun

MODEL = ModelSource(name="m", variant=Variant(name="m", model="hf", model_args={}))


def table(
    task: str, n: int, limit: Value = "all", *, output_type: str = "loglikelihood"
) -> ScoreTable:
    hashes = tuple(str(i) for i in range(n))
    return ScoreTable(
        task=task, filter="none", metric="acc", aggregation="mean", higher_is_better=True,
        doc_ids=np.arange(n), values=np.zeros(n), doc_hashes=hashes, prompt_hashes=hashes,
        target_hashes=hashes, run={"limit": limit, "output_type": output_type},
    )  # fmt: skip


def run_source(*tables: ScoreTable, limit: Value = None) -> RunSource:
    environment = {} if limit is None else {"limit": limit}
    run = LmEvalRun(
        path=Path("results.json"), model_name="m", model_args={}, date="", tables=tables,
        environment=environment,
    )  # fmt: skip
    return RunSource(name="run", run=run)


@pytest.mark.parametrize(
    ("limit", "given", "expected"),
    [
        (20, None, 20),  # the small task has fewer documents than that: all of them
        (20.0, None, 20),
        (0.1, None, 0.1),
        (None, None, None),
        (20, 5, 5),
    ],
)
def test_limit_is_the_one_the_run_was_given(
    limit: float | None, given: float | None, expected: float | None
) -> None:
    small = table("small", 8)
    large = table("large", 20, "all" if limit is None else 20)
    source = run_source(small, large, limit=limit)
    choices = resolve_choices(source, MODEL, GuardSet(guards=()), CompareOptions(limit=given))
    assert choices.tasks == ("small", "large")
    assert choices.task_options.limit == expected


def test_limit_of_a_run_that_does_not_record_it_is_what_its_tasks_share() -> None:
    source = run_source(table("one", 20, 20), table("two", 20, 20))
    choices = resolve_choices(source, MODEL, GuardSet(guards=()), CompareOptions())
    assert choices.task_options.limit == 20
