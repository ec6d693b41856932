"""The first answers are looked at while the others are written: cut, empty, without an answer."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from fake_models import FakeScorer, executor

from evalguard.core.scorer import Ending, Request, Response
from evalguard.engine.block_store import LoadedModel
from evalguard.engine.executor import Executor
from evalguard.harness.task_options import TaskOptions
from evalguard.harness.tasks import TaskSet, load_tasks

N = 24
STRICT = {
    "name": "strict",
    "filter": [
        {"function": "regex", "regex_pattern": "#### (\\d+)"},
        {"function": "take_first"},
    ],
}
FLEXIBLE = {
    "name": "flexible",
    "filter": [
        {"function": "regex", "regex_pattern": "(\\d+)", "group_select": -1},
        {"function": "take_first"},
    ],
}
PLAIN = {"name": "none", "filter": [{"function": "take_first"}]}

Writes = Callable[[int], tuple[str, Ending]]


def right(number: int) -> tuple[str, Ending]:
    return f"So it is. #### {number}", "stop"


def cut(number: int) -> tuple[str, Ending]:
    return "Let me think about it once", "length"


def cut_after_the_answer(number: int) -> tuple[str, Ending]:
    return f"#### {number}\n\nAnd now", "length"


def cut_in_thinking(number: int) -> tuple[str, Ending]:
    return "<think>Let me see", "length"


def loop(number: int) -> tuple[str, Ending]:
    return "So we wait. " + "And then we wait again. " * 40, "length"


def empty(number: int) -> tuple[str, Ending]:
    return ("\n ", "stop") if number % 8 else right(number)


def without_an_answer(number: int) -> tuple[str, Ending]:
    return "hard to say", "stop"


class Writer(FakeScorer):
    """Writes what a function says, in parts of eight texts if it is to."""

    def __init__(self, writes: Writes, *, parts: int = 0, message: str = "") -> None:
        super().__init__("port")
        self.writes, self.parts, self.message = writes, parts, message

    def generation_parts(self, requests: Sequence[Request]) -> list[tuple[int, ...]]:
        size = self.parts or len(requests)
        places = tuple(range(len(requests)))
        return [places[at : at + size] for at in places[::size]]

    def _respond(self, request: Request) -> Response:
        text, ended = self.writes(request.doc_id)
        return Response(text=text, ended=ended, message=self.message)


@pytest.fixture
def tasks(tmp_path: Path) -> Callable[..., TaskSet]:
    data = tmp_path / "test.jsonl"
    rows = [{"question": f"Q: number {n}?", "answer": str(n)} for n in range(N)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def load(*filters: Any, most: int = 64, names: Sequence[str] = ("sums",)) -> TaskSet:
        for name in names:
            task = {
                "task": name,
                "dataset_path": "json",
                "dataset_kwargs": {"data_files": {"test": str(data)}},
                "test_split": "test",
                "output_type": "generate_until",
                "doc_to_text": "{{question}}",
                "doc_to_target": "{{answer}}",
                "generation_kwargs": {"until": ["Q:"], "max_gen_toks": most},
                "filter_list": list(filters),
                "metric_list": [
                    {"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}
                ],
            }
            (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(task))
        return load_tasks(list(names), options=TaskOptions(include_paths=(tmp_path,)))

    return load


def asked(
    tasks: TaskSet, scorer: FakeScorer, cache: Path | None = None
) -> tuple[list[str], list[Any]]:
    """What is said while a model answers, and what stands in the report about its first answers."""
    said = io.StringIO()
    found = executor(tasks, cache, said).evaluate(LoadedModel("port", scorer))
    lines = [line for line in said.getvalue().splitlines() if "first" in line]
    return lines, [one for one in found.findings if one.kind == "first_answers_fail"]


@pytest.mark.parametrize("filters", [(STRICT, FLEXIBLE), (PLAIN,)], ids=["numbers", "plain"])
def test_most_answers_cut_at_the_limit_are_said_with_the_option_that_mends_it(
    tasks: Callable[..., TaskSet], filters: Sequence[Any]
) -> None:
    lines, (found,) = asked(tasks(*filters), Writer(cut))
    assert len(lines) == 1
    assert lines[0].startswith(
        "sums: of the first 24 answers of port 24 are cut at max_gen_toks=64"
    )
    assert "--gen_kwargs max_gen_toks=256 lets it finish" in lines[0]
    assert lines[0].endswith("the run goes on, and Ctrl-C loses nothing")
    assert found.task == "sums"
    assert (found.values["cut"], found.values["answers"]) == (24, 24)


def test_a_long_block_is_not_waited_for(tasks: Callable[..., TaskSet]) -> None:
    lines, (found,) = asked(tasks(STRICT), Writer(cut, parts=8))
    assert "of the first 8 answers of port 8 are cut" in lines[0]
    assert found.values["answers"] == 24  # those of the first block, whatever was kept of it


def test_an_unclosed_thinking_part_is_named(tasks: Callable[..., TaskSet]) -> None:
    lines, _ = asked(tasks(STRICT), Writer(cut_in_thinking))
    assert "24 are cut at max_gen_toks=64, 24 end inside of a thinking part" in lines[0]


def test_a_stop_string_inside_of_a_thinking_part_is_told_from_an_answer(
    tasks: Callable[..., TaskSet],
) -> None:
    lines, _ = asked(tasks(PLAIN), Writer(lambda n: ("<think>First", "stop")))
    assert "24 end inside of a thinking part: look at the stop strings of the task" in lines[0]
    thought = json.dumps({"reasoning_content": "So it is 4"})
    assert asked(tasks(PLAIN), Writer(lambda n: ("4", "stop"), message=thought)) == ([], [])
    lines, _ = asked(tasks(PLAIN), Writer(lambda n: ("", "length"), message=thought))
    assert "24 end inside of a thinking part" in lines[0]


def test_loops_are_no_reason_for_more_tokens(tasks: Callable[..., TaskSet]) -> None:
    lines, _ = asked(tasks(PLAIN), Writer(loop))
    assert "24 are cut at max_gen_toks=64, 24 loop: more tokens will not help" in lines[0]


def test_empty_answers_are_said_and_tool_calls_are_none(tasks: Callable[..., TaskSet]) -> None:
    lines, _ = asked(tasks(PLAIN), Writer(empty))
    assert "21 are empty: look at stop strings, chat template and end-of-text token" in lines[0]
    calls = json.dumps({"tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]})
    assert asked(tasks(PLAIN), Writer(empty, message=calls)) == ([], [])


def test_answers_in_which_no_filter_finds_any_are_said(tasks: Callable[..., TaskSet]) -> None:
    lines, (found,) = asked(tasks(STRICT, FLEXIBLE), Writer(without_an_answer))
    assert "no filter finds an answer in 24: look at prompt, chat template and filter" in lines[0]
    assert found.values["no_answer"] == 24


@pytest.mark.parametrize(
    ("writes", "filters", "most"),
    [
        (right, (STRICT,), 64),
        # lm-eval's few-shot tasks: a base model goes on after its answer, and nothing is lost
        (cut_after_the_answer, (STRICT,), 64),
        # one filter of two finds them
        (lambda n: (f"it is {n}", "stop"), (STRICT, FLEXIBLE), 64),
        # a letter is all that is asked for
        (cut, (PLAIN,), 1),
        # half of them are cut
        (lambda n: cut(n) if n % 2 else right(n), (STRICT,), 64),
        # nobody says why they ended
        (lambda n: ("some words", ""), (PLAIN,), 64),
    ],
)
def test_nothing_is_said_of_answers_that_are_as_they_should_be(
    tasks: Callable[..., TaskSet], writes: Writes, filters: Sequence[Any], most: int
) -> None:
    assert asked(tasks(*filters, most=most), Writer(writes)) == ([], [])


def test_a_run_over_kept_answers_has_the_finding_and_says_nothing_anew(
    tasks: Callable[..., TaskSet], tmp_path: Path
) -> None:
    some = tasks(STRICT)
    lines, first = asked(some, Writer(cut, parts=8), tmp_path / "cache")
    again, second = asked(some, Writer(cut), tmp_path / "cache")
    assert (len(lines), again) == (1, [])
    assert first == second


def test_many_tasks_are_one_finding_of_each_model(tasks: Callable[..., TaskSet]) -> None:
    lines, (found,) = asked(tasks(STRICT, names=("a", "b", "c")), Writer(cut))
    assert len(lines) == 3
    assert found.task == "a"
    assert found.text.endswith("(and so in 2 more tasks)")
    assert found.values["more_tasks"] == ("b", "c")


def test_scores_are_those_of_a_run_that_nobody_looks_at(
    tasks: Callable[..., TaskSet], monkeypatch: pytest.MonkeyPatch
) -> None:
    some = tasks(STRICT, FLEXIBLE)
    writer = Writer(lambda n: right(n) if n % 3 else cut(n), parts=8)
    ours = executor(some, None).evaluate(LoadedModel("port", writer)).scores["sums"]
    monkeypatch.setattr(Executor, "_look_at_texts", lambda *_: None)
    theirs = executor(some, None).evaluate(LoadedModel("port", writer)).scores["sums"]
    assert [t.values.tolist() for t in ours.tables] == [t.values.tolist() for t in theirs.tables]


def test_a_model_that_is_cut_where_the_other_one_ends_has_lost_what_ends_a_text(
    tasks: Callable[..., TaskSet],
) -> None:
    said = io.StringIO()
    both = executor(tasks(STRICT), None, said)
    both.evaluate(LoadedModel("orig", Writer(right)))
    found = both.evaluate(LoadedModel("port", Writer(cut_after_the_answer_goes_on)))
    (finding,) = found.findings
    assert "those of orig end by themselves" in finding.text
    assert "eos_token_id" in finding.text
    assert finding.values["ends_in"] == "orig"
    assert "max_gen_toks=256" not in said.getvalue() + finding.text
    # One that thinks for longer does not lack its end: it lacks tokens.
    (finding,) = both.evaluate(LoadedModel("port", Writer(cut_in_thinking))).findings
    assert "--gen_kwargs max_gen_toks=256 lets it finish" in finding.text


def cut_after_the_answer_goes_on(number: int) -> tuple[str, Ending]:
    return f"So it is. {number}\n\nAnd so on, as it was before", "length"
