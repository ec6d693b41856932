"""Which runs may stand in one table, and what is said of those that may not."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from example_reports import comparison, report

from evalguard.core.compare_report import AskedTask, CompareReport, RunIdentity
from evalguard.core.comparison import Comparison, SequentialRun, SequentialTask
from evalguard.core.gate import Gate
from evalguard.several.card_conditions import find_run_differences

ASKED = AskedTask(
    task="lambada_openai", n=5153, n_total=5153, version="1.0", num_fewshot=0,
    dataset="EleutherAI/lambada_openai", split="test", documents="d1", prompts="p1",
)  # fmt: skip


def run(*asked: AskedTask, metric: Comparison | None = None, **changes: Any) -> CompareReport:
    return report(metric or comparison(), tasks=asked or (ASKED,), **changes)


def differences(one: CompareReport, other: CompareReport) -> list[str]:
    return list(find_run_differences(one, other))


def test_runs_of_two_candidates_of_one_base_are_alike() -> None:
    other = RunIdentity(name="int4", digest="0")
    assert differences(run(), run(metric=comparison(candidate=5.0), candidate=other)) == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"documents": "d2"}, "digest of the documents: d1 and d2"),
        ({"prompts": "p2"}, "digest of the base's prompts: p1 and p2"),
        ({"version": "2.0"}, "task version: 1.0 and 2.0"),
        ({"num_fewshot": 5}, "few-shot examples: 0 and 5"),
        ({"n": 100}, "documents asked: 5153 and 100"),
        ({"n_total": 5000}, "documents of the task: 5153 and 5000"),
        ({"split": "validation"}, "split: test and validation"),
        ({"dataset": "lambada"}, "dataset: EleutherAI/lambada_openai and lambada"),
    ],
)
def test_a_task_that_was_asked_otherwise_is_told(changes: dict[str, Any], said: str) -> None:
    found = differences(run(), run(dataclasses.replace(ASKED, **changes)))
    assert found == [f"lambada_openai: {said}"]


@pytest.mark.parametrize(
    "changes", [{"version": ""}, {"num_fewshot": None}, {"revision": "c0ffee"}]
)
def test_what_one_of_them_does_not_say_is_no_difference(changes: dict[str, Any]) -> None:
    assert differences(run(), run(dataclasses.replace(ASKED, **changes))) == []


def test_another_base_is_told_with_what_is_known_of_the_difference() -> None:
    packages = [{"base": {"packages": {"transformers": version}}} for version in ("5.23", "5.24")]
    base = RunIdentity(name="orig", digest="ffff00001111", description="hf, 1.2M parameters")
    one, two = run(environment=packages[0]), run(environment=packages[1], base=base)
    (said,) = differences(one, two)
    assert said.startswith("the base is not the same (3f2a9c0d and ffff0000): ")
    assert "transformers: 5.23 and 5.24" in said


def test_other_tasks_are_told() -> None:
    other = run(dataclasses.replace(ASKED, task="piqa"), metric=comparison(task="piqa"))
    assert differences(run(), other) == ["tasks that only one of them has: lambada_openai"]


def test_a_run_of_which_nothing_could_be_compared_was_asked_the_same() -> None:
    nothing = dataclasses.replace(run(), comparisons=())
    assert differences(run(), nothing) == []


def test_other_intervals_are_told() -> None:
    ours, theirs = comparison(), comparison(confidence=0.99)
    one, two = report(ours), report(theirs, gate=Gate(confidence=0.99))
    assert differences(one, two) == ["confidence of the intervals: 0.95, 0.99"]


def test_of_runs_that_do_not_say_what_they_asked_the_bases_values_have_to_be_the_same() -> None:
    """As of evalguard 0.1, which wrote down no digest of the documents."""
    old = report(comparison())
    assert differences(old, report(comparison(base=4.1329989138930125 * (1 + 1e-9)))) == []
    assert differences(old, report(comparison(base=4.2))) == [
        "lambada_openai perplexity: the base's value: 4.133 and 4.2"
    ]
    assert differences(old, report(comparison(n=100))) == [
        "lambada_openai perplexity: documents: 5153 and 100"
    ]


def test_rounding_of_a_base_that_was_scored_twice_is_no_difference() -> None:
    assert differences(run(), run(metric=comparison(base=4.14))) == []


def test_documents_in_an_order_of_their_own_may_differ() -> None:
    task = SequentialTask(task="lambada_openai", n_used=640, n_total=5153, look=1, looks=(640,))
    stopped = SequentialRun(alpha=0.05, gated=1, seed=1, loads=1, tasks=(task,))
    fewer = dataclasses.replace(ASKED, n=640, documents="d3", prompts="p3")
    early = run(fewer, sequential=stopped, metric=comparison(base=4.0, n_used=640))
    assert differences(run(), early) == []
    other_version = dataclasses.replace(fewer, version="2.0")
    assert differences(run(), run(other_version, sequential=stopped)) != []
