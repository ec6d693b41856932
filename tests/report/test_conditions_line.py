"""The line under a table: stable, short, and parsed by splitting."""

from __future__ import annotations

import dataclasses
from urllib.parse import unquote

import pytest
from example_cards import ASKED, BASE, LADDER, Q8, candidate, run
from example_reports import UNCHANGED, comparison, report
from hypothesis import given
from hypothesis import strategies as st

from evalguard.core.compare_report import AskedTask, CompareReport, RunIdentity
from evalguard.core.comparison import SequentialRun
from evalguard.several.card_conditions import conditions_line, task_conditions

GOLDEN = (
    "evalguard:0.2.0|lm_eval:0.4.13|torch:2.13.0|transformers:5.24.0"
    "|base:org/model@12e45670#3f2a9c0d|cand:Q8_0#00000118"
    "|task:lambada_openai,v=1.0,shots=0,n=5153/5153,docs=01234567,prompts=fedcba98,"
    "data=EleutherAI/lambada_openai@12e45670"
    "|task:arc_easy,v=1.0,shots=5,seed=1234,n=2376/2376,docs=00112233,prompts=aa665544,"
    "data=allenai/ai2_arc|batch:16|gate:real,1sigma,95%25"
)


def parsed(line: str) -> list[tuple[str, str]]:
    """As docs/card.md says."""
    pairs = [part.split(":", 1) for part in line.split("|")]
    return [(key, value) for key, value in pairs]


def test_it_is_as_it_was() -> None:
    assert conditions_line([Q8]) == GOLDEN


def test_it_names_every_candidate_and_what_they_share_once() -> None:
    line = conditions_line(LADDER)
    keys = [key for key, _ in parsed(line)]
    assert keys.count("cand") == len(LADDER)
    assert keys.count("task") == 2
    assert len(set(keys)) == len(keys) - len(LADDER) - 2 + 2


def test_what_an_earlier_version_did_not_write_down_is_unknown() -> None:
    told = dict(parsed(conditions_line([report(comparison())])))
    assert told["task"] == "lambada_openai,v=?,shots=?,n=5153/?,docs=?,prompts=?"
    assert told["batch"] == "?"
    assert told["lm_eval"] == "?"


@pytest.mark.parametrize(
    ("base", "candidate", "expected"),
    [
        ("tokenizer#0123456789abcdef", "tokenizer#0123456789abcdef", ",template=01234567"),
        ("tokenizer#0123456789abcdef", "argument#fedcba9876543210", ",template=01234567/fedcba98"),
        ("lm-eval#0123456789abcdef", "server", ",template=01234567/server"),
        ("tokenizer#0123456789abcdef", "", ",template=01234567/?"),
        ("", "", ""),
    ],
)
def test_chat_templates_are_named_where_there_are_some(
    base: str, candidate: str, expected: str
) -> None:
    asked = AskedTask(task="t", n=5, base_template=base, candidate_template=candidate)
    (told,) = task_conditions(dataclasses.replace(Q8, tasks=(asked,)))
    assert told == f"t,v=?,shots=?,n=5/?,docs=?,prompts=?{expected}"


def test_batches_of_a_finished_lm_eval_run_are_those_that_it_recorded() -> None:
    sides = {"base": {"batch_size": 16}, "candidate": {"batch_size": 32}}
    assert (
        dict(parsed(conditions_line([report(comparison(), environment=sides)])))["batch"] == "16/32"
    )


def test_a_budget_of_tokens_is_no_number_of_sequences() -> None:
    shown = run("x", base=dataclasses.replace(BASE, computation={"token_budget": 1024}),
                candidate=candidate("x", computation={"token_budget": 1024}))  # fmt: skip
    assert dict(parsed(conditions_line([shown])))["batch"] == "1024tokens"


def test_many_tasks_are_one_digest_which_their_conditions_give() -> None:
    many = tuple(dataclasses.replace(ASKED[0], task=f"mmlu_{at}") for at in range(57))
    shown = run("x", tasks=many)
    line = conditions_line([shown])
    assert dict(parsed(line))["tasks"].startswith("57#")
    assert len(line) < 300
    other = run("x", tasks=(*many[:-1], dataclasses.replace(many[-1], version="2.0")))
    assert conditions_line([other]) != line
    assert len(task_conditions(shown)) == 57


def test_the_order_of_a_sequential_run_is_part_of_it() -> None:
    stopped = SequentialRun(alpha=0.05, gated=1, seed=20261120, loads=1, tasks=())
    assert conditions_line([run("x", sequential=stopped)]).endswith("|order:seed=20261120")


names = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=60)


@given(names, names, names)
def test_any_name_comes_back_and_none_adds_a_field(base: str, name: str, task: str) -> None:
    shown = run(
        name,
        comparison(**{**UNCHANGED, "task": task}),
        base=RunIdentity(name=base, digest="1" * 16),
        candidate=RunIdentity(name=name, digest="2" * 16),
        tasks=(dataclasses.replace(ASKED[0], task=task),),
    )
    line = conditions_line([shown])
    assert line.isascii()
    assert not set(line) & set(" \n`<>")
    told = dict(parsed(line))
    assert len(parsed(line)) == 9
    assert unquote(told["base"].partition("#")[0]) == base
    assert unquote(told["cand"].partition("#")[0]) == name
    assert unquote(told["task"].partition(",")[0]) == task


@pytest.mark.parametrize("shown", [Q8, report(comparison())])
def test_the_same_run_gives_the_same_line(shown: CompareReport) -> None:
    assert conditions_line([shown]) == conditions_line([dataclasses.replace(shown, created="2030")])
