"""How a task was asked: what two runs must share so that their rows may stand in one table."""

from __future__ import annotations

from typing import Any

import numpy as np

from evalguard.core.compare_report import NO_VERSION, AskedTask, list_asked_tasks
from evalguard.core.scores import ScoreTable


def table(task: str = "arc", **changes: Any) -> ScoreTable:
    fields: dict[str, Any] = {
        "filter": "none",
        "metric": "acc",
        "aggregation": "mean",
        "higher_is_better": True,
        "doc_ids": np.arange(3),
        "values": np.ones(3),
        "doc_hashes": ("a", "b", "c"),
        "prompt_hashes": ("p", "q", "r"),
        "target_hashes": ("", "", ""),
        "n_total": 2376,
        "run": {"num_fewshot": 5, "fewshot_seed": 1234, "task_version": 1.0, "limit": 3},
        "dataset": {"dataset": "allenai/ai2_arc", "split": "test"},
    }
    return ScoreTable(task=task, **{**fields, **changes})


def asked(base: ScoreTable, candidate: ScoreTable) -> AskedTask:
    (one,) = list_asked_tasks([base], [candidate])
    return one


def test_it_says_how_many_documents_were_asked_and_how() -> None:
    one = asked(table(), table())
    assert (one.task, one.n, one.n_total) == ("arc", 3, 2376)
    assert (one.version, one.num_fewshot, one.fewshot_seed) == ("1.0", 5, 1234)
    assert (one.dataset, one.config, one.split) == ("allenai/ai2_arc", "", "test")


def test_a_task_that_declares_no_version_has_none() -> None:
    """lm-eval's own word for it is the kind of its file."""
    plain = table(run={"task_version": "Yaml"})
    assert asked(plain, plain).version == NO_VERSION == "none"


def test_other_documents_have_another_digest_and_so_have_the_same_under_other_ids() -> None:
    whole = asked(table(), table()).documents
    others = table(doc_hashes=("a", "b", "d"))
    moved = table(doc_ids=np.array([0, 1, 3]))
    assert len({whole, asked(others, others).documents, asked(moved, moved).documents}) == 3


def test_prompts_are_the_bases_since_a_template_may_be_what_is_under_test() -> None:
    plain = asked(table(), table(prompt_hashes=("x", "y", "z")))
    assert plain.prompts == asked(table(), table()).prompts
    assert plain.prompts != asked(table(prompt_hashes=("x", "y", "z")), table()).prompts


def test_a_digest_over_hashes_that_a_run_does_not_show_is_not_known() -> None:
    assert asked(table(), table(doc_hashes=("a", "", "c"))).documents == ""
    assert asked(table(prompt_hashes=("", "", "")), table()).prompts == ""


def test_what_no_side_tells_is_not_made_up() -> None:
    bare = table(run={}, dataset={}, n_total=0)
    one = asked(bare, bare)
    assert (one.version, one.num_fewshot, one.fewshot_seed, one.dataset, one.n_total) == (
        "", None, None, "", 0,
    )  # fmt: skip


def test_a_task_that_one_side_was_not_asked_is_none_of_both() -> None:
    assert list_asked_tasks([table("arc")], [table("piqa")]) == ()
