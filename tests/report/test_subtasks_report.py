"""Groups in a report: the aggregate first, few of many subtasks, a sentence about the group."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import jsonschema
from example_reports import comparison, report

from evalguard.core.comparison import Comparison
from evalguard.report.compare_document import compare_document, compare_schema
from evalguard.report.compare_terminal import render_terminal

CALM = {"significant": False, "certain": False}


def acc(task: str, **changes: Any) -> Comparison:
    fields: dict[str, Any] = {
        "task": task, "metric": "acc", "higher_is_better": True, "base": 0.5, "candidate": 0.495,
        "base_stderr": 0.02, "candidate_stderr": 0.02, "sigma": 0.25, "n": 100, "n_used": 100,
        "sigma_interval": (-0.1, 0.6), "p_value": 0.08, "outcome": "unchanged", **CALM,
    }  # fmt: skip
    return comparison(**{**fields, **changes})


def many(count: int, **of_group: Any) -> list[Comparison]:
    names = tuple(f"mmlu_{number}" for number in range(count))
    group = acc("mmlu", n=100 * count, n_used=100 * count, subtasks=names, subgroups=("mmlu_stem",))
    inner = acc("mmlu_stem", subtasks=names[:5])
    changed = {
        "mmlu_1": {"outcome": "regressed", "sigma": 1.7, "sigma_interval": (-0.2, 3.6)},
        "mmlu_2": {"outcome": "undecided", "sigma_interval": (-0.2, 1.6)},
        "mmlu_3": {"outcome": "improved", "sigma": -1.2, "sigma_interval": (-2.0, -0.4)},
    }
    subtasks = [acc(name, **changed.get(name, {})) for name in names]
    return [dataclasses.replace(group, **of_group), inner, *subtasks]


def test_of_many_subtasks_those_that_drifted_are_shown_and_the_others_counted() -> None:
    text = render_terminal(report(*many(57)), width=80, color=False, verbose=True)
    assert "mmlu · 5,700 documents in 57 subtasks" in text
    lines = text.splitlines()
    for name in ("mmlu", "mmlu_stem", "mmlu_1", "mmlu_3"):
        assert any(line.startswith(f"{name} ·") for line in lines)
    assert not any(line.startswith(("mmlu_2 ·", "mmlu_40 ·")) for line in lines)
    assert (
        "mmlu: 54 unchanged and 1 undecided subtasks are not shown; the JSON document has"
        "\nall, with caveats."
    ) in text
    assert max(map(len, lines)) <= 80


def test_outcomes_of_subtasks_that_are_not_gated_are_counted_apart() -> None:
    comparisons = many(57)
    gated = [("mmlu", "none", "acc")]
    made = report(*comparisons)
    gate = dataclasses.replace(made.gate, gated=tuple(gated), holm_p_values=(0.08,))
    text = " ".join(
        render_terminal(
            dataclasses.replace(made, gate=gate), width=80, color=False, verbose=True
        ).split()
    )
    assert "1 unchanged; of subtasks, not gated: 1 regressed, 1 undecided, 1 improved, 55" in text


def test_caveats_of_subtasks_that_are_not_shown_are_left_to_the_document() -> None:
    group, inner, *subtasks = many(57)
    said = [dataclasses.replace(c, caveats=(f"a caveat of {c.task}",)) for c in subtasks]
    text = render_terminal(report(group, inner, *said), width=80, color=False, verbose=True)
    assert "a caveat of mmlu_1" in text
    assert "a caveat of mmlu_40" not in text
    written = compare_document(report(group, inner, *said))
    assert "a caveat of mmlu_40" in json.dumps(written)


def test_few_subtasks_are_all_shown_and_the_document_always_holds_all() -> None:
    text = render_terminal(report(*many(20)), width=80, color=False, verbose=True)
    assert "not shown" not in text
    assert "mmlu_19 ·" in text
    written = compare_document(report(*many(57)))
    jsonschema.Draft202012Validator(compare_schema()).validate(written)
    assert len(written["comparisons"]) == 59
    group = written["comparisons"][0]
    assert (len(group["subtasks"]), group["subgroups"]) == (57, ["mmlu_stem"])
    assert written["gate"]["gated"] == [
        {"task": "mmlu", "filter": "none", "metric": "acc", "holm_p_value": 0.08, "state": "passed"}
    ]


def test_the_sentence_is_about_the_group_and_not_about_the_worst_of_its_subtasks() -> None:
    text = render_terminal(report(*many(57)), width=200, color=False, verbose=True)
    about = "not measurably worse than orig: its drift is +0.25 standard errors, on mmlu acc"
    assert about in " ".join(text.split())
    worse = {"outcome": "regressed", "sigma": 1.5, "sigma_interval": (1.2, 1.8)}
    text = render_terminal(report(*many(57, **worse)), width=200, color=False, verbose=True)
    assert "by 1.50 standard errors on mmlu acc" in " ".join(text.split())


def test_an_improvement_says_nothing_of_subtasks_that_are_not_judged() -> None:
    better = {"outcome": "improved", "sigma": -0.5, "sigma_interval": (-0.8, -0.2)}
    text = " ".join(
        render_terminal(report(*many(57, **better)), width=200, color=False, verbose=True).split()
    )
    assert "measurably worse on no other metric that the gate judges" in text
